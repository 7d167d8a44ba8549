"""The programs in examples/ run as they stand."""

import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_two_processes() -> None:
    command = [sys.executable, str(EXAMPLES / "two_processes.py"), "--batches", "20"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "killed a producer" in done.stdout
    assert "20 batches of [8, 64, ...], 0 torn segments, 160 consumed" in done.stdout
    assert "'writing': 0" in done.stdout
    assert "'reading': 0" in done.stdout
    assert done.stderr == ""
