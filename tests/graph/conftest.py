"""Shared by the tests of graphs: fake environments and a fake learner, also for worker processes."""

import os
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
for folder in (TESTS / "workers", TESTS / "runtime"):
    sys.path.append(str(folder))


@pytest.fixture(autouse=True)
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let worker processes find the fake learner and the fake environments."""
    found = os.pathsep.join([str(TESTS / "workers"), *filter(None, [os.environ.get("PYTHONPATH")])])
    monkeypatch.setenv("PYTHONPATH", found)
    monkeypatch.delenv("RLZ_FAKE_LEARNER", raising=False)
