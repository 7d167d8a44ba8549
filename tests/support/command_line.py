"""The command line in this process."""

from collections.abc import Callable
from typing import NamedTuple


class Result(NamedTuple):
    """Exit status and output of a command."""

    status: int
    out: str
    err: str


Rlz = Callable[..., Result]


def serial(env: str, *options: str) -> list[str]:
    """A short run in this process."""
    return [
        *("train", "sac", "--env", env, "--mode", "serial", "--name", "run", "-n", "60", "--learning-starts", "50"),
        *("--eval-every", "0", "--buffer-size", "1000", "--hidden", "8", "--batch-size", "8", *options),
    ]
