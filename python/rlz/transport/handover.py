"""What the two ends of a served socket agree on: greeting, limits, who the other end is, how its path is written."""

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rlz._native import Limiter, ParameterStore, StatsBoard

Readable = StatsBoard | ParameterStore | Limiter
"""Streams that can be served: those that make sense to somebody who may only read."""

FORMAT = 2
GREETING = b"rlz streams 1\n"
REFUSAL = b"rlz streams: only the user who serves them may attach\n"
MOST_DESCRIPTORS = 253
"""Linux sends so many in one message."""
MOST_BYTES = 1 << 24
"""Of a description."""
_CREDENTIALS = struct.Struct("3i")


def credentials(end: socket.socket) -> tuple[int, int, int]:
    """Process, user and group id of the other end."""
    return _CREDENTIALS.unpack(end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))


@contextmanager
def short_path(path: Path) -> Iterator[Path]:
    """A path of a few characters to the same socket: it may have 107 bytes only."""
    fd = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield Path(f"/proc/self/fd/{fd}") / path.name
    finally:
        os.close(fd)
