"""The programs under test are the scripts in benches/reliability."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benches" / "reliability"))
