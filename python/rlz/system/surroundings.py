"""What happens around a run on its machine: busy cores, pressure, pauses by a quota, heat and clock, at one instant.

Everything is read from the kernel's files; nothing is measured. What a machine does not tell counts as 0 or None.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from rlz.system import cgroup
from rlz.system.detect import Roots
from rlz.system.kernel_files import lines

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Surroundings:
    """Counters and the clock at one instant; times in seconds.

    Attributes
    ----------
    at : of the reading.
    busy_s : time for which the cores were not idle, their sum.
    pressure_s : time for which somebody waited for a core.
    throttled_s, throttled : time for which a quota paused this container, and how often.
    hot : how often cores were slowed down because of their temperature, summed over them.
    clock_mhz, most_mhz : clock of the fastest core, and what it can be at most; None: not told (virtual machines).
    """

    at: float
    busy_s: float
    pressure_s: float
    throttled_s: float
    throttled: int
    hot: int
    clock_mhz: float | None
    most_mhz: float | None

    @classmethod
    def read(cls, roots: Roots, cores: set[int], now: float) -> "Surroundings":
        """Look at the cores that this process may use."""
        clock, most = _clock_mhz(roots.sys, cores)
        pauses, paused = cgroup.throttled(roots.proc, roots.cgroup)
        return cls(
            at=now,
            busy_s=busy_s(roots.proc, cores),
            pressure_s=_pressure_s(roots.proc),
            throttled_s=paused,
            throttled=pauses,
            hot=_hot(roots.sys, cores),
            clock_mhz=clock,
            most_mhz=most,
        )


def busy_s(proc: Path, cores: set[int]) -> float:
    """Seconds for which some cores were not idle (proc_stat(5): user, nice, system, irq, softirq, steal)."""
    busy = 0.0
    for line in lines(proc / "stat"):
        name, *fields = line.split()
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in cores and len(fields) >= 8:
            busy += sum(int(fields[index]) for index in (0, 1, 2, 5, 6, 7)) / _TICKS
    return busy


def _pressure_s(proc: Path) -> float:
    """Seconds for which at least one process waited for a core; 0 where the kernel does not count them."""
    for line in lines(proc / "pressure" / "cpu"):
        if line.startswith("some "):
            return int(line.rpartition("total=")[2] or 0) / 1e6
    return 0.0


def _hot(sys: Path, cores: set[int]) -> int:
    """How often heat has slowed cores down, their sum: by itself each, and together with all of its package."""
    folders = [sys / f"devices/system/cpu/cpu{core}/thermal_throttle" for core in cores]
    return sum(_number(folder / f"{kind}_throttle_count") or 0 for folder in folders for kind in ("core", "package"))


def _clock_mhz(sys: Path, cores: set[int]) -> tuple[float | None, float | None]:
    """Clock of the fastest core, now and at most. The fastest, since idle cores lower theirs with good reason."""
    found = []
    for core in cores:
        folder = sys / f"devices/system/cpu/cpu{core}/cpufreq"
        now, most = _number(folder / "scaling_cur_freq"), _number(folder / "cpuinfo_max_freq")
        if now and most:
            found.append((now / 1000, most / 1000))
    return max(found, default=(None, None), key=lambda pair: pair[0] / pair[1])


def _number(path: Path) -> int | None:
    text = "".join(lines(path)).strip()
    return int(text) if text.isdigit() else None
