"""`python -m rlz` is the `rlz` command."""

from rlz.cli import entry

entry()
