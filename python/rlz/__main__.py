"""`python -m rlz` is the `rlz` command."""

import sys

from rlz.cli import main

sys.exit(main())
