"""What every worker shares: its spec, its life from start to exit, how it reports an error, how it waits.

A worker process inherits three descriptors from the controller: the spec (a memfd holding JSON), a memfd for its last
words (a `Report`), and a pipe for notices. It exits with status 0 after `Report(done=True)`, or with `EXIT_ERROR` after
a Python exception. Any other end is its death, and the controller treats it as such.
"""

import faulthandler
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from rlz.errors import RlzError
from rlz.system.notices import notice, notices_by

if TYPE_CHECKING:
    from rlz.answers import Answers
    from rlz.config import RunConfig
    from rlz.envs.spaces import EnvSpec
    from rlz.graph import Node
    from rlz.transport import Streams
    from rlz.transport.stats import Stat, StatsRow, Waiting

EXIT_ERROR = 70
"""Exit status of a worker that ended with a Python exception (EX_SOFTWARE)."""


POLL_S = 0.2
"""Longest wait of a worker between two looks at the run's state."""

FLUSH_EVERY_S = 0.1
"""Seconds between two writes of a worker's running counts to the stats board."""


def polled(timeout: float | None) -> float:
    """Seconds of a wait that may take `timeout` (None: any time), up to the next look at the run's state."""
    return POLL_S if timeout is None else min(timeout, POLL_S)


@dataclass(frozen=True, kw_only=True)
class WorkerSpec:
    """Everything a worker is told at its start; travels as JSON.

    Attributes
    ----------
    role : of its node in the graph.
    name : name for people, for instance "sampler-0"; also the name of its log.
    index : index among the workers of the role; selects the streams of random numbers.
    worker_id : id of this incarnation on all streams (1..1022).
    slot : row on the stats board.
    incarnation : how often this worker was started before; selects the streams of random numbers.
    parent_pid : the controller; the worker ends when it does.
    run_dir : run folder (absolute).
    config, env_spec, asked, graph, placement : as JSON values; `asked` is what the algorithm has answered.
    fds : descriptors of the streams, by name.
    lanes : lanes (= environment slots) that this worker writes.
    cores : that it keeps to; empty: those of the controller.
    error_fd, notice_fd : see the module's text; -1 in serial mode.
    sys_path : the controller's module search path, so that a user's environment is found by both.
    resume : checkpoint folder to go on from, None for a fresh start.
    """

    role: str
    name: str
    index: int
    worker_id: int
    slot: int
    incarnation: int = 0
    parent_pid: int
    run_dir: str
    config: dict[str, Any]
    env_spec: Any
    asked: dict[str, Any]
    graph: dict[str, Any]
    placement: dict[str, Any]
    fds: dict[str, list[int]] = field(default_factory=dict)
    lanes: tuple[int, ...] = ()
    cores: tuple[int, ...] = ()
    error_fd: int = -1
    notice_fd: int = -1
    sys_path: tuple[str, ...] = ()
    resume: str | None = None

    def to_json(self) -> str:
        """Return the spec as JSON."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> "WorkerSpec":
        """Read a spec back."""
        values = json.loads(text)
        values["lanes"] = tuple(values["lanes"])
        values["cores"] = tuple(values["cores"])
        values["sys_path"] = tuple(values["sys_path"])
        return WorkerSpec(**values)

    def run_config(self) -> "RunConfig":
        """Return the run's configuration."""
        from rlz.config import run_config

        return run_config(self.config)

    def environment(self) -> "EnvSpec":
        """Return the description of the environment's spaces."""
        from rlz.envs.spaces import EnvSpec

        return EnvSpec.from_json(self.env_spec)

    def answers(self) -> "Answers":
        """Return what the algorithm has answered: its data, policy and metrics."""
        from rlz.answers import Answers

        return Answers.from_json(self.asked)

    def node(self) -> "Node":
        """Return the worker's node of the graph."""
        from rlz.graph import Graph

        return Graph.from_json(self.graph).node(self.role)

    def attach(self) -> "Streams":
        """Map the worker's streams in its process."""
        from rlz.graph import Graph
        from rlz.placement import Placement
        from rlz.transport import Streams

        graph = Graph.from_json(self.graph)
        return Streams.attach(self.fds, graph, Placement.from_json(self.placement), graph.node(self.role))


class Worker(Protocol):
    """A worker of the graph: made with its spec and its streams. One class serves both modes: a process drives it with
    `step(None)`, workers that take turns in one process are driven with `step(0)`.

    One whose state a checkpoint keeps derives from `Stateful`.
    """

    def start(self) -> None:
        """Do what must happen before the first step."""

    def step(self, timeout: float | None) -> bool:
        """Do a small piece of work, waiting at most `timeout` seconds for it (None: no limit).

        Returns False when the worker has nothing left to do in this run.
        """

    def close(self) -> None:
        """Give back what the worker holds."""


@runtime_checkable
class Stateful(Protocol):
    """A worker with a state between two steps."""

    def state(self) -> Any:
        """Give it, as JSON values."""

    def restore(self, state: Any) -> None:
        """Go on from a state of a worker of the same name; after `start`."""


@dataclass(frozen=True)
class Report:
    """A worker's last words.

    `expected`: the error is one that rlz raises on purpose, so its message is enough for people; `traceback` then holds
    the traceback of its cause (a user's environment that raised), or nothing.
    """

    done: bool = False
    error: str = ""
    expected: bool = False
    traceback: str = ""

    @staticmethod
    def of(error: BaseException) -> "Report":
        """Describe an exception."""
        if isinstance(error, RlzError):
            cause = error.__cause__
            text = "" if cause is None or isinstance(cause, RlzError) else _format(cause, _is_plumbing)
            return Report(error=str(error), expected=True, traceback=text)
        return Report(error=f"{type(error).__name__}: {error}", traceback=_format(error, _is_ours))

    def write(self, fd: int) -> None:
        """Write the report into the memfd that the controller reads after the worker's end."""
        if fd >= 0:
            os.pwrite(fd, json.dumps(asdict(self)).encode(), 0)

    @staticmethod
    def read(fd: int) -> "Report | None":
        """Read the report of a worker that has ended; None when it left none."""
        size = os.fstat(fd).st_size
        try:
            return Report(**json.loads(os.pread(fd, size, 0))) if size else None
        except (ValueError, TypeError):
            return None  # killed in the middle of its last words


def _format(error: BaseException, skip: Callable[[str], bool]) -> str:
    """Traceback without the leading frames of files that say nothing to its reader (all of them: only the last)."""
    trace: TracebackType | None = error.__traceback__
    while trace is not None and trace.tb_next is not None and skip(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace))


def _is_ours(file: str) -> bool:
    return file == __file__


def _is_plumbing(file: str) -> bool:
    """Whether a file stands between a worker's loop and a user's code: rlz, Gymnasium's wrappers, calls of torch."""
    path = Path(file)
    if path.is_relative_to(_PACKAGE):
        return True
    if path.parts[-4:] == ("torch", "nn", "modules", "module.py"):
        return True
    return path.parts[-2:] == ("gymnasium", "core.py") or path.parts[-3:-1] == ("gymnasium", "wrappers")


_PACKAGE = Path(__file__).parents[1]


class OpenWait:
    """A wait as the stats board shows it: for what and since when; its seconds are counted when it ends.

    It may stay open while the worker looks after something else in between (a checkpoint that is due).
    """

    def __init__(self, row: "StatsRow") -> None:
        self._row = row
        self._total: Stat | None = None

    def begin(self, reason: "Waiting", total: "Stat") -> None:
        """Show the wait, unless it is open already; its seconds will be added to `total`."""
        from rlz.transport.stats import Stat

        if self._total == total:
            return
        self.end()
        self._total = total
        self._row.set(Stat.WAITING_SINCE, time.monotonic())
        self._row.set(Stat.WAITING_FOR, float(reason))
        self._row.enter(total)

    def end(self) -> None:
        """The worker works again; a sign of life. Nothing when no wait is open."""
        if self._total is None:
            return
        from rlz.transport.stats import Stat

        self._row.set(Stat.HEARTBEAT, time.monotonic())
        self._row.set(Stat.WAITING_FOR, 0.0)
        self._row.enter(Stat.OTHER_S)
        self._total = None


@contextmanager
def waiting(row: "StatsRow", reason: "Waiting", total: "Stat") -> Iterator[None]:
    """Show on the stats board that the worker waits, for what and since when; count the seconds in `total` after."""
    wait = OpenWait(row)
    wait.begin(reason, total)
    try:
        yield
    finally:
        wait.end()


def run_worker(path: str, spec_fd: int) -> None:
    """Run this process as a worker and exit.

    Parameters
    ----------
    path : of its class (see `load`).
    spec_fd : memfd with the `WorkerSpec`.
    """
    from rlz._native import bind_to_parent

    spec = WorkerSpec.from_json(os.pread(spec_fd, os.fstat(spec_fd).st_size, 0).decode())
    os.close(spec_fd)
    bind_to_parent(spec.parent_pid)
    status = EXIT_ERROR
    try:
        _prepare(spec)
        _live(spec, path)
        status = 0
    except BaseException as error:
        report = Report.of(error)
        report.write(spec.error_fd)
        with suppress(OSError):
            print(report.error, report.traceback, sep="\n", file=sys.stderr, flush=True)
    # No interpreter teardown: threads of a simulator could hold it up, and there is nothing left to save.
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)


def worker_class(path: str) -> Callable[[WorkerSpec, "Streams"], Worker]:
    """Import the class of a worker: "module:Class" or "file.py:Class"."""
    from rlz.references import load

    found: Callable[[WorkerSpec, Streams], Worker] = load(path)
    return found


def _prepare(spec: WorkerSpec) -> None:
    os.umask(0o077)
    faulthandler.enable()
    notices_by(spec.notice_fd)
    for fd in (spec.error_fd, spec.notice_fd):
        if fd >= 0:
            os.set_inheritable(fd, False)
    sys.path.extend(path for path in spec.sys_path if path not in sys.path)
    Path(spec.run_dir).stat()
    if spec.cores:
        try:
            os.sched_setaffinity(0, spec.cores)
        except OSError as error:
            notice(f"{spec.name} cannot keep to cores {spec.cores} ({error.strerror}): it uses those that it may")


def _live(spec: WorkerSpec, path: str) -> None:
    worker = worker_class(path)(spec, spec.attach())
    worker.start()
    while worker.step(None):
        pass
    worker.close()
    Report(done=True).write(spec.error_fd)
