"""How much memory this process may have: the machine's, its address space's, and that of every group it is in.

A container's limit is noticed by nobody otherwise: there the kernel kills a process without a word.
"""

import resource
from dataclasses import dataclass
from pathlib import Path

from rlz.system import cgroup
from rlz.system.kernel_files import lines

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
    found = [*_machine(root), *_cgroups(root), *_address_space(root)]
    return sorted(found, key=lambda limit: limit.available)


def _machine(root: Path) -> list[Limit]:
    for line in lines(root / "proc/meminfo"):
        if line.startswith("MemAvailable:"):
            return [Limit("free memory of this machine (MemAvailable)", int(line.split()[1]) * 1024)]
    return []


def _address_space(root: Path) -> list[Limit]:
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft == resource.RLIM_INFINITY:
        return []
    used = 0
    for line in lines(root / "proc/self/status"):
        if line.startswith("VmSize:"):
            used = int(line.split()[1]) * 1024
    return [Limit("limit of the address space (ulimit -v)", max(0, soft - used))]


def _cgroups(root: Path) -> list[Limit]:
    found = []
    for folder in cgroup.folders("memory", root / "proc", root / "sys/fs/cgroup"):
        most, used = cgroup.memory_limit(folder), cgroup.memory_used(folder)
        if most is not None and used is not None:
            name = f"memory limit of the container or cgroup (/{folder.relative_to(root)})"
            found.append(Limit(name, max(0, most - used)))
    return found


def in_words(nbytes: int) -> str:
    """A size for people."""
    return f"{nbytes / 1024**3:.1f} GiB" if nbytes >= 1024**3 else f"{nbytes / MIB:.0f} MiB"
