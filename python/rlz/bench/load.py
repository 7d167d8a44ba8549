"""What other programs take of the machine while something is measured."""

import resource
import time
from dataclasses import dataclass

import psutil

MOST = 0.1
"""Cores that others may take, by which nobody counts as disturbed; the kernel's own work is about 0.02."""


@dataclass(frozen=True)
class Load:
    """Cores in use, mean over a measurement.

    Attributes
    ----------
    others : by processes that do not belong to it.
    stolen : by other guests of the host.
    """

    others: float
    stolen: float = 0.0

    @property
    def disturbed(self) -> bool:
        """Whether it is too much to count the measurement as undisturbed."""
        return self.others + self.stolen > MOST


class Watch:
    """Begins to watch when it is made. Its own: this process, and children that have ended when it is read."""

    def __init__(self) -> None:
        self._began = self._now()

    def read(self) -> Load:
        """What others took since then."""
        (at, busy, stolen, own), (at_first, busy_first, stolen_first, own_first) = self._now(), self._began
        seconds = max(at - at_first, 1e-3)
        others = (busy - busy_first) - (own - own_first)
        return Load(max(0.0, others / seconds), max(0.0, (stolen - stolen_first) / seconds))

    @staticmethod
    def _now() -> tuple[float, float, float, float]:
        times = psutil.cpu_times()
        busy = sum(getattr(times, name, 0.0) for name in ("user", "nice", "system", "irq", "softirq"))
        own = 0.0
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
            usage = resource.getrusage(who)
            own += usage.ru_utime + usage.ru_stime
        return time.monotonic(), busy, getattr(times, "steal", 0.0), own


def look(seconds: float = 1.0) -> Load:
    """What others take now, while nothing is measured."""
    watch = Watch()
    time.sleep(seconds)
    return watch.read()
