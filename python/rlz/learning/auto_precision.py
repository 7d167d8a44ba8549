"""What `--precision auto` stands for, without torch: the learner and those who plan for it must agree."""

from collections.abc import Iterable

AMPERE = (8, 0)
"""Least compute capability with tf32 and bf16 in hardware."""


def auto_precision(capabilities: Iterable[tuple[int, int] | None], *, serial: bool = False) -> str:
    """float32, with products in tf32 where all devices have it; in serial mode plain float32.

    `capabilities`: compute capability of each device, None for a CPU.
    """
    return "fp32" if serial or any(found is None or found < AMPERE for found in capabilities) else "tf32"
