"""What a run has written down so far, read as it grows, in bounded memory."""

import json
import math
import os
from array import array
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MOST_LINES = 8192
"""Lines of the log that are kept: 11 hours at 5 s a line. Of a longer run it is every second, fourth, ... one."""

_CHUNK = 1 << 22
AXES = ("wall_s", "env_steps", "updates", "time")


class Tail:
    """Reads what a text file has got since the last call.

    Parameters
    ----------
    path : need not exist yet. A file that was replaced or cut (`rlz train --resume`) is read again from its start.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = -1
        self._at = 0
        self._rest = b""

    def read(self) -> tuple[bool, list[str]]:
        """Whether the file is another one than before, and its new whole lines, at most some megabytes of them."""
        try:
            with self._path.open("rb") as file:
                status = os.fstat(file.fileno())
                again = self._file not in (-1, status.st_ino) or status.st_size < self._at
                if again:
                    self._at, self._rest = 0, b""
                self._file = status.st_ino
                file.seek(self._at)
                new = file.read(_CHUNK)
        except OSError:
            return False, []
        self._at += len(new)
        *lines, self._rest = (self._rest + new).split(b"\n")
        return again, [line.decode(errors="replace") for line in lines]


class History:
    """Lines of a log as columns of numbers by tag (NaN where a line has none); `AXES` are columns as well.

    Attributes
    ----------
    columns : [len] each.
    thinned : how often every second line was dropped.
    """

    def __init__(self, most: int = MOST_LINES) -> None:
        self._most = most
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self.columns: dict[str, array[float]] = {}
        self.thinned = 0
        self._length = self._skip = 0

    def __len__(self) -> int:
        return self._length

    def add(self, text: str) -> Mapping[str, Any] | None:
        """Add a line of metrics.jsonl and return it; None for one that is broken."""
        try:
            line = json.loads(text)
        except ValueError:
            return None
        if not isinstance(line, dict):
            return None
        self._skip += 1
        if self._skip >= 1 << self.thinned:
            self._skip = 0
            self._append(line)
        return line

    def since(self, start: int) -> dict[str, list[float | None]]:
        """Lines `start`, ... by tag, for JSON."""
        return {
            tag: [None if math.isnan(value) else value for value in column[start:]]
            for tag, column in self.columns.items()
        }

    def over_the_run(self, prefix: str) -> dict[str, float]:
        """Means of the tags that begin so, over all lines that have them."""
        found = {}
        for tag, column in self.columns.items():
            if tag.startswith(prefix) and (values := [value for value in column if not math.isnan(value)]):
                found[tag] = math.fsum(values) / len(values)
        return found

    def _append(self, line: Mapping[str, Any]) -> None:
        for tag in line.keys() - self.columns.keys():
            self.columns[tag] = array("d", [math.nan]) * self._length
        for tag, column in self.columns.items():
            value = line.get(tag)
            column.append(float(value) if isinstance(value, int | float) else math.nan)
        self._length += 1
        if self._length > self._most:
            self.thinned += 1
            for tag, column in self.columns.items():
                self.columns[tag] = column[self._length % 2 == 0 :: 2]  # the newest line stays
            self._length = (self._length + 1) // 2
