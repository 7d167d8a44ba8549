"""How many cores this process can keep busy, and how many of them are worth trying."""

import os
from pathlib import Path

from rlz.system.cgroup import cpu_quota
from rlz.system.kernel_files import lines

_TICKS = os.sysconf("SC_CLK_TCK")


def usable_cores(allowed: int, quota: float | None) -> int:
    """Cores that can be kept busy: a quota of 1.5 keeps one core busy without being throttled."""
    return max(1, allowed if quota is None else min(allowed, int(quota)))


def cores() -> int:
    """Cores that this process can keep busy, by its affinity mask and its CPU quota."""
    return usable_cores(len(os.sched_getaffinity(0)), cpu_quota())


def ladder(most: int) -> list[int]:
    """Numbers of threads or processes worth trying: powers of two below the most, and the most itself."""
    return [*(2**power for power in range((most - 1).bit_length())), most]


def busy_s(proc: Path, cores: set[int]) -> float:
    """Seconds for which some cores were not idle (proc_stat(5): user, nice, system, irq, softirq, steal)."""
    busy = 0.0
    for line in lines(proc / "stat"):
        name, *fields = line.split()
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in cores and len(fields) >= 8:
            busy += sum(int(fields[index]) for index in (0, 1, 2, 5, 6, 7)) / _TICKS
    return busy
