"""Shared by the tests of the runtime: fake environments and a fake learner, also for worker processes."""

import os
import sys
from pathlib import Path

import pytest

WORKERS = Path(__file__).parents[1] / "workers"
sys.path.insert(0, str(WORKERS))


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let worker processes find the fake learner and the fake environments."""
    found = os.pathsep.join([str(WORKERS), *filter(None, [os.environ.get("PYTHONPATH")])])
    monkeypatch.setenv("PYTHONPATH", found)
    monkeypatch.delenv("RLZ_FAKE_LEARNER", raising=False)
