"""How much memory this process may have: the machine's, its address space's, and that of every group it is in.

A container's limit is noticed by nobody otherwise: there the kernel kills a process without a word.
"""

from dataclasses import dataclass
from pathlib import Path

MIB = 1024 * 1024


@dataclass(frozen=True)
class Limit:
    """Memory that is left under one of the limits of this process.

    Attributes
    ----------
    name : the limit, for people.
    available : bytes that may still be taken.
    """

    name: str
    available: int


def limits(root: Path = Path("/")) -> list[Limit]:
    """Every memory limit of this process that can be seen, the tightest first.

    Free memory of the machine, the cgroup (v1 or v2) of this process and all its ancestors, and RLIMIT_AS. Page cache
    that the kernel can drop does not count as used.

    Parameters
    ----------
    root : where /proc and the cgroup mounts are looked for (tests).
    """
    from rlz import _native  # here, because help and printing work without it

    return [Limit(name, available) for available, name in _native.memory_limits(root)]


def in_words(nbytes: int) -> str:
    """A size for people."""
    return f"{nbytes / 1024**3:.1f} GiB" if nbytes >= 1024**3 else f"{nbytes / MIB:.0f} MiB"
