"""Memory of the learner's device: what updates and their graphs will take of it, and whether it ran out."""

from __future__ import annotations

import torch

WORKSPACE_BYTES = 32 << 20
"""cuBLAS keeps so much for each stream on Hopper (torch's default; 8 MiB before), and each graph has a stream."""

CONTEXT_BYTES = 512 << 20
"""CUDA's own memory for a process on a card: the compiler's helper is a second one."""

HELPER_BYTES = CONTEXT_BYTES + (512 << 20)
"""With the kernels that it loads and the batches that it tries them on."""

CPU_SHARE = 8
"""Batches may take one part in so many of the memory that is free on a CPU when the run starts."""


def engine_bytes(batch_size: int, work: int, graphs: int) -> int:
    """Memory of one engine on a card: an update's temporaries once for itself and once in the pool of each graph.

    `work`: bytes that an update takes for each row of its batch.
    """
    return (1 + graphs) * batch_size * work + graphs * WORKSPACE_BYTES


def largest_batch(free: int, work: int, *, card: bool, graphs: int, sizes: int) -> int:
    """Rows of the largest batch that is worth a try with so much memory.

    Parameters
    ----------
    work : as of `engine_bytes`.
    graphs : of each engine on a card.
    sizes : batch sizes that may be in use. Their engines are kept, and each has half the rows of the next.
    """
    if not card:
        return free // CPU_SHARE // work
    return max(0, free - sizes * graphs * WORKSPACE_BYTES) // (2 * (1 + graphs) * work)


def out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out. Torch has an exception for tensors on cards only; others are told by their words."""
    words = ("DefaultCPUAllocator", "out of memory", "ALLOC_FAILED")
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(word in str(error) for word in words)
