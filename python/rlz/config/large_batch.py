"""Learning rate of large batches."""

import math

REFERENCE_BATCH = 256
"""Batch size of the algorithms' default learning rates."""

DEFAULT_CAP = 4.0
"""Cap of the factor for a batch size that rlz chooses: that of 4,096 rows."""


def learning_rate_factor(batch_size: int, cap: float) -> float:
    """min(sqrt(batch_size / 256), cap): the noise of a gradient falls with the root of the batch (arXiv 1404.5997).

    It multiplies the learning rates of actor, critics and temperature. The step tau of the target networks stays.
    """
    return min(math.sqrt(batch_size / REFERENCE_BATCH), cap)
