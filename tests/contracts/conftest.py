"""Shared by the contract tests: helpers of the tests of workers and of graphs."""

import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
for folder in (TESTS / "workers", TESTS / "learner"):
    sys.path.append(str(folder))
