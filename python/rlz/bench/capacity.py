"""Measures what sampling costs as the replay buffer grows: rlz and numpy's `take` in turns, size after size."""

import json
import sys
from typing import Any

import numpy as np

from rlz.bench.buffers import fields_of, filled, in_turns, take, uniform
from rlz.bench.writer import Writing

CAPACITIES = (10_000, 100_000, 1_000_000, 10_000_000)


def metric(rows: int, batch: int) -> str:
    """Name of the rate at one capacity."""
    return f"sample_{batch}_of_{rows}"


def measure(env: str, batches: list[int], seconds: float) -> dict[str, Any]:
    """Rates by contender and metric; a second process writes to the buffer that is sampled."""
    fields = fields_of(env, "f32")
    found: dict[str, Any] = {"rlz": {}, "numpy": {}}
    for rows in CAPACITIES:
        replay = filled(fields, rows)
        table = np.ones((rows, replay.stride // 4), np.float32)
        sides = {
            "rlz": {metric(rows, batch): uniform(replay, batch) for batch in batches},
            "numpy": {metric(rows, batch): take(table, batch) for batch in batches},
        }
        with Writing(replay):
            for side, by in in_turns(sides, seconds).items():
                found[side] |= by
        replay.close()
    return found


if __name__ == "__main__":
    print(json.dumps(measure(**json.loads(sys.argv[1]))))
