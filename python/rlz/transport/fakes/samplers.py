"""Fake samplers: uniform, and in proportion to priorities."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rlz.errors import NonFiniteError, TransportError
from rlz.transport.fakes.buffer import Buffer
from rlz.transport.fakes.handle import Handle

SEED_WORDS = 4
_WORDS = struct.Struct("<4Q")
_MASK = (1 << 64) - 1


class _Sampler(Handle[Buffer]):
    def __init__(self, name: str, buffer: Buffer, seed: Sequence[int]) -> None:
        super().__init__(name, buffer)
        words = [int(word) for word in seed]
        if len(words) != SEED_WORDS:
            raise ValueError(f"seed: given {len(words)} words, expected 4")
        self._bits = np.random.PCG64(words)
        self._random = np.random.Generator(self._bits)

    @property
    def redraws(self) -> int:
        """None is ever needed."""
        self._get()
        return 0

    @property
    def state(self) -> bytes:
        """State of the random stream."""
        self._get()
        numbers = self._bits.state["state"]
        return _WORDS.pack(*(numbers[name] >> shift & _MASK for name in ("state", "inc") for shift in (0, 64)))

    @state.setter
    def state(self, value: bytes) -> None:
        self._get()
        if len(value) != _WORDS.size:
            raise ValueError(f"sampler state: given {len(value)} bytes, expected 32 bytes, as read from `state`")
        low, high, inc_low, inc_high = _WORDS.unpack(value)
        state = self._bits.state
        state["state"]["state"], state["state"]["inc"] = high << 64 | low, inc_high << 64 | inc_low
        self._bits.state = state

    def _fill(
        self,
        picks: Sequence[tuple[int, int]],
        rows: NDArray[np.uint8],
        meta: NDArray[np.uint64] | None,
        ids: NDArray[np.uint64] | None,
    ) -> None:
        buffer = self._get()
        for i, (lane, ticket) in enumerate(picks):
            rows[i], word = buffer.rows[lane][ticket]
            if meta is not None:
                meta[i] = word
            if ids is not None:
                ids[i] = lane, _slot(buffer, ticket), ticket

    def _check(
        self,
        rows: NDArray[np.uint8],
        ids: NDArray[np.uint64] | None,
        threads: int,
        **words: NDArray[np.uint64] | None,
    ) -> Buffer:
        buffer = self._get()
        buffer.check_rows("rows", rows)
        if ids is not None and ids.shape != (len(rows), 3):
            raise ValueError(f"ids: expected shape ({len(rows)}, 3)")
        buffer.check_words(len(rows), **words)
        if threads < 1:
            raise ValueError(f"threads: given {threads}, expected at least 1")
        return buffer


class ReplaySampler(_Sampler):
    """As `rlz.transport.ReplaySampler`."""

    def sample(
        self,
        rows: NDArray[np.uint8],
        *,
        meta: NDArray[np.uint64] | None = None,
        ids: NDArray[np.uint64] | None = None,
        threads: int = 1,
    ) -> None:
        """Draw rows uniformly."""
        window = self._check(rows, ids, threads, meta=meta).window()
        if not window:
            raise TransportError("the replay buffer is empty: wait until a sampler has written rows")
        picks = self._random.integers(len(window), size=len(rows))
        self._fill([window[pick] for pick in picks], rows, meta, ids)

    @property
    def available(self) -> int:
        """Rows that can be drawn now."""
        return len(self._get().window())


class PrioritizedSampler(_Sampler):
    """As `rlz.transport.PrioritizedSampler`."""

    def __init__(self, buffer: Buffer, seed: Sequence[int], alpha: float, beta: float, epsilon: float) -> None:
        super().__init__("prioritized sampler", buffer, seed)
        self._alpha = _exponent("alpha", alpha)
        self._beta = _exponent("beta", beta)
        if not (np.isfinite(epsilon) and epsilon > 0):
            raise ValueError(f"eps: given {epsilon}, expected a finite number above 0")
        self._epsilon = epsilon
        self._largest = 1.0
        self._stale = 0
        self._weights: dict[tuple[int, int], float] = {}
        self._known = [0] * buffer.lanes
        self._shift = [0] * buffer.lanes

    def sample(
        self,
        rows: NDArray[np.uint8],
        *,
        ids: NDArray[np.uint64],
        weights: NDArray[np.float32],
        meta: NDArray[np.uint64] | None = None,
        threads: int = 1,
    ) -> None:
        """Draw rows in proportion to their priorities."""
        self._check(rows, ids, threads, meta=meta)
        if len(weights) != len(rows):
            raise ValueError(f"weights: given {len(weights)} for {len(rows)} rows, expected one per row")
        self._catch_up()
        sums = np.cumsum(list(self._weights.values()))
        if not len(sums) or sums[-1] <= 0:
            raise TransportError("the replay buffer has no row to draw: wait until a sampler has written rows")
        places = (np.arange(len(rows)) + self._random.random(len(rows))) * sums[-1] / len(rows)
        keys = list(self._weights)
        picks = [keys[pick] for pick in np.searchsorted(sums, places, side="right").clip(max=len(keys) - 1)]
        self._fill(picks, rows, meta, ids)
        drawn = np.array([self._weights[pick] for pick in picks])
        weights[:] = (drawn / drawn.min()) ** -self._beta

    def update_priorities(self, ids: NDArray[np.uint64], errors: NDArray[np.float32]) -> int:
        """Set priorities from TD errors."""
        buffer = self._get()
        if ids.shape != (len(errors), 3):
            raise ValueError(f"ids: expected shape ({len(errors)}, 3)")
        if not np.isfinite(errors).all():
            raise NonFiniteError("priorities has a value that is not finite")
        if (ids[:, 0] >= buffer.lanes).any() or (ids[:, 1] >= buffer.capacity).any():
            raise ValueError("ids: expected ids as a sample of this buffer gave them")
        self._catch_up()
        stale = 0
        for (lane, slot, ticket), error in zip(ids.tolist(), errors.tolist(), strict=True):
            if slot != _slot(buffer, ticket) or self._weights.get((lane, ticket), 0.0) == 0.0:
                stale += 1
                continue
            priority = abs(error) + self._epsilon
            self._largest = max(self._largest, priority)
            self._weights[lane, ticket] = priority**self._alpha
        self._stale += stale
        return stale

    @property
    def beta(self) -> float:
        """Exponent of the importance weights."""
        self._get()
        return self._beta

    @beta.setter
    def beta(self, value: float) -> None:
        self._get()
        self._beta = _exponent("beta", value)

    @property
    def largest(self) -> float:
        """Largest priority so far."""
        self._get()
        return self._largest

    @property
    def stale(self) -> int:
        """Updates that came too late."""
        self._get()
        return self._stale

    @property
    def available(self) -> int:
        """Rows that can be drawn now."""
        self._catch_up()
        return len(self._weights)

    def weights(self, lane: int) -> tuple[int, int, NDArray[np.float64]]:
        """First ticket, its position, and priority^alpha of the lane's rows from there on."""
        buffer = self._get()
        buffer.lane(lane)
        found = {ticket: weight for (one, ticket), weight in self._weights.items() if one == lane}
        first = min(found, default=self._known[lane] + 1)
        position = (_slot(buffer, first) + self._shift[lane]) % buffer.capacity
        return first, position, np.array([found[ticket] for ticket in sorted(found)], np.float64)

    def restore_weights(
        self, lane: int, first: int, position: int, weights: NDArray[np.float64], largest: float
    ) -> int:
        """Take back saved weights."""
        buffer = self._get()
        buffer.lane(lane)
        if not (np.isfinite(weights).all() and (weights >= 0).all() and np.isfinite(largest) and largest >= 0):
            raise NonFiniteError("saved priorities has a value that is not finite")
        if first < 1:
            raise ValueError(f"first: given {first}, expected a ticket from 1 on")
        self._largest = max(self._largest, largest)
        self._catch_up()
        self._shift[lane] = position - _slot(buffer, first)
        known = [(lane, first + i) for i in range(len(weights)) if (lane, first + i) in self._weights]
        self._weights.update({key: float(weights[key[1] - first]) for key in known})
        return len(known)

    def _catch_up(self) -> None:
        """Give new rows the largest priority, and forget those that left the window."""
        new = self._largest**self._alpha
        self._weights = {key: self._weights.get(key, new) for key in self._get().window()}
        self._known = list(self._get().committed)


def _slot(buffer: Buffer, ticket: int) -> int:
    return (ticket - 1) % buffer.capacity


def _exponent(what: str, value: float) -> float:
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{what}: given {value}, expected 0 to 1")
    return value
