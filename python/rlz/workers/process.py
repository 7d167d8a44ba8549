"""One worker process as the controller holds it: start, proof of death, last words, end of its whole process group."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO

from rlz.placement import Place
from rlz.system.descendants import WORKER
from rlz.workers.base import Report, WorkerSpec

LOG_TAIL = 2000
"""Characters of a worker's log that are shown when it was killed."""


class WorkerProcess:
    """A started worker.

    The worker leads its own process group, so a Ctrl-C in the terminal does not reach it, and everything that it starts
    (simulators) ends with it. Started from the main thread only: the kernel ties "my parent died" to the thread.

    Parameters
    ----------
    place : its place in the run.
    spec : what it is told; the descriptors are filled in here.
    log : file for its stdout and stderr; appended to.
    environment : variables on top of the controller's.
    """

    def __init__(self, place: Place, spec: WorkerSpec, log: Path, environment: Mapping[str, str] | None = None) -> None:
        self.place = place
        self.spec = spec
        self.log = log
        self.ended = False
        self._error_fd = os.memfd_create("rlz-report", os.MFD_CLOEXEC)
        spec_fd = os.memfd_create("rlz-spec", os.MFD_CLOEXEC)
        try:
            spec = replace(spec, error_fd=self._error_fd)
            os.pwrite(spec_fd, spec.to_json().encode(), 0)
            inherited = [spec_fd, self._error_fd, *(fd for fds in spec.fds.values() for fd in fds)]
            if spec.notice_fd >= 0:
                inherited.append(spec.notice_fd)
            variables = {**(environment or {}), WORKER: place.name}
            self._popen = _start(place.node.worker, spec_fd, inherited, log, variables)
        except BaseException:
            os.close(self._error_fd)
            raise
        finally:
            os.close(spec_fd)
        self.pidfd = os.pidfd_open(self._popen.pid)
        self.started_at = time.monotonic()

    @property
    def pid(self) -> int:
        """Process id, also of its process group."""
        return self._popen.pid

    def signal(self, number: int) -> None:
        """Send a signal to the worker alone."""
        if not self.ended:
            signal.pidfd_send_signal(self.pidfd, number)

    def kill(self) -> None:
        """Kill the worker and everything in its process group; `reap` still has to be called."""
        if not self.ended:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def reap(self) -> "Ending":
        """Wait for the end of the worker, kill what is left of its group, collect it. Once, when `pidfd` is readable.

        The group is killed before the worker is waited for: until then its id cannot be given to another process.
        """
        os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | os.WNOWAIT)
        self.kill()
        status = self._popen.wait()
        self.ended = True
        os.close(self.pidfd)
        report = Report.read(self._error_fd)
        os.close(self._error_fd)
        return Ending(self.place.name, status, report, self.log)


class Ending:
    """How a worker ended.

    Attributes
    ----------
    status : exit status, negative for a signal.
    report : its last words, if any.
    """

    def __init__(self, name: str, status: int, report: Report | None, log: Path) -> None:
        self.name = name
        self.status = status
        self.report = report
        self._log = log

    @property
    def done(self) -> bool:
        """The worker finished its work."""
        return self.status == 0 and self.report is not None and self.report.done

    @property
    def killed(self) -> bool:
        """The worker was killed by a signal, and did not report an error before."""
        return self.status < 0 and (self.report is None or not self.report.error)

    def describe(self) -> str:
        """Say in one or more lines, for people, what happened."""
        if self.report is not None and self.report.error:
            parts = [f"{self.name}: {self.report.error}"]
            if self.report.traceback:
                parts.append(self.report.traceback.rstrip())
            return "\n".join(parts)
        if self.status < 0:
            return f"{self.name} was killed by {_signal_name(-self.status)}{self._reason()}"
        if self.done:
            return f"{self.name} is done"
        return (
            f"{self.name} exited with status {self.status} before its work was done, without a reason: something in it "
            f"called exit (an environment or its simulator?). Its log: {self._log}{self.log_tail()}"
        )

    def _reason(self) -> str:
        if -self.status == signal.SIGKILL:
            return (
                " (kill -9). If nobody did that, it was probably the kernel for lack of memory: see `dmesg`, and use a "
                "smaller --buffer-size or fewer --samplers"
            )
        if -self.status in (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE):
            return f": a crash in native code. Its log: {self._log}{self.log_tail()}"
        return ""

    def log_tail(self) -> str:
        """Return the end of the worker's log, on lines of its own."""
        try:
            text = self._log.read_text(errors="replace")[-LOG_TAIL:].strip()
        except OSError:
            return ""
        return f"\n{text}" if text else ""


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def command_of(path: str, spec_fd: int) -> list[str]:
    """Command line of a worker, by the path of its class."""
    # -P: a file in the current folder must not stand in for a module of the standard library.
    command = [sys.executable, "-P", "-m", "rlz.workers", path]
    return [*command, "--spec-fd", str(spec_fd), "--parent", str(os.getpid())]


def _start(
    path: str, spec_fd: int, inherited: Sequence[int], log: Path, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    with _open_log(log) as output:
        return subprocess.Popen(
            command_of(path, spec_fd),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=sorted(set(inherited)),
            process_group=0,
            env={**os.environ, **environment},
        )


def _open_log(log: Path) -> IO[bytes]:
    fd = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    return os.fdopen(fd, "wb")


def single_threaded() -> dict[str, str]:
    """Environment of a worker that steps environments: numpy's thread pools would only take memory and time from it."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    return {name: "1" for name in names if name not in os.environ}


def wait_until_dead(processes: Sequence[WorkerProcess], timeout: float) -> bool:
    """Wait until every process has ended (without collecting it); False when time runs out."""
    import select

    poll = select.poll()
    left = {process.pidfd for process in processes if not process.ended}
    for fd in left:
        poll.register(fd, select.POLLIN)
    deadline = time.monotonic() + timeout
    while left:
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            return False
        for fd, _ in poll.poll(remaining * 1000):
            poll.unregister(fd)
            left.discard(fd)
    return True
