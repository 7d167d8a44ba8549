"""What a process tells the people who watch its run, in one line each."""

import os
import sys
from collections.abc import Callable
from contextlib import suppress

_fd = -1
_receive: Callable[[str], None] | None = None


def notice(text: str) -> None:
    """Tell the people who watch the run something, in one line: a fallback, a checkpoint that could not be written.

    Goes to the controller, which shows and records it; never waits (a line is dropped when the pipe is full).
    """
    if _receive is not None:
        _receive(text)
        return
    with suppress(OSError):  # the log is often on the very disk that is full
        print(text, file=sys.stderr, flush=True)
    if _fd >= 0:
        line = " ".join(text.split("\n")).encode()[:4000] + b"\n"
        with suppress(OSError):
            os.write(_fd, line)  # at most PIPE_BUF bytes: lines of several workers never mix


def notices_by(fd: int) -> None:
    """Also write notices to a pipe (a worker's process)."""
    global _fd
    _fd = fd


def notices_to(receive: Callable[[str], None] | None) -> None:
    """Hand notices to a function of this process (workers that take turns in it); None: as before."""
    global _receive
    _receive = receive
