"""The rows of a replay buffer as a `Normalizer` sees them: each one once, in the order of its environment."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlz._native import FLAG_TERMINATED, FLAG_TRUNCATED, Replay
from rlz.dtypes import numpy_dtype
from rlz.learning.normalizer import Normalizer

CHUNK = 256
"""Rows that are copied at a time."""


class SeenRows:
    """Follows the buffer from the newest row that it has now.

    Parameters
    ----------
    replay : the buffer.
    normalizer : gets the rows.
    n_step : with more than one step a row's next observation is steps away, so only observations that were acted on
        count then.
    """

    def __init__(self, replay: Replay, normalizer: Normalizer, n_step: int) -> None:
        self._replay = replay
        self._normalizer = normalizer
        self._single = n_step == 1
        self._tail = replay.tail()
        for lane, rows in enumerate(replay.committed()):  # those of a resumed run were seen before
            self._tail.seek(lane, rows + 1)
        self._rows = np.zeros((CHUNK, replay.stride), np.uint8)
        self._meta, self._tickets = np.zeros((2, CHUNK), np.uint64)
        self._fields = {name: self._view(dtype, shape, offset) for name, dtype, shape, offset in replay.fields}

    def follow(self) -> None:
        """Take the rows that were committed since the last call, and use the statistics with them."""
        came = False
        for lane, (next_, committed) in enumerate(zip(self._tail.cursors, self._replay.committed(), strict=True)):
            if next_ <= committed:
                came = True
                while self._take(lane) == CHUNK:
                    pass
        if came:
            self._normalizer.refresh()

    def close(self) -> None:
        """Let go of the buffer."""
        self._tail.close()

    def _take(self, lane: int) -> int:
        count = self._tail.read(lane, self._rows, self._meta, self._tickets)
        if count:
            steps = {name: values[:count] for name, values in self._fields.items()}
            steps["reward"] = steps["reward"][:, 0]
            for name, flag in (("terminated", FLAG_TERMINATED), ("truncated", FLAG_TRUNCATED)):
                steps[name] = (self._meta[:count] & np.uint64(flag)) != 0
            self._normalizer.see(lane, steps, single=self._single)
        return count

    def _view(self, dtype: str, shape: tuple[int, ...], offset: int) -> NDArray[Any]:
        kind = numpy_dtype(dtype)
        size = math.prod(shape)
        return np.ndarray((CHUNK, size), kind, self._rows.data, offset, (self._rows.strides[0], kind.itemsize))
