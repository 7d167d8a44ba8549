"""Prioritised sampling and the tail reader through the bindings. Their semantics are tested in Rust."""

from collections import Counter
from typing import Any

import numpy as np
import pytest

from rlz._native import PrioritizedSampler, Replay
from rlz.errors import ClosedError, NonFiniteError, TransportError

FIELDS = [("x", "u64", ())]
ALPHA, BETA, EPSILON = 0.7, 0.5, 1e-3


def make(rows: int, lanes: int = 2, size: int = 64) -> tuple[Replay, Any]:
    replay = Replay.create(FIELDS, buffer_size=size, lanes=lanes, run_id=1)
    writer = replay.writer(list(range(lanes)), worker=3)
    for number in range(rows):
        writer.append(number % lanes, (number,), version=0)
    return replay, writer


def prioritized(replay: Replay) -> PrioritizedSampler:
    return replay.prioritized_sampler(seed=[1, 2, 3, 4], alpha=ALPHA, beta=BETA, epsilon=EPSILON)


def draw(sampler: PrioritizedSampler, replay: Replay, size: int) -> tuple[Any, Any, Any]:
    rows, ids = np.zeros((size, replay.stride), np.uint8), np.zeros((size, 3), np.uint64)
    weights, meta = np.zeros(size, np.float32), np.zeros(size, np.uint64)
    sampler.sample(rows, ids=ids, weights=weights, meta=meta)
    values = rows[:, :8].copy().view(np.uint64)[:, 0]
    assert ((meta >> np.uint64(16)) & np.uint64(0xFFFF) == ids[:, 0]).all()
    return values.astype(int), ids, weights


def test_draws_and_weights_follow_the_definition() -> None:
    replay, _ = make(20)
    sampler = prioritized(replay)
    assert (sampler.available, sampler.largest, sampler.beta) == (20, 1.0, BETA)
    values, ids, weights = draw(sampler, replay, 400)
    assert Counter(values.tolist()) == pytest.approx(dict.fromkeys(range(20), 20), abs=2)
    assert (weights == 1.0).all()
    errors = (values % 5 - 2.0).astype(np.float32)
    assert sampler.update_priorities(ids, errors) == 0
    p = (np.abs(np.arange(20) % 5 - 2.0) + EPSILON) ** ALPHA
    values, _, weights = draw(sampler, replay, 10_000)
    counts = Counter(values.tolist())
    for value, probability in enumerate(p / p.sum()):
        assert abs(counts[value] - 10_000 * probability) <= 2
    np.testing.assert_allclose(weights, (p[values] / p[values].min()) ** -BETA, rtol=1e-5)
    assert sampler.largest == pytest.approx(2 + EPSILON)
    sampler.beta = 1.0
    values, _, weights = draw(sampler, replay, 100)
    np.testing.assert_allclose(weights, p[values].min() / p[values], rtol=1e-5)


def test_an_update_that_comes_too_late_is_counted() -> None:
    replay, writer = make(10, lanes=1, size=10)
    sampler = prioritized(replay)
    values, ids, _ = draw(sampler, replay, 10)
    for number in range(10, 16):
        writer.append(0, (number,), version=0)
    gone = int((values < 6).sum())
    assert gone > 0
    assert sampler.update_priorities(ids, np.ones(10, np.float32)) == gone == sampler.stale


def test_weights_of_a_lane_go_to_another_sampler() -> None:
    replay, _ = make(30)
    a, b = prioritized(replay), prioritized(replay)
    values, ids, _ = draw(a, replay, 50)
    a.update_priorities(ids, values.astype(np.float32))
    for lane in range(2):
        first, position, weights = a.weights(lane)
        assert (first, position, weights.dtype, len(weights)) == (1, 0, np.float64, 15)
        assert b.restore_weights(lane, first, position, weights, a.largest) == 15
    b.state = a.state
    for ours, theirs in zip(draw(a, replay, 64), draw(b, replay, 64), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_what_is_refused() -> None:
    replay, _ = make(0)
    sampler = prioritized(replay)
    rows, ids, weights = np.zeros((4, replay.stride), np.uint8), np.zeros((4, 3), np.uint64), np.zeros(4, np.float32)
    with pytest.raises(TransportError, match="no row to draw"):
        sampler.sample(rows, ids=ids, weights=weights)
    with pytest.raises(ValueError, match=r"ids: .*shape \(4, 3\), got a uint64 array of shape \(3, 3\)"):
        sampler.sample(rows, ids=ids[:3], weights=weights)
    with pytest.raises(NonFiniteError):
        sampler.update_priorities(ids, np.full(4, np.nan, np.float32))
    with pytest.raises(ValueError, match="beta"):
        sampler.beta = 1.5
    with pytest.raises(ValueError, match="alpha"):
        replay.prioritized_sampler(seed=[1, 2, 3, 4], alpha=-0.1)
    sampler.close()
    with pytest.raises(ClosedError):
        sampler.update_priorities(ids, weights)


def test_the_tail_gives_rows_in_order_and_counts_what_it_missed() -> None:
    replay, writer = make(0, lanes=1, size=10)
    tail = replay.tail()
    rows, meta, tickets = np.zeros((8, replay.stride), np.uint8), np.zeros(8, np.uint64), np.zeros(8, np.uint64)
    assert tail.read(0, rows, meta, tickets) == 0
    for number in range(5):
        writer.append(0, (number,), version=number)
    assert tail.read(0, rows, meta, tickets) == 5
    assert rows[:5, :8].copy().view(np.uint64)[:, 0].tolist() == [0, 1, 2, 3, 4]
    assert tickets[:5].tolist() == [1, 2, 3, 4, 5]
    assert tail.cursors == [6]
    for number in range(5, 40):
        writer.append(0, (number,), version=0)
    count = tail.read(0, rows, meta, tickets)
    assert count > 0
    assert tail.lapped == int(tickets[0]) - 6 > 0
    assert rows[:count, :8].copy().view(np.uint64)[:, 0].tolist() == [int(t) - 1 for t in tickets[:count]]
    tail.seek(0, 40)
    assert tail.read(0, rows, meta, tickets) == 1
    with pytest.raises(ValueError, match="ticket"):
        tail.seek(0, 0)
    assert tail.lost == 0
