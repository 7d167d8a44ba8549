"""Shared by the tests of the runtime: fake environments and a fake learner, also for worker processes."""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from training import Training

WORKERS = Path(__file__).parents[1] / "workers"
sys.path.insert(0, str(WORKERS))
sys.path.append(str(Path(__file__).parents[1] / "planning"))  # machines that are not here


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let worker processes find the fake learner and the fake environments."""
    found = os.pathsep.join([str(WORKERS), *filter(None, [os.environ.get("PYTHONPATH")])])
    monkeypatch.setenv("PYTHONPATH", found)
    monkeypatch.delenv("RLZ_FAKE_LEARNER", raising=False)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Training]]:
    started: list[Training] = []

    def begin(**values: Any) -> Training:
        started.append(Training(tmp_path, **values))
        return started[-1]

    yield begin
    for training in started:
        training.process.kill()
        training.process.wait()
