"""Memory of the learner's device."""

from __future__ import annotations

import torch


def out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out. Torch has an exception for tensors on cards only; others are told by their words."""
    words = ("DefaultCPUAllocator", "out of memory", "ALLOC_FAILED")
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(word in str(error) for word in words)
