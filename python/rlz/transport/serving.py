"""Serving the streams of a running process to other ones of the same user, through a unix socket.

One process serves streams (`serve`; or a `Door`, from a loop of its own), any other attaches to them (`attaching.py`):

    door = serve({"stats": board, "parameters": store}, "/run/user/1000/job.sock")     # in the job
    with attach("/run/user/1000/job.sock") as job:                                     # in a notebook
        job.streams["parameters"].subscriber().read(into)

The socket has mode 0600, both sides check the user of the other, nothing is ever read from a peer, and serving one
takes no waiting. What is handed over are descriptors that were opened read-only: a description (a memfd with JSON), and
the streams. So a peer can copy parameters but take no lease, and its death needs no proof. It may look for as long as
it likes.

This guards against mistakes, not against the user's own processes, which may trace each other anyway.
"""

import contextlib
import errno
import fcntl
import json
import os
import select
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from rlz._native import Limiter, ParameterStore, StatsBoard
from rlz.transport.handover import (
    FORMAT,
    GREETING,
    MOST_BYTES,
    MOST_DESCRIPTORS,
    REFUSAL,
    Readable,
    credentials,
)

_MODE = 0o600
_PAUSE_MS = 1000
"""Where nobody can be accepted."""
_ALONE_S = 2.0
"""Longest wait for another process that is just beginning or ending to serve a path of the same folder."""
_MOST_AT_ONCE = 8
"""Peers that are answered in one turn of a loop."""


class Door:
    """The serving end, for a process that polls descriptors; `serve` is the one for all others.

    Parameters
    ----------
    streams : by the names under which peers find them.
    path : of the socket. A socket that is left from a process that was killed is replaced.
    describe : gives a JSON value for each peer that attaches or refreshes (`Attached.info`). It must not wait. Where it
        raises, that peer is told, and the next one is answered.

    Raises
    ------
    OSError
        The socket cannot be made; FileExistsError when something else has its name, EADDRINUSE when it is being served.
    TypeError
        A stream cannot be served.
    """

    def __init__(
        self, streams: Mapping[str, Readable], path: str | Path, describe: Callable[[], object] = dict
    ) -> None:
        self._path = Path(path).absolute()
        self._describe = describe
        self._streams: list[tuple[str, str, int]] = []
        self._descriptors: list[int] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self._identity: tuple[int, int] | None = None
        self._spare = -1
        try:
            for name, stream in streams.items():
                fds = _descriptors(name, stream)
                self._streams.append((name, type(stream).__name__, len(fds)))
                self._descriptors += [_read_only(fd) for fd in fds]
            if len(self._descriptors) >= MOST_DESCRIPTORS:
                raise ValueError(f"streams: given {len(streams)}, which need more than {MOST_DESCRIPTORS} descriptors")
            self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            with _alone(self._path) as path:
                _remove_stale(path)
                os.fchmod(self._socket.fileno(), _MODE)  # before it has a name
                self._socket.bind(str(path))
                self._identity = _identity(path)
                self._socket.listen(_MOST_AT_ONCE)
        except BaseException:
            self.close()
            raise

    @property
    def fd(self) -> int:
        """Readable when somebody attaches: call `answer` then."""
        return self._socket.fileno()

    def answer(self) -> bool:
        """Answer those who attach; never waits. False: somebody waits and cannot be accepted now."""
        for _ in range(_MOST_AT_ONCE):
            try:
                peer, _ = self._socket.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return True
            except OSError:
                return self._hang_up()
            # Somebody who hangs up, or a lack of memory or descriptors: their loss, not this process's.
            with peer, contextlib.suppress(OSError):
                self._answer(peer)
        return True

    def close(self) -> None:
        """Serve no more. Those who are attached keep what they have. Idempotent."""
        self._socket.close()
        while self._descriptors:
            os.close(self._descriptors.pop())
        if self._spare >= 0:
            os.close(self._spare)
            self._spare = -1
        if self._identity is not None:
            with contextlib.suppress(OSError), _alone(self._path) as path:
                if _identity(path) == self._identity:
                    path.unlink()
            self._identity = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _hang_up(self) -> bool:
        """Out of descriptors: let go of one who waits, with a descriptor that is kept for that. False: not even so."""
        if self._spare < 0:
            return False
        os.close(self._spare)
        self._spare = -1
        with contextlib.suppress(OSError):
            self._socket.accept()[0].close()
        with contextlib.suppress(OSError):
            self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        return True

    def _answer(self, peer: socket.socket) -> None:
        peer.setblocking(False)
        if credentials(peer)[1] != os.geteuid():
            peer.send(REFUSAL)
            return
        try:
            info = {"info": self._describe()}
            text = json.dumps({"format": FORMAT, "streams": self._streams, **info})
            if len(text) > MOST_BYTES:
                raise ValueError(f"a description of {len(text)} characters, more than {MOST_BYTES}")
        except Exception as error:  # the next peer may be answered
            said = f"{type(error).__name__}: {error}"[:1000]
            text = json.dumps({"format": FORMAT, "streams": [], "info": None, "error": said})
        description = os.memfd_create("rlz-description", os.MFD_CLOEXEC)
        try:
            os.pwrite(description, text.encode(), 0)
            socket.send_fds(peer, [GREETING], [description, *self._descriptors])
        finally:
            os.close(description)


class Server:
    """A `Door` with a thread that answers. Made by `serve`; `close` it, or leave its `with` block."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self._reader, self._writer = os.pipe2(os.O_CLOEXEC)
        self._thread = threading.Thread(target=self._work, name="rlz-serve", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Serve no more. Those who are attached keep what they have. Idempotent."""
        if self._writer >= 0:
            os.write(self._writer, b"!")  # not its end by closing: a child that was forked may hold it open
            self._thread.join()
            os.close(self._writer)
            self._writer = -1
            os.close(self._reader)
            self._door.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _work(self) -> None:
        poll, closing = select.poll(), select.poll()
        closing.register(self._reader, select.POLLIN)
        poll.register(self._reader, select.POLLIN)
        poll.register(self._door.fd, select.POLLIN)
        while all(fd != self._reader for fd, _ in poll.poll()):
            if not self._door.answer() and closing.poll(_PAUSE_MS):
                return


def serve(streams: Mapping[str, Readable], path: str | Path, describe: Callable[[], object] = dict) -> Server:
    """Let this user's other processes attach to streams, from a thread of its own.

    Parameters and errors are those of `Door`; `describe` runs in that thread.
    """
    return Server(Door(streams, path, describe))


def _descriptors(name: str, stream: Readable) -> list[int]:
    match stream:
        case StatsBoard() | Limiter():
            return [stream.fd]
        case ParameterStore():
            return [stream.control_fd, stream.payload_fd]
    raise TypeError(
        f"stream {name!r}: given a {type(stream).__name__}, expected a StatsBoard, ParameterStore or Limiter"
    )


def _read_only(fd: int) -> int:
    return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)


def _remove_stale(path: Path) -> None:
    """Remove a socket that nobody listens on, or the empty file that a copy of its folder may have in its place."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(status.st_mode) and (not stat.S_ISREG(status.st_mode) or status.st_size):
        raise FileExistsError(errno.EEXIST, "it exists already, and is no socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except BlockingIOError:
            pass  # somebody listens, and many wait for an answer
    raise OSError(errno.EADDRINUSE, "another process serves it")


def _identity(path: Path) -> tuple[int, int]:
    status = path.lstat()
    return status.st_dev, status.st_ino


@contextmanager
def _alone(path: Path) -> Iterator[Path]:
    """As `short_path`, while no other process gives a socket in the same folder its name or takes one away.

    Without that, of two that find a stale socket the second one would remove what the first one has put in its place.
    """
    kind = os.O_RDONLY if os.access(path.parent, os.R_OK) else os.O_PATH
    fd = os.open(path.parent, kind | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        deadline = time.monotonic() + _ALONE_S
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise OSError(errno.EADDRINUSE, "another process holds its folder locked", str(path)) from None
                time.sleep(0.005)
            except OSError:
                break  # a file system without locks, or a folder that may not be read
            else:
                break
        yield Path(f"/proc/self/fd/{fd}") / path.name
    finally:
        os.close(fd)  # and the lock
