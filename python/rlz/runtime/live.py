"""Looking into a run while it lives: a socket in the run folder that gives the stats board to this user's processes.

The controller serves it (`Door`): mode 0600, the peer's user is checked, nothing is read from the peer, and serving one
takes no waiting. What it hands over are descriptors: a description of the run (a memfd with JSON) and the stats board,
read-only. `Live` is the other end; it can look at the board as long as it likes.
"""

import contextlib
import json
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from rlz._native import StatsBoard
from rlz.errors import RlzError, TransportError
from rlz.tracking import WorkerInfo
from rlz.transport.stats import STAT_NAMES

if TYPE_CHECKING:
    from rlz.transport import Streams

SOCKET = ".live.sock"
FORMAT = 1
GREETING = b"rlz live 1\n"
REFUSAL = b"rlz live: only the user who started the run may look into it\n"
_MODE = 0o600
_MOST_AT_ONCE = 8
"""Peers served in one turn of the controller's loop."""
_MOST_BYTES = 1 << 24
_CREDENTIALS = struct.Struct("3i")


class NoAnswerError(RlzError):
    """A controller listens but does not answer.

    Attributes
    ----------
    pid : its process id, 0 when unknown.
    """

    def __init__(self, pid: int, timeout: float) -> None:
        super().__init__(f"the controller (process {pid or 'unknown'}) does not answer within {timeout:g} s")
        self.pid = pid


class Door:
    """The controller's end.

    Parameters
    ----------
    run_dir : run folder.
    streams : of the run; rows count from now on, so those of a resumed run are restored before.
    workers : gives every worker that has been started.

    Raises
    ------
    OSError
        The file system of the run folder has no sockets.
    """

    def __init__(self, run_dir: Path, streams: "Streams", workers: Callable[[], Sequence[WorkerInfo]]) -> None:
        self._run_dir = run_dir
        self._streams = streams
        self._workers = workers
        self._started = time.monotonic()
        self._first_rows = streams.replay.committed()
        self._board = os.open(f"/proc/self/fd/{streams.stats.fd}", os.O_RDONLY | os.O_CLOEXEC)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            with _short(run_dir) as folder:
                (folder / SOCKET).unlink(missing_ok=True)  # of a controller that was killed: we hold the lock
                os.fchmod(self._socket.fileno(), _MODE)  # before it has a name
                self._socket.bind(str(folder / SOCKET))
            self._socket.listen(_MOST_AT_ONCE)
        except OSError:
            self.close()
            raise

    @property
    def fd(self) -> int:
        """Readable when somebody knocks."""
        return self._socket.fileno()

    def serve(self) -> bool:
        """Answer those who knock; never waits. False: no more can be accepted (out of descriptors)."""
        for _ in range(_MOST_AT_ONCE):
            try:
                peer, _ = self._socket.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return True
            except OSError:
                return False
            # Somebody who hangs up, or a lack of memory or descriptors: their loss, not the run's.
            with peer, contextlib.suppress(OSError):
                self._answer(peer)
        return True

    def close(self) -> None:
        """Shut the door. Idempotent."""
        if self._board < 0:
            return
        self._socket.close()
        os.close(self._board)
        self._board = -1
        with contextlib.suppress(OSError):
            (self._run_dir / SOCKET).unlink(missing_ok=True)

    def _answer(self, peer: socket.socket) -> None:
        peer.setblocking(False)
        if _credentials(peer)[1] != os.geteuid():
            peer.send(REFUSAL)
            return
        description = os.memfd_create("rlz-live", os.MFD_CLOEXEC)
        try:
            os.pwrite(description, json.dumps(self._describe()).encode(), 0)
            socket.send_fds(peer, [GREETING], [description, self._board])
        finally:
            os.close(description)

    def _describe(self) -> dict[str, Any]:
        limiter = self._streams.limiter
        env_steps, lane_steps = limiter.env_steps, limiter.lane_steps()
        return {
            "format": FORMAT,
            "pid": os.getpid(),
            "started": self._started,
            "state": limiter.state,
            "env_steps": env_steps,
            "updates": limiter.updates,
            "lane_steps": lane_steps,
            "first_rows": self._first_rows,
            "rows": self._streams.replay.committed(),  # after the steps: see tracking.Reader
            "workers": [
                {
                    "name": worker.name,
                    "role": worker.role,
                    "slot": worker.slot,
                    "pid": worker.pid,
                    "restarts": worker.restarts,
                    "lanes": worker.lanes,
                }
                for worker in self._workers()
            ],
        }


@dataclass
class _Numbers:
    """Limiter and replay buffer as the controller described them, for `tracking.Reader`."""

    env_steps: int
    updates: int
    steps: list[int]
    rows: list[int]

    def lane_steps(self) -> list[int]:
        return self.steps

    def committed(self) -> list[int]:
        return self.rows


class Live:
    """A live run, seen from another process of the same user. Has the attributes that `tracking.Reader` reads.

    Attributes
    ----------
    pid : the controller.
    started : `time.monotonic()` of the start of the run's workers.
    state : of the limiter.
    stats : the run's stats board, read-only.
    limiter, replay : counts at the last `refresh`.
    """

    def __init__(self, run_dir: Path, timeout: float = 2.0) -> None:
        """Connect.

        Raises
        ------
        FileNotFoundError, ConnectionRefusedError
            Nobody serves this run folder.
        NoAnswerError
            The controller is busy, stopped or hanging.
        TransportError
            It refuses, or is another version of rlz.
        """
        self._run_dir = run_dir
        self._timeout = timeout
        self._board: StatsBoard | None = None
        self.refresh()

    def refresh(self) -> None:
        """Ask the controller again; errors as in the constructor."""
        description, board = _ask(self._run_dir, self._timeout)
        try:
            if self._board is None:
                self._board = StatsBoard.attach(board)
        finally:
            os.close(board)
        if tuple(self._board.names) != STAT_NAMES:
            raise TransportError(_other_version(self._run_dir))
        try:
            self.pid = int(description["pid"])
            self.started = float(description["started"])
            self.state = int(description["state"])
            self.first_rows = [int(count) for count in description["first_rows"]]
            self.limiter = self.replay = _Numbers(
                int(description["env_steps"]),
                int(description["updates"]),
                [int(count) for count in description["lane_steps"]],
                [int(count) for count in description["rows"]],
            )
            self._workers = [
                WorkerInfo(**{**worker, "lanes": tuple(worker["lanes"])}) for worker in description["workers"]
            ]
        except (KeyError, TypeError, ValueError) as error:
            raise TransportError(_other_version(self._run_dir)) from error

    @property
    def stats(self) -> StatsBoard:
        """The run's stats board, read-only."""
        assert self._board is not None
        return self._board

    def workers(self) -> list[WorkerInfo]:
        """Workers at the last `refresh`."""
        return self._workers

    def close(self) -> None:
        """Let go of the board."""
        if self._board is not None:
            self._board.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _ask(run_dir: Path, timeout: float) -> tuple[dict[str, Any], int]:
    """Return the description of a live run, and a descriptor of its board."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door:
        door.settimeout(timeout)
        pid = 0
        try:
            with _short(run_dir) as folder:
                door.connect(str(folder / SOCKET))
            pid, uid, _ = _credentials(door)
            if uid != os.geteuid():
                raise TransportError(f"{run_dir / SOCKET} is served by another user (uid {uid}): not trusted")
            greeting, fds, _, _ = socket.recv_fds(door, len(REFUSAL), 2, socket.MSG_CMSG_CLOEXEC)
        except (TimeoutError, BlockingIOError):
            raise NoAnswerError(pid, timeout) from None
    if greeting != GREETING or len(fds) != 2:
        for fd in fds:
            os.close(fd)
        if not greeting:
            raise NoAnswerError(pid, timeout)  # it ended, or ran out of something
        raise TransportError(greeting.decode().strip() if greeting == REFUSAL else _other_version(run_dir))
    try:
        return _read_description(run_dir, fds[0]), fds[1]
    except BaseException:
        os.close(fds[1])
        raise
    finally:
        os.close(fds[0])


def _read_description(run_dir: Path, fd: int) -> dict[str, Any]:
    size = os.fstat(fd).st_size
    try:
        description = json.loads(os.pread(fd, size, 0)) if size <= _MOST_BYTES else None
    except ValueError:
        description = None
    if not isinstance(description, dict) or description.get("format") != FORMAT:
        raise TransportError(_other_version(run_dir))
    return description


def _other_version(run_dir: Path) -> str:
    return f"{run_dir} is being run by another version of rlz: use that one's `rlz runs show`"


def _credentials(end: socket.socket) -> tuple[int, int, int]:
    """Process, user and group id of the other end."""
    return _CREDENTIALS.unpack(end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))


@contextmanager
def _short(folder: Path) -> Iterator[Path]:
    """A path of a few characters to a folder: the path of a socket may have 107 bytes only."""
    fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield Path(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)
