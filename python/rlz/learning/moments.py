"""Running mean and variance, as in Gymnasium's wrappers (Chan et al. 1979; Welford 1962 for one value at a time)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

FIRST_COUNT = 1e-4
"""Weight of the mean 0 and the variance 1 that Gymnasium begins with."""

Floats = NDArray[np.float64]


class Moments:
    """Of vectors from several sources, kept apart for each: then their order among one another changes no bit.

    Parameters
    ----------
    sources, size : how many, and numbers of a vector.
    one_by_one : values are added one after the other, so that it does not matter how many come at a time either.
    """

    def __init__(self, sources: int, size: int, *, one_by_one: bool) -> None:
        self.count: Floats = np.zeros(sources)
        self.mean: Floats = np.zeros((sources, size))
        self.square: Floats = np.zeros((sources, size))  # summed squares of the distances from the mean
        self._one_by_one = one_by_one

    def add(self, source: int, values: Floats) -> None:
        """Take values [n, size]."""
        if not self._one_by_one:
            if len(values):
                mean = values.mean(0)
                self._merge(source, float(len(values)), mean, np.square(values - mean).sum(0))
            return
        for value in values:
            self.count[source] += 1.0
            distance = value - self.mean[source]
            self.mean[source] += distance / self.count[source]
            self.square[source] += distance * (value - self.mean[source])

    def total(self) -> tuple[Floats, Floats]:
        """Mean and variance [size] of everything."""
        count = FIRST_COUNT + self.count.sum()
        mean = self.count @ self.mean / count
        square = FIRST_COUNT * (1.0 + np.square(mean)) + self.square.sum(0)
        square += self.count @ np.square(self.mean - mean)
        return mean, square / count

    def tensors(self) -> dict[str, Floats]:
        """Its arrays by name."""
        return {"count": self.count, "mean": self.mean, "square": self.square}

    def load(self, tensors: Mapping[str, Floats]) -> None:
        """Take arrays of `tensors`; sources that are no more are added to the first."""
        sources = len(self.count)
        for name, array in self.tensors().items():
            array[: len(tensors[name])] = tensors[name][:sources]
        for count, mean, square in zip(*(tensors[name][sources:] for name in self.tensors()), strict=True):
            if count > 0.0:
                self._merge(0, count, mean, square)

    def _merge(self, source: int, count: float, mean: Floats, square: Floats) -> None:
        before, distance = self.count[source], mean - self.mean[source]
        self.count[source] = total = before + count
        self.mean[source] += distance * count / total
        self.square[source] += square + np.square(distance) * before * count / total
