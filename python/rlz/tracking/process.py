"""Memory and CPU time of a process, straight from /proc: a few microseconds, no waiting, no error when it is gone."""

import os
import time
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_PROC = Path("/proc")


@dataclass(frozen=True)
class ProcessUsage:
    """Memory in bytes, CPU time in seconds.

    `anonymous` is RssAnon: what the process has allocated. `file` is RssFile: pages of libraries, which the kernel
    counts in every process that maps them, and takes back when it likes. `shared` is RssShmem: the pages of the
    streams this process has touched.
    """

    anonymous: int
    file: int
    shared: int
    cpu_s: float
    threads: int

    @property
    def private(self) -> int:
        """Everything resident but shared memory."""
        return self.anonymous + self.file


def read_usage(pid: int, proc: Path = _PROC) -> ProcessUsage | None:
    """Usage of a process; None when it is gone or a zombie."""
    try:
        status = _read(proc, pid, "status")
        stat = _read(proc, pid, "stat")
    except OSError:
        return None
    kib = {"RssAnon": 0, "RssFile": 0, "RssShmem": 0}
    resident = False
    for line in status.splitlines():
        key, _, value = line.partition(":")
        if key in kib:
            kib[key] = int(value.split()[0])
            resident = True
    if not resident:
        return None
    # The command name may hold blanks and brackets; after its last bracket there are numbers only (proc_pid_stat(5)).
    fields = stat.rpartition(")")[2].split()
    return ProcessUsage(
        anonymous=kib["RssAnon"] * 1024,
        file=kib["RssFile"] * 1024,
        shared=kib["RssShmem"] * 1024,
        cpu_s=(int(fields[11]) + int(fields[12])) / _TICKS,
        threads=int(fields[17]),
    )


def read_state(pid: int, proc: Path = _PROC) -> str:
    """State of a process as one letter (proc_pid_stat(5): R, S, D, T, t, Z, ...); "" when it is gone."""
    try:
        return _read(proc, pid, "stat").rpartition(")")[2].split()[0]
    except OSError:
        return ""


def started_at(pid: int = 0) -> float:
    """When a process (default: this one) started, on the scale of `time.monotonic()`; 10 ms resolution."""
    fields = _read(_PROC, pid or "self", "stat").rpartition(")")[2].split()
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / _TICKS
    return time.monotonic() - age


def _read(proc: Path, pid: int | str, name: str) -> str:
    # Read every second for days: a Path would intern the pid anew each time, and the interpreter's table of interned
    # strings takes a place for each, until it doubles (1 MiB at once, half an hour into a run).
    with open(f"{proc}/{pid}/{name}") as file:  # noqa: PTH123
        return file.read()
