"""Priorities reach the rows that they belong to, whatever the number of lanes of the resumed run."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rlz.records.checkpoint import Checkpoint
from rlz.records.priorities import Priorities, restore_priorities
from rlz.records.replay_files import ReplaySaver
from rlz.transport import Replay


def make(lanes: int) -> Replay:
    return Replay.create([("weight", "f64", ())], buffer_size=100, lanes=lanes, run_id=1)


@pytest.mark.parametrize("lanes", [1, 2, 3])
def test_weights_follow_their_rows(tmp_path: Path, lanes: int) -> None:
    replay, again = make(2), make(lanes)
    writer = replay.writer([0, 1], worker=1)
    weights = [np.arange(1.0, 10.0), np.arange(101.0, 105.0)]
    for lane, values in enumerate(weights):
        for value in values:
            writer.append(lane, (value,), version=0)
    saved = ReplaySaver(tmp_path, replay).save(replay.committed())
    tensors = Priorities([1, 1], [0, 0], weights, 200.0).tensors()
    checkpoint: Any = SimpleNamespace(run_dir=tmp_path, path=tmp_path, replay=saved, priorities=tensors)
    assert Checkpoint.restore_replay(checkpoint, again, worker=1) == 13
    sampler = again.prioritized_sampler(seed=[1, 2, 3, 4])
    assert restore_priorities(sampler, checkpoint, again, alpha=0.6) == 13
    for lane in range(lanes):
        count = again.committed()[lane]
        rows, meta = np.empty((count, again.stride), np.uint8), np.empty(count, np.uint64)
        assert again.read_rows(lane, 1, rows, meta) == count
        first, _, found = sampler.weights(lane)
        assert first == 1
        assert found.tolist() == rows[:, :8].copy().view(np.float64)[:, 0].tolist()
