"""Shared by the tests of the runtime."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.training import Training


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
