"""From rows of the replay buffer to batches on the learner's device."""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlz._native import PrioritizedSampler, ReplaySampler
from rlz.algorithms.base import Batch
from rlz.learning.normalizer import Normalizer

DTYPES = {
    "f16": torch.float16,
    "f32": torch.float32,
    "f64": torch.float64,
    "bf16": torch.bfloat16,
    "u8": torch.uint8,
    "i8": torch.int8,
    "u16": torch.uint16,
    "i16": torch.int16,
    "u32": torch.uint32,
    "i32": torch.int32,
    "u64": torch.uint64,
    "i64": torch.int64,
    "bool": torch.bool,
}
"""Field types of the transport in torch."""

KEPT = torch.float32, torch.int64
"""Types that a batch keeps: what networks compute in, and indices of choices."""

POLL_S = 0.001
"""Seconds between looks for the first rows."""

AHEAD = 2
"""Batches that the prefetch thread keeps ready."""


class Decoder:
    """Cuts packed rows into the fields of a `Batch`: views where a field is float32, else one cast on the device.

    Parameters
    ----------
    fields
        `Replay.fields`: (name, dtype, shape, byte offset).
    normalizer
        Of observations and rewards, where the run normalises.
    """

    def __init__(
        self, fields: Sequence[tuple[str, str, tuple[int, ...], int]], normalizer: Normalizer | None = None
    ) -> None:
        by_name = {name: (DTYPES[dtype], tuple(shape), offset) for name, dtype, shape, offset in fields}
        self._fields = [by_name[name] for name in Batch._fields if name != "weight"]
        self._normalizer = normalizer

    @property
    def copies(self) -> bool:
        """Some field is cast or normalised, so a batch is not views of its rows alone."""
        return self._normalizer is not None or any(dtype not in KEPT for dtype, _, _ in self._fields)

    def __call__(self, rows: Tensor, weight: Tensor | None = None) -> Batch:
        """Rows [batch, stride] uint8 (and importance weights) -> batch, on the same device."""
        batch = Batch(*(self._cut(rows, *field) for field in self._fields))
        if self._normalizer is not None:
            batch = self._normalizer.batch(batch)
        return batch if weight is None else batch._replace(weight=weight)

    @staticmethod
    def _cut(rows: Tensor, dtype: torch.dtype, shape: tuple[int, ...], offset: int) -> Tensor:
        column = rows[:, offset : offset + math.prod(shape) * dtype.itemsize].view(dtype)
        if not shape:
            column = column[:, 0]
        return column if dtype in KEPT else column.to(torch.float32)


class BatchBuffer:
    """Memory for the packed rows of one batch: the same bytes as a numpy array and as a torch tensor.

    For prioritised replay also the weights, and which rows they are.
    """

    def __init__(self, batch_size: int, stride: int, *, pinned: bool, prioritized: bool) -> None:
        self.tensor = torch.empty(batch_size, stride, dtype=torch.uint8, pin_memory=pinned)
        self.rows: NDArray[np.uint8] = self.tensor.numpy()
        self.weight = torch.empty(batch_size, pin_memory=pinned) if prioritized else None
        self.ids: NDArray[np.uint64] = np.zeros((batch_size if prioritized else 0, 3), np.uint64)
        self.copied: torch.cuda.Event | None = None  # set while a device may still be reading
        self.batch: Batch | None = None  # views of the tensors above, where nothing has to be copied


class Batches:
    """Draws batches, ahead of their use when `ahead` (a thread keeps two ready) or at the moment of use.

    Parameters
    ----------
    sampler, stride
        Of the replay buffer. Batches of a prioritised sampler have weights.
    device
        Where batches go; CUDA gets pinned memory and asynchronous copies.
    """

    def __init__(
        self,
        sampler: ReplaySampler | PrioritizedSampler,
        decoder: Decoder,
        *,
        batch_size: int,
        stride: int,
        device: torch.device,
        ahead: bool,
    ) -> None:
        self._sampler = sampler
        self._decoder = decoder
        self._stride = stride
        self._device = device
        self._cuda = device.type == "cuda"
        prioritized = isinstance(sampler, PrioritizedSampler)
        self._slots = [
            BatchBuffer(batch_size, stride, pinned=self._cuda, prioritized=prioritized)
            for _ in range(AHEAD + 1 if ahead else 1)
        ]
        self._ready: queue.Queue[BatchBuffer | BaseException] = queue.Queue()
        self._free: queue.Queue[BatchBuffer | None] = queue.Queue()
        self._lock = threading.Lock()  # held while the sampler draws
        self._thread = threading.Thread(target=self._prefetch, name="prefetch", daemon=True) if ahead else None
        self._used: BatchBuffer | None = None
        self._has_rows = False
        self._closing = threading.Event()

    def next(self, timeout: float | None = 0.0) -> Batch | None:
        """Next batch; it stays valid until the following call. None when none is ready within `timeout` seconds.

        The first call draws the first batch: call it only when the buffer holds what an update may see.
        """
        if self._thread is None:
            if not self._wait_for_rows(timeout):
                return None
            self._used = self._slots[0]
            self._draw(self._used)
            return self._deliver(self._used)
        if self._thread.ident is None:
            for slot in self._slots:
                self._free.put(slot)
            self._thread.start()
        if self._used is not None:
            self._free.put(self._used)
            self._used = None
        try:
            item = self._ready.get_nowait() if timeout == 0.0 else self._ready.get(timeout=timeout)
        except queue.Empty:
            return None
        if isinstance(item, BaseException):
            raise item
        self._used = item
        return self._deliver(item)

    def draw(self, batch_size: int) -> Batch:
        """One batch of another size, for once."""
        pinned, prioritized = self._cuda, isinstance(self._sampler, PrioritizedSampler)
        slot = BatchBuffer(batch_size, self._stride, pinned=pinned, prioritized=prioritized)
        self._draw(slot)
        return self._deliver(slot)

    def set_beta(self, beta: float) -> None:
        """Exponent of the importance weights of the batches that are drawn from now on (prioritised replay)."""
        if isinstance(self._sampler, PrioritizedSampler):
            self._sampler.beta = beta

    def update_priorities(self, td_errors: Tensor) -> int:
        """Priorities of the newest batch from `next`; returns how many of its rows were gone from the buffer."""
        if self._used is None or not isinstance(self._sampler, PrioritizedSampler):
            return 0
        return self._sampler.update_priorities(self._used.ids, td_errors.cpu().numpy())

    def sampler_state(self) -> bytes:
        """State of the sampler's random stream (batches that are ready have been drawn)."""
        with self._lock:
            return self._sampler.state

    def restore_sampler(self, state: bytes) -> None:
        """Go on with a random stream from `sampler_state`; before the first batch."""
        with self._lock:
            self._sampler.state = state

    def close(self) -> None:
        """End the thread."""
        self._closing.set()
        if self._thread is not None and self._thread.ident is not None:
            self._free.put(None)
            self._thread.join()

    def _wait_for_rows(self, timeout: float | None) -> bool:
        """Whether there are rows: those of the first env steps may still be on their way through another worker."""
        deadline = time.monotonic() + (math.inf if timeout is None else timeout)
        while not self._has_rows:
            self._has_rows = self._sampler.available > 0
            if not self._has_rows and (time.monotonic() >= deadline or self._closing.wait(POLL_S)):
                return False
        return True

    def _deliver(self, slot: BatchBuffer) -> Batch:
        if not self._cuda:
            if slot.batch is None or self._decoder.copies:
                slot.batch = self._decoder(slot.tensor, slot.weight)
            return slot.batch
        rows = slot.tensor.to(self._device, non_blocking=True)
        weight = None if slot.weight is None else slot.weight.to(self._device, non_blocking=True)
        slot.copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        slot.copied.record()
        return self._decoder(rows, weight)

    def _draw(self, slot: BatchBuffer) -> None:
        if slot.copied is not None:
            slot.copied.synchronize()
            slot.copied = None
        with self._lock:
            if slot.weight is None:
                assert isinstance(self._sampler, ReplaySampler)
                self._sampler.sample(slot.rows)
            else:
                assert isinstance(self._sampler, PrioritizedSampler)
                self._sampler.sample(slot.rows, ids=slot.ids, weights=slot.weight.numpy())

    def _prefetch(self) -> None:
        if self._cuda:
            torch.cuda.set_device(self._device)  # of each thread
        while (slot := self._free.get()) is not None:
            try:
                if not self._wait_for_rows(None):
                    return
                self._draw(slot)
            except BaseException as error:
                self._ready.put(error)
                return
            self._ready.put(slot)
