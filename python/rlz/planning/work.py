"""What one update has to do, counted while it is done once: floating-point operations of products, bytes of state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

    from rlz.algorithms.base import Algorithm, Batch


class Work(NamedTuple):
    """Of one update, a mean over the algorithm's cycle. `state_bytes`: all that it keeps, read and written once."""

    flops: float
    state_bytes: float


def work_of_update(algorithm: Algorithm[Any], state: Any, batch: Batch, noise: Tensor, learning_rate: Tensor) -> Work:
    """Count the operations in matrix products of an update on the CPU. The state stays as it is."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        for kind in algorithm.cycle:
            algorithm.update(state, batch, noise, learning_rate, kind)
    moved = sum(tensor.numel() * tensor.element_size() for tensor in state)
    return Work(counter.get_total_flops() / len(algorithm.cycle), 2.0 * moved)
