"""Saving the replay buffer row range by row range, so that a later checkpoint writes only what is new.

One file holds consecutive rows of one lane and never changes: `rows-<first ticket>-<last ticket>.npy`, as written by
`Replay.save` and opened by `numpy.load` (docs/transport.md, saved buffers). Files live in a folder per *generation*
(start of the run), because tickets begin at 1 again when a resumed run fills a new buffer.
"""

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rlz.errors import CheckpointError
from rlz.system.files import pass_freeze

if TYPE_CHECKING:
    from rlz._native import Replay

MOST_ROWS = 65_536
"""Rows of one file at most."""

FEW_ROWS = 16_384
"""A newest file with fewer rows is written again together with the new rows, so that files stay few."""


@dataclass(frozen=True)
class RowFile:
    """A file of consecutive rows of a lane: tickets `first` to `last`, path relative to the run folder."""

    path: str
    first: int
    last: int
    nbytes: int


@dataclass(frozen=True)
class SavedReplay:
    """Where the rows of a checkpoint are; part of its `state.json`.

    Attributes
    ----------
    buffer_size : capacity of the buffer over all lanes.
    committed : rows ever committed to each lane, at the cut.
    lanes : files of each lane, oldest first.
    """

    buffer_size: int
    committed: list[int]
    lanes: list[list[RowFile]]

    def paths(self) -> set[str]:
        """Files that belong to it, relative to the run folder."""
        return {file.path for file in self.files()}

    def files(self) -> "list[RowFile]":
        """Return its files, lane after lane."""
        return [file for files in self.lanes for file in files]


class ReplaySaver:
    """Writes the rows of one replay buffer.

    Parameters
    ----------
    run_dir : run folder.
    replay : the buffer; rows are copied while samplers go on writing.
    """

    def __init__(self, run_dir: Path, replay: "Replay") -> None:
        self._run_dir = run_dir
        self._replay = replay
        self._folder = _next_generation(run_dir / "replay")
        self._lanes: list[list[RowFile]] = [[] for _ in range(replay.lanes)]

    def save(self, committed: Sequence[int]) -> SavedReplay:
        """Save the rows up to `committed` of each lane.

        Files that are no longer needed stay until `remove_unused`: older checkpoints may point to them.

        Raises
        ------
        OSError
            The disk is full, or the folder cannot be written.
        """
        replay = self._replay
        for lane, last in enumerate(committed):
            self._lanes[lane] = self._save_lane(lane, last)
        return SavedReplay(
            buffer_size=replay.buffer_size,
            committed=list(committed),
            lanes=[list(files) for files in self._lanes],
        )

    def _save_lane(self, lane: int, last: int) -> list[RowFile]:
        replay = self._replay
        oldest = max(1, last - min(replay.lane_capacity, replay.buffer_size) + 1)
        files = [file for file in self._lanes[lane] if file.last >= oldest]
        first = max(oldest, files[-1].last + 1) if files else oldest
        if first > last:
            return files
        if files and files[-1].last - files[-1].first + 1 < FEW_ROWS:
            first = max(oldest, files.pop().first)
        for begin in range(first, last + 1, MOST_ROWS):
            files.append(self._write(lane, begin, min(begin + MOST_ROWS - 1, last)))
        return files

    def _write(self, lane: int, first: int, last: int) -> RowFile:
        folder = self._folder / f"lane-{lane:05d}"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = folder / f"rows-{first:012d}-{last:012d}.npy"
        pass_freeze()
        self._replay.save(path, ranges=[(lane, first, last)])
        return RowFile(str(path.relative_to(self._run_dir)), first, last, path.stat().st_size)


def _next_generation(folder: Path) -> Path:
    used = [int(path.name[1:]) for path in folder.glob("g*") if path.name[1:].isdigit()]
    return folder / f"g{max(used, default=-1) + 1:03d}"


def remove_unused(run_dir: Path, needed: Iterable[SavedReplay]) -> None:
    """Delete row files that none of the given checkpoints needs, what a kill left half written, and empty folders."""
    keep = {run_dir / path for saved in needed for path in saved.paths()}
    folder = run_dir / "replay"
    for path in folder.glob("g*/lane-*/*"):
        if path not in keep:
            path.unlink(missing_ok=True)
    for generation in folder.glob("g*"):
        if not any(generation.glob("lane-*/*")):
            shutil.rmtree(generation, ignore_errors=True)


def check_rows(run_dir: Path, saved: SavedReplay) -> None:
    """Check that every file of rows is there and has its size; the records are checked when they are read.

    Raises
    ------
    CheckpointError
        Names the first one that is missing or has another size.
    """
    for file in saved.files():
        path = run_dir / file.path
        try:
            size = path.stat().st_size
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error
        if size != file.nbytes:
            raise CheckpointError(f"{path} has {size} bytes, expected {file.nbytes}")


def open_rows(run_dir: Path, files: Sequence[RowFile]) -> list[NDArray[Any]]:
    """Map row files read-only, as structured arrays; their records are not checked.

    Raises
    ------
    CheckpointError
        A file is missing or no array.
    """
    opened: list[NDArray[Any]] = []
    for file in files:
        path = run_dir / file.path
        try:
            opened.append(np.lib.format.open_memmap(path, mode="r"))
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path} cannot be read: {error}") from error
    return opened
