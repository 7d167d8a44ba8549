"""Attaching to the streams of another process of the same user, which serves them (`serving.py`)."""

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from rlz._native import Limiter, ParameterStore, StatsBoard
from rlz.errors import NoAnswerError, NotServedError, TransportError
from rlz.transport.handover import (
    FORMAT,
    GREETING,
    MOST_BYTES,
    MOST_DESCRIPTORS,
    REFUSAL,
    Readable,
    credentials,
    short_path,
)


class Attached:
    """Streams of another process, to be read. Made by `attach`; `close` it, or leave its `with` block.

    Attributes
    ----------
    path : the socket.
    pid : process that serves it.
    info : what it said about itself, at the last `refresh`.
    streams : by name. What would change one raises TransportError; a subscriber copies, and polls where it waits.
    """

    def __init__(self, path: Path, timeout: float) -> None:
        self.path = path
        self._timeout = timeout
        self.streams: dict[str, Any] = {}
        self.pid, description, fds = _ask(path, timeout)
        try:
            self._open(description, fds)
        except BaseException:
            self.close()
            raise
        finally:
            _close(fds)

    def _open(self, description: dict[str, Any], fds: list[int]) -> None:
        self.info: Any = description["info"]
        left = fds
        try:
            for name, kind, count in description["streams"]:
                own, left = left[:count], left[count:]
                if len(own) != count:
                    raise ValueError(f"stream {name!r} needs {count} descriptors")
                self.streams[name] = _attach_stream(kind, own)
        except (KeyError, TypeError, ValueError) as error:
            raise TransportError(_other_version(self.path)) from error

    def refresh(self) -> None:
        """Ask for `info` again; errors as in `attach`, and TransportError when the path has another server by now."""
        pid, description, fds = _ask(self.path, self._timeout)
        _close(fds)
        if pid != self.pid:
            raise TransportError(f"{self.path} is served by process {pid} now, not by {self.pid}: attach again")
        self.info = description["info"]

    def close(self) -> None:
        """Let go of the streams. Idempotent."""
        for stream in self.streams.values():
            stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def attach(path: str | Path, *, timeout: float = 2.0) -> Attached:
    """Attach to what another process of this user serves.

    Parameters
    ----------
    path : the socket that was given to `serve`.
    timeout : seconds to wait for its answer.

    Raises
    ------
    NotServedError
        Nobody serves it: there is no socket, or it was left by a process that was killed.
    NoAnswerError
        The process that serves it is busy, stopped or hanging.
    TransportError
        It belongs to another user, or to another version of rlz, or its `describe` failed.
    """
    return Attached(Path(path).absolute(), timeout)


def _attach_stream(kind: str, fds: list[int]) -> Readable:
    makers: dict[str, Callable[..., Readable]] = {
        "StatsBoard": StatsBoard.attach,
        "Limiter": Limiter.attach,
        "ParameterStore": ParameterStore.attach,
    }
    return makers[kind](*fds)


def _ask(path: Path, timeout: float) -> tuple[int, dict[str, Any], list[int]]:
    """Return the process that serves a path, its description, and descriptors of its streams."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door:
        door.settimeout(timeout)
        pid = 0
        try:
            with short_path(path) as short:
                door.connect(str(short))
            pid, uid, _ = credentials(door)
            if uid != os.geteuid():
                raise TransportError(f"{path} is served by another user (uid {uid}): not trusted")
            greeting, fds, _, _ = socket.recv_fds(door, len(REFUSAL), MOST_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            raise NotServedError(f"{path} is not served: there is no such socket") from None
        except ConnectionRefusedError:
            raise NotServedError(f"{path} is not served any more: the process that did is dead") from None
        except (TimeoutError, BlockingIOError):
            raise NoAnswerError(path, pid, timeout) from None
    try:
        if not greeting:
            raise NoAnswerError(path, pid, timeout)  # it ended, or ran out of something
        if greeting == REFUSAL:
            raise TransportError(greeting.decode().strip())
        if greeting != GREETING or not fds:
            raise TransportError(_other_version(path))
        description = _read_description(path, fds[0])
    except BaseException:
        _close(fds)
        raise
    os.close(fds.pop(0))
    if "error" in description:
        _close(fds)
        raise TransportError(
            f"{path}: process {pid}, which serves it, failed to describe itself: {description['error']}"
        )
    return pid, description, fds


def _read_description(path: Path, fd: int) -> dict[str, Any]:
    size = os.fstat(fd).st_size
    try:
        description = json.loads(os.pread(fd, size, 0)) if size <= MOST_BYTES else None
    except ValueError:
        description = None
    if not isinstance(description, dict) or description.get("format") != FORMAT:
        raise TransportError(_other_version(path))
    return description


def _other_version(path: Path) -> str:
    return f"{path} is served by another version of rlz: use that one here too"


def _close(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)
