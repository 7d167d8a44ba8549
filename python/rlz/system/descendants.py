"""Processes that environments start: none of them outlives what it was started for."""

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

WORKER = "RLZ_WORKER"
"""Variable of a worker's environment, which all that it starts inherit: the worker's name."""

PATIENCE_S = 1.0
"""Time for a process to end by itself after SIGTERM."""

_SET_CHILD_SUBREAPER, _GET_CHILD_SUBREAPER = 36, 37

_HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver", "wandb")
"""In command lines of processes that belong to libraries of this process, and end with it."""


@contextmanager
def orphans_come_here() -> Iterator[None]:
    """Become the parent of descendants whose own parent ends, so that they can still be found."""
    libc, before = ctypes.CDLL(None), ctypes.c_int(0)
    libc.prctl(_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    libc.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        libc.prctl(_SET_CHILD_SUBREAPER, before.value, 0, 0, 0)


@contextmanager
def ended_afterwards() -> Iterator[None]:
    """End, after the context, what this process started within it and left: with SIGTERM, then with SIGKILL."""
    with orphans_come_here():
        before = set(descendants())
        try:
            yield
        finally:
            left = [pid for pid in descendants() if pid not in before and not _is_helper(pid)]
            if left:
                end(left, signal.SIGTERM, PATIENCE_S)
                # What it started itself comes to light at its end.
                end([pid for pid in descendants() if pid not in before and not _is_helper(pid)])


def kill_orphans_of(worker: str, but: Collection[int]) -> None:
    """Kill what a dead worker left: processes that had left its process group before that was killed.

    Parameters
    ----------
    worker : its name.
    but : children of this process to leave alone.
    """
    orphans = [pid for pid in children() if pid not in but and _worker_of(pid) == worker]
    end([pid for orphan in orphans for pid in (orphan, *descendants(orphan))])


def end(pids: Collection[int], number: int = signal.SIGKILL, timeout: float = 1.0) -> None:
    """Send a signal to processes, and wait for their end, at most `timeout` seconds; children are collected."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
    until = time.monotonic() + timeout
    left = [pid for pid in pids if not _has_ended(pid)]
    while left and time.monotonic() < until:
        time.sleep(0.01)
        left = [pid for pid in left if not _has_ended(pid)]


def children(pid: int | None = None) -> list[int]:
    """Process ids of the children of a process (default: this one)."""
    try:
        lists = [path.read_text() for path in Path(f"/proc/{pid or 'self'}/task").glob("*/children")]
    except OSError:
        return []  # it has ended
    if lists:
        return [int(word) for text in lists for word in text.split()]
    import psutil  # a kernel without those lists

    with contextlib.suppress(psutil.Error):
        return [child.pid for child in psutil.Process(pid).children()]
    return []


def descendants(pid: int | None = None) -> list[int]:
    """Process ids of all below a process (default: this one)."""
    found = children(pid)
    return found + [further for child in found for further in descendants(child)]


def collect(pids: Collection[int]) -> None:
    """Collect those of the given children that have ended."""
    for pid in pids:
        _has_ended(pid)


def _has_ended(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return _state(pid) in ("Z", "")  # not ours to collect, or collected


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def _worker_of(pid: int) -> str | None:
    prefix = f"{WORKER}=".encode()
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    return next((os.fsdecode(text[len(prefix) :]) for text in variables if text.startswith(prefix)), None)


def _is_helper(pid: int) -> bool:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return False
    return any(name in command for name in _HELPERS)
