"""The replay buffer once more, in the memory of the learner's device, so that batches are drawn there.

The buffer in shared memory stays the truth: samplers write to it, checkpoints save it, a resumed run fills the mirror
from it again.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlz._native import Replay
from rlz.algorithms.base import Batch
from rlz.errors import DeviceError, TransportError
from rlz.learning.batches import Decoder
from rlz.learning.streams import recorded

CHUNK_ROWS, CHUNK_BYTES = 4096, 2**24
"""Most rows, and bytes, copied to the device at once; also how finely the lanes of a full buffer are interleaved."""

FREE_SHARE = 0.5
"""Share of a device's free memory that the mirror may take without being asked to."""

LARGEST_DRAW = 2**62
"""Random numbers below this, modulo the number of rows: no row is favoured by more than rows / 2^62."""


class Staging:
    """Host memory of one chunk on its way to the device; pinned for CUDA."""

    def __init__(self, rows: int, stride: int, *, pinned: bool) -> None:
        self.tensor = torch.empty(rows, stride, dtype=torch.uint8, pin_memory=pinned)
        self.rows: NDArray[np.uint8] = self.tensor.numpy()
        self.meta, self.tickets = np.zeros((2, rows), np.uint64)
        self.copied: torch.cuda.Event | None = None  # set while the device may still be reading


class DeviceReplay:
    """The newest `buffer_size` rows of all lanes as one ring, in the order in which they were committed.

    Lanes are followed with the buffer's tail reader, so only whole, committed rows ever arrive; the slot that a killed
    sampler left empty is passed over. Older rows are overwritten whichever lane they came from: these are the rows that
    the host's sampler draws from as well.

    Used by the one thread that also launches the updates, between them: copies and draws are on one stream.

    Parameters
    ----------
    replay, decoder
        The buffer, and what cuts its rows into fields.
    device
        Where the mirror is: `buffer_size` times the buffer's stride in bytes.
    """

    def __init__(self, replay: Replay, decoder: Decoder, device: torch.device) -> None:
        self._replay = replay
        self._decoder = decoder
        self._tail = replay.tail()
        # Rows as 8-byte words: gathering bytes one by one is slower.
        self._rows = torch.zeros(replay.buffer_size, replay.stride // 8, dtype=torch.int64, device=device)
        self._filled = torch.zeros((), dtype=torch.int64, device=device)  # in memory, for draws inside of a graph
        self._written = 0
        self._chunk = max(1, min(CHUNK_ROWS, CHUNK_BYTES // replay.stride))
        rows = self._chunk + replay.lanes  # each lane's share is rounded up
        self._staging = [Staging(rows, replay.stride, pinned=device.type == "cuda") for _ in range(2)]

    @property
    def size(self) -> int:
        """Rows that can be drawn."""
        return min(self._written, len(self._rows))

    @property
    def lapped(self) -> int:
        """Rows that were overwritten before they could be mirrored."""
        return self._tail.lapped

    def follow(self) -> int:
        """Mirror the rows that were committed since the last call; how many.

        Raises
        ------
        TransportError
            There is no row at all yet.
        """
        before, committed = self._written, self._replay.committed()
        while True:
            pending = [max(0, last + 1 - next_) for last, next_ in zip(committed, self._tail.cursors, strict=True)]
            total = sum(pending)
            if total == 0:
                break
            # A chunk has of each lane its share of what is left, so that all of them end together: when a resumed run
            # fills the mirror, no lane's rows count as older than another's.
            chunk = min(total, self._chunk)
            self._copy({lane: -(-rows * chunk // total) for lane, rows in enumerate(pending) if rows})
        if self._written == 0:
            raise TransportError("the replay buffer is empty: wait until a sampler has written rows")
        if self._written != before:
            self._filled.fill_(self.size)
        return self._written - before

    def draw(self, indices: Tensor, generator: torch.Generator) -> None:
        """Fill `indices` (int64, on the device, any shape) with places of rows, uniformly and with replacement.

        Reads the number of rows from the device, so it can be captured in a graph.
        """
        indices.random_(0, LARGEST_DRAW, generator=generator)
        indices.remainder_(self._filled)

    def gather(self, indices: Tensor) -> Batch:
        """The rows at `indices` [batch], as a batch of new tensors."""
        return self._decoder(self._rows.index_select(0, indices).view(torch.uint8))

    def _copy(self, most: Mapping[int, int]) -> None:
        """Take at most so many rows of each lane, all of them in one copy."""
        staging = self._staging[0]
        if staging.copied is not None:
            staging.copied.synchronize()
        count = 0
        for lane, rows in most.items():
            place = slice(count, count + rows)
            count += self._tail.read(lane, staging.rows[place], staging.meta[place], staging.tickets[place])
        rows_taken = staging.tensor[:count].view(torch.int64)[-len(self._rows) :]  # of a small buffer the newest
        start = self._written % len(self._rows)
        first = min(len(rows_taken), len(self._rows) - start)
        self._rows[start : start + first].copy_(rows_taken[:first], non_blocking=True)
        if first < len(rows_taken):
            self._rows[: len(rows_taken) - first].copy_(rows_taken[first:], non_blocking=True)
        self._written += len(rows_taken)
        staging.copied = recorded(self._rows.device)
        self._staging.reverse()


def mirror_bytes(replay: Replay) -> int:
    """Memory of a mirror."""
    return replay.buffer_size * replay.stride


def choose(
    wanted: str, replay: Replay, device: torch.device, *, refused: str | None, reserved: int = 0
) -> tuple[bool, str]:
    """Whether batches are drawn on the device (`--replay-device`), and a line that says so.

    Parameters
    ----------
    wanted : auto, host or device.
    refused : why the mirror cannot be used in this run, if so.
    reserved : bytes on the device that updates and their compiler will take beside it.

    Raises
    ------
    DeviceError
        `device` was asked for and does not fit.
    """
    need = mirror_bytes(replay) / 2**30
    if refused is not None or wanted == "host" or (wanted == "auto" and device.type != "cuda"):
        reason = refused or ("--replay-device host" if wanted == "host" else "the learner is on the CPU")
        return False, f"replay: batches are drawn on the host ({reason})"
    if device.type != "cuda":
        return True, f"replay: mirrored once more on {device} ({need:.2f} GiB)"
    free = max(0, torch.cuda.mem_get_info(device)[0] - reserved) / 2**30
    room = f"{need:.2f} of {free:.2f} GiB that updates leave free"
    if need > (1.0 if wanted == "device" else FREE_SHARE) * free:
        if wanted == "device":
            raise DeviceError(f"--replay-device device: the mirror needs {room} on {device}; use host, or auto")
        return False, f"replay: batches are drawn on the host (a mirror on {device} would take {room})"
    return True, f"replay: mirrored on {device} ({room})"
