"""What both samplers promise, seen from Python: the same rows again from a state, every row, weights, priorities."""

import numpy as np
import pytest

from rlz.errors import TransportError
from rlz.transport import Replay

SEED = [1, 2, 3, 4]
ROW = [("obs", "f32", (2,)), ("next_obs", "f32", (2,)), ("reward", "f32", ()), ("discount", "f32", ()), ("n", "u8", ())]


def test_what_samplers_promise() -> None:
    replay = Replay.create(ROW, buffer_size=20, lanes=2, run_id=1)
    writer, sampler = replay.writer([0, 1], worker=1), replay.sampler(seed=SEED)
    prioritized = replay.prioritized_sampler(seed=SEED, alpha=1.0, beta=1.0, epsilon=1e-9)
    rows, meta = np.zeros((400, replay.stride), np.uint8), np.zeros(400, np.uint64)
    ids, weights = np.zeros((400, 3), np.uint64), np.zeros(400, np.float32)
    for sample in (lambda: sampler.sample(rows), lambda: prioritized.sample(rows, ids=ids, weights=weights)):
        with pytest.raises(TransportError, match="wait until"):
            sample()
    zero = np.zeros(2, np.float32)
    for number in range(6):
        writer.append(number % 2, (zero, zero, float(number), 1.0, number), version=number)
    at = next(offset for name, _, _, offset in replay.fields if name == "n")
    state = sampler.state
    sampler.sample(rows, meta=meta, ids=ids)
    assert np.bincount(rows[:, at], minlength=6).min() > 30
    # Row number n is row n // 2 + 1 of lane n % 2.
    assert ((meta >> np.uint64(32)) == rows[:, at]).all()
    assert (ids[:, 0] == rows[:, at] % 2).all()
    assert (ids[:, 2] == rows[:, at] // 2 + 1).all()
    assert (ids[:, 1] == ids[:, 2] - 1).all()
    again = np.zeros_like(rows)
    sampler.state = state
    sampler.sample(again)
    assert (again == rows).all()
    errors = np.array([1, 2, 3, 4, 5, 6], np.float32)
    known = np.array([[n % 2, n // 2, n // 2 + 1] for n in range(6)], np.uint64)
    assert prioritized.update_priorities(known, -errors) == 0
    assert prioritized.largest == pytest.approx(6)
    prioritized.sample(rows, ids=ids, weights=weights)
    counts = np.bincount(rows[:, at], minlength=6)
    np.testing.assert_allclose(counts / 400, errors / errors.sum(), atol=0.01)  # one draw in each equal part
    np.testing.assert_allclose(weights, 1 / (rows[:, at] + 1), rtol=1e-5)
    first, position, saved = prioritized.weights(1)
    assert (first, position, np.round(saved, 6).tolist()) == (1, 0, [2, 4, 6])
    other = replay.prioritized_sampler(seed=SEED, alpha=1.0)
    assert other.restore_weights(1, first, 5, saved, 6.0) == 3
    assert other.weights(1)[:2] == (1, 5)
    assert np.round(other.weights(1)[2], 6).tolist() == [2, 4, 6]
    for bad in (SEED[:3], [*SEED, 5]):
        with pytest.raises(ValueError, match="seed"):
            replay.sampler(seed=bad)
