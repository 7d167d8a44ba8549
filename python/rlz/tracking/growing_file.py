"""A file that grows by whole records, even when its disk is full for a while, or a process is killed within a line."""

import os
from collections import deque
from contextlib import suppress
from pathlib import Path

HELD_BYTES = 4 << 20
"""Most bytes that wait for a disk that is full: hours of a run's numbers."""

_BLOCK = 65536


class NotWrittenError(Exception):
    """A record could not be written. It is held and written before the next one.

    Attributes
    ----------
    reason : what the system said.
    """

    def __init__(self, reason: OSError) -> None:
        super().__init__(reason.strerror or str(reason))
        self.reason = reason


class GrowingFile:
    """Appends records to a file. What the system refuses is taken back, so that only whole records are ever in it.

    Parameters
    ----------
    path : appended to when it exists.
    lines : records are lines of text; a last line without its end (the process before was killed) is cut off.
    header : first record of an empty file.
    """

    def __init__(self, path: Path, *, lines: bool, header: bytes = b"") -> None:
        self._path = path
        self._lines = lines
        self._header = header
        self._fd = -1
        self._end = -1  # of the last whole record, once the file has been open
        self._held: deque[bytes] = deque()
        self._held_bytes = 0
        with suppress(OSError):  # the first record says so again
            self._open()

    def write(self, record: bytes) -> None:
        """Append a record, after those that are held.

        Raises
        ------
        NotWrittenError
            It is held now.
        """
        self._held.append(record)
        self._held_bytes += len(record)
        while self._held_bytes > HELD_BYTES:
            self._held_bytes -= len(self._held.popleft())
        self.flush()

    def flush(self) -> None:
        """Try to write what is held; errors as in `write`."""
        try:
            if self._fd < 0:
                self._open()
            while self._held:
                self._append(self._held[0])
                self._held_bytes -= len(self._held.popleft())
        except OSError as error:
            self._shut()  # some errors stay with a descriptor (a network disk that was away)
            raise NotWrittenError(error) from error

    def close(self) -> None:
        """Try to write what is held, and close the file; errors as in `write`."""
        try:
            if self._held:
                self.flush()
        finally:
            self._shut()

    def _open(self) -> None:
        self._fd = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        size = os.fstat(self._fd).st_size
        if self._end < 0:
            self._end = self._after_last_line(size) if self._lines else size
        self._end = min(size, self._end)
        if size > self._end:
            os.ftruncate(self._fd, self._end)
        if self._end == 0 and self._header:
            self._append(self._header)

    def _append(self, record: bytes) -> None:
        left = memoryview(record)
        try:
            while left:
                left = left[os.write(self._fd, left) :]
        except OSError:
            with suppress(OSError):  # `_open` does it then
                os.ftruncate(self._fd, self._end)
            raise
        self._end += len(record)

    def _after_last_line(self, size: int) -> int:
        end = size
        while end > 0:
            begin = max(0, end - _BLOCK)
            newline = os.pread(self._fd, end - begin, begin).rfind(b"\n")
            if newline >= 0:
                return begin + newline + 1
            end = begin
        return 0

    def _shut(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            with suppress(OSError):
                os.close(fd)
