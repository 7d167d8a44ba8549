"""Measures rlz's replay buffer and plain numpy arrays in turns, in this process.

`memcpy` copies as many bytes from one place to another, which is the limit. numpy stands for the bare work: `take` of
the same rows from an array (nothing checked, one process only, the newest rows not told from older ones) and assignment
to slices of arrays. Rows are those of the environment, as float32 or float64; a second process appends to rlz's buffer
while it is sampled.
"""

import json
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rlz.bench.result import is_cost
from rlz.bench.writer import Writing

if TYPE_CHECKING:
    from rlz._native import Replay

Call = Callable[[], int]
"""Does some work; returns how many rows (for a rate) or calls (for a time) that was."""

Sides = Mapping[str, Mapping[str, Call]]
"""Calls by contender and metric."""

LANES = 4
CALLS = 100
"""Appends between two looks at the clock."""

SEED = [1, 2, 3, 4]


def fields_of(env: str, dtype: str) -> list[tuple[str, str, tuple[int, ...]]]:
    """Fields of an environment's rows, all of one dtype ("f32" or "f64")."""
    from rlz import envs
    from rlz.config import resolve

    spec = envs.inspect_env(resolve("sac", env, {}, None), on_note=lambda _: None)
    return [(name, dtype, tuple(shape)) for name, _, shape in spec.fields()]


def filled(fields: list[tuple[str, str, tuple[int, ...]]], rows: int, settle_s: float = 30.0) -> "Replay":
    """Make a buffer that is full, and whose pages are where they stay; waits for that for `settle_s` at most."""
    from rlz._native import Replay

    replay = Replay.create(fields, buffer_size=rows, lanes=LANES, run_id=1)
    packed = np.zeros((min(65_536, replay.lane_capacity), replay.stride), np.uint8)
    packed[:] = np.random.default_rng(1).integers(0, 64, replay.stride, np.uint8)
    for lane in range(LANES):
        for start in range(0, replay.lane_capacity, len(packed)):
            chunk = packed[: min(len(packed), replay.lane_capacity - start)]
            replay.restore_rows(lane, chunk, np.zeros(len(chunk), np.uint64), worker=1)
    settle(uniform(replay, 256), settle_s)
    return replay


def settle(call: Call, most: float = 30.0) -> None:
    """Call until its rate stays within a tenth for half a second: a new buffer is still being moved to huge pages."""
    end = time.monotonic() + most
    last: deque[float] = deque(maxlen=5)
    while time.monotonic() < end:
        last.append(rate(call, 0.1))
        if len(last) == last.maxlen and min(last) >= 0.9 * max(last):
            return


def uniform(replay: "Replay", batch: int, threads: int = 1) -> Call:
    """Draw a batch uniformly."""
    sampler = replay.sampler(seed=SEED)
    out = np.zeros((batch, replay.stride), np.uint8)

    def call() -> int:
        sampler.sample(out, threads=threads)
        return batch

    return call


def take(table: NDArray[Any], batch: int) -> Call:
    """Draw rows of an array uniformly."""
    rng = np.random.default_rng(1)
    out = np.zeros((batch, table.shape[1]), table.dtype)

    def call() -> int:
        # mode="clip" writes into `out` directly; the default copies once more.
        np.take(table, rng.integers(0, len(table), batch), axis=0, out=out, mode="clip")
        return batch

    return call


def memcpy(row_bytes: int, batch: int) -> Call:
    """Copy the bytes of a batch, which lie together, as nothing that draws rows can."""
    source, out = np.ones(batch * row_bytes, np.uint8), np.zeros(batch * row_bytes, np.uint8)

    def call() -> int:
        np.copyto(out, source)
        return batch

    return call


def prioritized(replay: "Replay", batches: tuple[int, ...]) -> dict[int, Call]:
    """Draw a batch in proportion to priorities and set new ones, by batch size; one sampler for all."""
    sampler = replay.prioritized_sampler(seed=SEED)
    rng = np.random.default_rng(1)

    def call_of(batch: int) -> Call:
        out, ids = np.zeros((batch, replay.stride), np.uint8), np.zeros((batch, 3), np.uint64)
        weights, errors = np.zeros(batch, np.float32), rng.exponential(1.0, batch).astype(np.float32)

        def call() -> int:
            sampler.sample(out, ids=ids, weights=weights)
            sampler.update_priorities(ids, errors)
            return batch

        return call

    return {batch: call_of(batch) for batch in batches}


def appends(fields: list[tuple[str, str, tuple[int, ...]]], rows: int) -> dict[str, dict[str, Call]]:
    """Append one row, and one row of each of sixteen environments, to rlz's buffer and to arrays."""
    from rlz._native import Replay

    many = 16
    replay = Replay.create(fields, buffer_size=rows, lanes=many, run_id=1)
    lanes = list(range(many))
    writer = replay.writer(lanes, worker=1)
    batch = tuple(np.ones((many, *shape), np.float32) for _, _, shape in fields)
    one = tuple(column[0] if column.ndim > 1 else 1.0 for column in batch)
    columns = [np.zeros((rows, *shape), np.float32) for _, _, shape in fields]
    at = 0

    def rlz_one() -> int:
        for _ in range(CALLS):
            writer.append(0, one, version=1)
        return CALLS

    def rlz_many() -> int:
        for _ in range(CALLS):
            writer.append_batch(lanes, batch, version=1)
        return CALLS

    def numpy_one() -> int:
        nonlocal at
        for _ in range(CALLS):
            for column, value in zip(columns, one, strict=True):
                column[at] = value
            at = (at + 1) % (rows - many)
        return CALLS

    def numpy_many() -> int:
        nonlocal at
        for _ in range(CALLS):
            for column, value in zip(columns, batch, strict=True):
                column[at : at + many] = value
            at = (at + many) % (rows - many)
        return CALLS

    return {
        "rlz": {"append_us": rlz_one, "append_16_us": rlz_many},
        "numpy": {"append_us": numpy_one, "append_16_us": numpy_many},
    }


def in_turns(sides: Sides, seconds: float, turns: int = 3) -> dict[str, dict[str, float]]:
    """Median of some turns of each contender and metric; `seconds` for all turns of one of them."""
    found: dict[str, dict[str, list[float]]] = {side: {metric: [] for metric in calls} for side, calls in sides.items()}
    for metric in dict.fromkeys(metric for calls in sides.values() for metric in calls):
        for _ in range(turns):
            for side, calls in sides.items():
                if metric in calls:
                    per_second = rate(calls[metric], seconds / turns)
                    found[side][metric].append(1e6 / per_second if is_cost(metric) else per_second)
    return {side: {m: sorted(values)[turns // 2] for m, values in by.items()} for side, by in found.items()}


def rate(call: Call, seconds: float) -> float:
    """What `call` returns, per second; one call warms up."""
    call()
    done, begin = 0, time.perf_counter()
    while True:
        done += call()
        passed = time.perf_counter() - begin
        if passed >= seconds:
            return done / passed


def measure(env: str, dtype: str, rows: int, batches: list[int], seconds: float) -> dict[str, Any]:
    """Measure one dtype: rates by contender and metric. Two threads, priorities and appends with float32 only."""
    narrow = dtype == "f32"
    suffix = "" if narrow else "_f64"
    fields = fields_of(env, dtype)
    replay = filled(fields, rows)
    table = np.zeros((rows, replay.stride // (4 if narrow else 8)), np.float32 if narrow else np.float64)
    table[:] = 1.0
    ours = {f"sample_{batch}{suffix}": uniform(replay, batch) for batch in batches}
    theirs = {f"sample_{batch}{suffix}": take(table, batch) for batch in batches}
    limit = {f"sample_{batch}{suffix}": memcpy(replay.stride, batch) for batch in batches}
    if narrow:
        ours |= {f"sample_{batch}_2_threads": uniform(replay, batch, threads=2) for batch in batches}
        ours |= {f"prioritized_{batch}": call for batch, call in prioritized(replay, tuple(batches)).items()}
    with Writing(replay):
        found = in_turns({"rlz": ours, "numpy": theirs, "memcpy": limit}, seconds)
    if narrow:
        for side, by in in_turns(appends(fields, rows), seconds).items():
            found[side] |= by
    return {**found, "row_bytes": replay.stride}


if __name__ == "__main__":
    print(json.dumps(measure(**json.loads(sys.argv[1]))))
