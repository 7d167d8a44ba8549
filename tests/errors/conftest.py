"""Shared by the tests of errors: the command line in this process, and environments that misbehave."""

import importlib
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from rlz.cli import main

HERE = Path(__file__).parent
for folder in (HERE, HERE.parent / "workers"):
    sys.path.insert(0, str(folder))


class Result(NamedTuple):
    """Exit status and output of a command."""

    status: int
    out: str
    err: str


Rlz = Callable[..., Result]


@pytest.fixture
def rlz(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Rlz:
    """Run a command line in an empty folder; no traceback of rlz may show in what it says."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RLZ_TRACEBACK", raising=False)

    def run(*arguments: str) -> Result:
        capfd.readouterr()
        status = main(arguments)
        result = Result(status, *capfd.readouterr())
        for place in ("rlz/runtime/", "rlz/workers/", "rlz/cli/", "rlz/envs/", "This is a bug in rlz"):
            assert place not in result.err, result.err
        return result

    return run


@pytest.fixture
def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give every run the fake learner."""

    for name in ("train", "resume"):
        module = importlib.import_module(f"rlz.runtime.{name}")
        function = partial(getattr(module, name), workers={"learner": "fake_learner:Learner"})
        monkeypatch.setattr(module, name, function)
    monkeypatch.delenv("RLZ_FAKE_LEARNER", raising=False)


def serial(env: str, *options: str) -> list[str]:
    """A short run in this process."""
    return [
        *("train", "sac", "--env", env, "--mode", "serial", "--name", "run", "-n", "60", "--learning-starts", "50"),
        *("--eval-every", "0", "--buffer-size", "1000", "--hidden", "8", "--batch-size", "8", *options),
    ]
