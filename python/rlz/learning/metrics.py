"""Means of an algorithm's metrics over the updates of some time, summed on the device that makes the updates."""

from __future__ import annotations

import torch
from torch import Tensor


class Means:
    """Sums since the last `take`. NaN in an update: it did not measure this.

    Parameters
    ----------
    like : metrics of an update, for their number, dtype and device.
    """

    def __init__(self, like: Tensor) -> None:
        self.sums = torch.zeros(2, *like.shape, dtype=like.dtype, device=like.device)
        """Of the metrics, and how often each was measured; they stay where they are, so a graph may add to them."""

    def add(self, metrics: Tensor) -> None:
        """Take note of metrics [updates, names]; does not wait for the device."""
        self.sums[0] += metrics.nan_to_num(0.0).sum(0)
        self.sums[1] += (~metrics.isnan()).sum(0)

    def take(self) -> Tensor:
        """Mean of each metric [names] on the CPU, NaN for what no update has measured. Waits for the device."""
        sums = self.sums.cpu().clone()
        self.sums.zero_()
        return sums[0] / sums[1]
