"""Saving the replay buffer row range by row range, so that a later checkpoint writes only what is new.

One file holds consecutive rows of one lane and never changes: `rows-<first ticket>-<last ticket>.safetensors` with
`rows` [n, stride] uint8, `meta` [n] uint64 and `tickets` [n] uint64 (a row that was lost has no entry). Files live in a
folder per *generation* (start of the run), because tickets begin at 1 again when a resumed run fills a new buffer.
"""

import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rlz.errors import CheckpointError
from rlz.runtime.files import TEMPORARY, sync_folder, write_file

if TYPE_CHECKING:
    from rlz._native import Replay

Rows = NDArray[np.uint8]
Words = NDArray[np.uint64]

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
    stride, fields : layout of a row, as in `rlz._native.Replay`.
    buffer_size : capacity of the buffer over all lanes.
    committed : rows ever committed to each lane, at the cut.
    lanes : files of each lane, oldest first.
    """

    stride: int
    fields: list[Any]
    buffer_size: int
    committed: list[int]
    lanes: list[list[RowFile]]

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {
            "stride": self.stride,
            "fields": self.fields,
            "buffer_size": self.buffer_size,
            "committed": self.committed,
            "lanes": [[vars(file) for file in files] for files in self.lanes],
        }

    @staticmethod
    def from_json(value: dict[str, Any]) -> "SavedReplay":
        """Read it back."""
        lanes = [[RowFile(**file) for file in files] for files in value["lanes"]]
        return SavedReplay(value["stride"], value["fields"], value["buffer_size"], value["committed"], lanes)

    def paths(self) -> set[str]:
        """Files that belong to it, relative to the run folder."""
        return {file.path for files in self.lanes for file in files}


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
            stride=replay.stride,
            fields=[[name, dtype, list(shape), offset] for name, dtype, shape, offset in replay.fields],
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
        from safetensors.numpy import save

        rows, meta, tickets = self._read(lane, first, last)
        folder = self._folder / f"lane-{lane:05d}"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = folder / f"rows-{first:012d}-{last:012d}.safetensors"
        data = save({"rows": rows, "meta": meta, "tickets": tickets})
        temporary = folder / f"{TEMPORARY}{path.name}"
        try:
            write_file(temporary, data)
            temporary.replace(path)
            sync_folder(folder)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        return RowFile(str(path.relative_to(self._run_dir)), first, last, len(data))

    def _read(
        self, lane: int, first: int, last: int
    ) -> tuple[NDArray[np.uint8], NDArray[np.uint64], NDArray[np.uint64]]:
        replay = self._replay
        count = last - first + 1
        rows = np.empty((count, replay.stride), np.uint8)
        meta = np.empty(count, np.uint64)
        tickets = np.empty(count, np.uint64)
        ticket, filled = first, 0
        while ticket <= last:
            left = last - ticket + 1
            copied = replay.read_rows(lane, ticket, rows[filled : filled + left], meta[filled : filled + left])
            tickets[filled : filled + copied] = np.arange(ticket, ticket + copied, dtype=np.uint64)
            ticket, filled = ticket + copied, filled + copied
            if ticket <= last:  # this row was lost, or overwritten while we were reading
                ticket = max(ticket + 1, replay.committed()[lane] - replay.lane_capacity + 1)
        return rows[:filled], meta[:filled], tickets[:filled]


def _next_generation(folder: Path) -> Path:
    used = [int(path.name[1:]) for path in folder.glob("g*") if path.name[1:].isdigit()]
    return folder / f"g{max(used, default=-1) + 1:03d}"


def remove_unused(run_dir: Path, needed: Iterable[SavedReplay]) -> None:
    """Delete row files that none of the given checkpoints needs, and folders that are empty then."""
    keep = {run_dir / path for saved in needed for path in saved.paths()}
    folder = run_dir / "replay"
    for path in folder.glob("g*/lane-*/rows-*.safetensors"):
        if path not in keep:
            path.unlink(missing_ok=True)
    for generation in folder.glob("g*"):
        if not any(generation.glob("lane-*/*")):
            shutil.rmtree(generation, ignore_errors=True)


def read_tickets(run_dir: Path, file: RowFile) -> Words:
    """Tickets of the rows in a file, without reading the rows. CheckpointError where that cannot be done."""
    from safetensors import SafetensorError, safe_open

    path = run_dir / file.path
    try:
        with safe_open(path, framework="numpy") as opened:
            tickets: Words = opened.get_tensor("tickets")
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    return tickets


def read_rows(
    run_dir: Path, files: Sequence[RowFile], stride: int
) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.uint64]]]:
    """Yield (rows [n, stride], meta [n]) of the files of a lane, oldest first.

    Raises
    ------
    CheckpointError
        A file is missing, cut short, or holds something else.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load

    for file in files:
        path = run_dir / file.path
        try:
            tensors = load(path.read_bytes())
            rows, meta = tensors["rows"], tensors["meta"]
        except (OSError, SafetensorError, KeyError) as error:
            raise CheckpointError(f"{path} cannot be read: {error}") from error
        if rows.dtype != np.uint8 or rows.ndim != 2 or rows.shape[1] != stride or meta.shape != rows.shape[:1]:
            raise CheckpointError(f"{path} holds rows {rows.dtype}{list(rows.shape)}, expected uint8[n, {stride}]")
        yield rows, meta
