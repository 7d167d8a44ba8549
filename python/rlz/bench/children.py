"""Child processes of a benchmark: each contender runs in one of its own and prints its numbers as JSON."""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlz.errors import RlzError


def run_child(command: Sequence[str | Path], *, timeout: float, env: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Run a program and return the JSON object on its last line of output.

    Parameters
    ----------
    command : program and arguments.
    timeout : seconds after which it is killed.
    env : added to the environment.

    Raises
    ------
    RlzError
        When it fails, takes too long or prints something else; with the end of its error output.
    """
    environment = {**os.environ, **(env or {})}
    try:
        done = subprocess.run(
            [str(part) for part in command],
            capture_output=True,
            text=True,
            timeout=timeout,
            env=environment,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise RlzError(f"{Path(command[0]).name} did not end within {timeout:.0f} s") from error
    lines = done.stdout.strip().splitlines()
    if done.returncode != 0 or not lines:
        raise RlzError(f"a measurement ended with status {done.returncode}: {done.stderr.strip()[-1500:]}")
    try:
        value = json.loads(lines[-1])
    except ValueError as error:
        raise RlzError(f"a measurement printed {lines[-1][:200]!r} instead of its result") from error
    if not isinstance(value, dict):
        raise RlzError(f"a measurement printed {lines[-1][:200]!r} instead of its result")
    return value
