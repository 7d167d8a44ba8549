"""Shared by the tests of errors: the command line in this process, and a learner without torch."""

import importlib
from functools import partial
from pathlib import Path

import pytest

from rlz.cli import main
from support.command_line import Result, Rlz


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
        function = partial(getattr(module, name), workers={"learner": "support.fake_learner:Learner"})
        monkeypatch.setattr(module, name, function)
