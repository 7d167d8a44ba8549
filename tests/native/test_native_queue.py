"""Trajectory queue through the bindings: arrays on slots, and who keeps them. The protocol is tested in Rust."""

import gc
import threading
import time
from typing import Any

import numpy as np
import pytest

from rlz._native import TrajectoryQueue
from rlz.errors import ClosedError, TransportError, WaitTimeoutError

ALL = [
    ("half", "f16", (2, 3)),
    ("brain", "bf16", (4,)),
    ("single", "f32", (2,)),
    ("double", "f64", ()),
    ("obs.image", "u8", (2, 8, 8, 3)),
    ("obs.pose", "i8", (5,)),
    ("a", "u16", (1,)),
    ("b", "i16", (1,)),
    ("c", "u32", (1,)),
    ("d", "i32", (1,)),
    ("e", "u64", (1,)),
    ("f", "i64", (1,)),
    ("done", "bool", (7,)),
]
NUMPY = {
    "f16": "f2", "bf16": "u2", "f32": "f4", "f64": "f8", "u8": "u1", "i8": "i1", "u16": "u2", "i16": "i2",
    "u32": "u4", "i32": "i4", "u64": "u8", "i64": "i8", "bool": "?",
}  # fmt: skip
FIELDS = [("obs", "f32", (4, 2)), ("length", "i32", ())]


def make(fields: Any = None, **options: Any) -> TrajectoryQueue:
    return TrajectoryQueue.create(fields or FIELDS, **{"slots": 4, "run_id": 1, **options})


def values(seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    found: dict[str, Any] = {}
    for name, dtype, shape in ALL:
        kind = np.dtype(NUMPY[dtype])
        found[name] = (rng.uniform(0, 100, shape)).astype(kind) if shape else np.asarray(seed / 3, kind)
    return found


def test_every_dtype_goes_through_in_every_way() -> None:
    queue = TrajectoryQueue.attach((made := make(ALL)).fd)
    producer, consumer = made.producer(worker=1), queue.consumer(worker=2)
    assert [field[:3] for field in queue.fields] == ALL
    assert producer.put(timeout=0, note=5, **values(1)) == 1
    with producer.acquire(timeout=0) as segment:  # type: ignore[union-attr]
        assert segment.keys() == [name for name, _, _ in ALL]
        for name, value in values(2).items():
            segment[name][...] = value
        segment.note = 6
    for seed in (1, 2):
        with consumer.pop(timeout=0) as got:
            assert (got.ticket, got.note, got.redeliveries) == (seed, seed + 4, 0)
            assert 0.0 <= got.age < 10.0
            for name, value in values(seed).items():
                assert got[name].dtype == value.dtype
                np.testing.assert_array_equal(got[name], value)
    assert queue.occupancy() == {"free": 4, "writing": 0, "full": 0, "reading": 0}
    for seed in (3, 4, 5):
        producer.put(timeout=0, **values(seed))
    into = {name: np.zeros((4, *shape), NUMPY[dtype]) for name, dtype, shape in ALL}
    tickets, notes = np.zeros(4, np.uint64), np.ones(4, np.uint64)
    assert consumer.pop_batch(into, timeout=0.01, tickets=tickets, notes=notes) == 3
    assert (tickets.tolist(), notes.tolist()) == ([3, 4, 5, 0], [0, 0, 0, 1])
    for row, seed in enumerate((3, 4, 5)):
        for name, value in values(seed).items():
            np.testing.assert_array_equal(into[name][row], value)
    counters = queue.counters()
    assert (counters["committed"], counters["consumed"], counters["copied"]) == (5, 5, 0)


def obs(value: float) -> Any:
    return np.full((4, 2), value, np.float32)


def test_an_exception_aborts_the_segment() -> None:
    queue = make()
    producer = queue.producer(worker=1)

    def fail() -> None:
        with producer.acquire(timeout=0) as segment:  # type: ignore[union-attr]
            segment["obs"][:] = 1
            raise RuntimeError("the environment broke")

    with pytest.raises(RuntimeError, match="broke"):
        fail()
    assert queue.occupancy()["free"] == 4
    segment = producer.acquire(timeout=0)
    assert segment is not None
    assert queue.occupancy()["writing"] == 1
    del segment
    assert queue.occupancy()["free"] == 4, "one that is forgotten goes back"
    segment = producer.acquire(timeout=0)
    assert segment is not None
    assert segment.commit() == 1
    for call in (segment.commit, lambda: segment["obs"], segment.keys):
        with pytest.raises(ClosedError, match="committed, aborted or released"):
            call()


def test_an_array_that_outlives_its_block_has_memory_of_its_own() -> None:
    queue = make()
    producer, consumer = queue.producer(worker=1), queue.consumer(worker=2)

    def write(value: float) -> Any:
        with producer.acquire(timeout=0) as segment:  # type: ignore[union-attr]
            view = segment["obs"]
            view[:] = value
            segment.note = 9
            assert segment.note == 9
        return view

    kept = [write(7)[1:], write(6)]
    assert queue.counters()["copied"] == 2
    assert queue.occupancy() == {"free": 2, "writing": 0, "full": 2, "reading": 0}
    kept[0][:] = 8  # still ours, and nobody else sees it
    with consumer.pop(timeout=0) as got:
        assert got.note == 9
        np.testing.assert_array_equal(got["obs"], obs(7))
    np.testing.assert_array_equal(kept[1], obs(6))
    del kept[1]
    gc.collect()
    assert queue.occupancy()["free"] == 3


def test_an_array_read_from_a_segment_stays_as_it_was() -> None:
    queue = make(slots=1)
    producer, consumer = queue.producer(worker=1), queue.consumer(worker=2)
    producer.put(obs=obs(3), length=4, timeout=0)
    with consumer.pop(timeout=0) as got:
        view = got["obs"]
        assert int(got["length"]) == 4
        with pytest.raises(ValueError, match="read-only"):
            view[0] = 1
        with pytest.raises(ValueError, match="WRITEABLE"):
            view.flags.writeable = True
    assert queue.occupancy()["free"] == 1
    producer.put(obs=obs(5), length=4, timeout=0)
    np.testing.assert_array_equal(view, obs(3))
    queue.close()
    producer.close()
    consumer.close()
    np.testing.assert_array_equal(view, obs(3))


@pytest.mark.parametrize("when_full", ["block", "drop_new", "drop_oldest"])
def test_what_happens_when_it_is_full(when_full: str) -> None:
    queue = make(slots=2, when_full=when_full)
    producer, consumer = queue.producer(worker=1), queue.consumer(worker=2)
    assert queue.when_full == when_full
    for value in (1, 2):
        producer.put(obs=obs(value), length=value, timeout=0)
    if when_full == "block":
        begin = time.monotonic()
        with pytest.raises(WaitTimeoutError):
            producer.put(obs=obs(3), length=3, timeout=0.05)
        assert time.monotonic() - begin >= 0.05
    else:
        ticket = producer.put(obs=obs(3), length=3, timeout=0)
        assert ticket == (None if when_full == "drop_new" else 3)
        assert queue.counters()[f"dropped_{when_full[5:]}"] == 1
        assert producer.acquire(timeout=0) is None or when_full == "drop_oldest"
    first = int(consumer.pop(timeout=0)["length"])
    assert first == {"block": 1, "drop_new": 1, "drop_oldest": 3}[when_full]


@pytest.mark.parametrize("redelivery", ["at_least_once", "at_most_once"])
def test_reaping_gives_back_what_the_dead_held(redelivery: str) -> None:
    queue = make(redelivery=redelivery, max_deliveries=2)
    assert (queue.redelivery, queue.max_deliveries) == (redelivery, 2)
    producer = queue.producer(worker=1)
    producer.put(obs=obs(1), length=1, timeout=0)
    segment = producer.acquire(timeout=0)
    dead = queue.consumer(worker=2).pop(timeout=0)
    assert queue.reap(1) == (1, 0, 0)
    if redelivery == "at_most_once":
        assert queue.reap(2) == (0, 0, 1)
        assert queue.counters()["dropped_at_most_once"] == 1
    else:
        assert queue.reap(2) == (0, 1, 0)
        again = queue.consumer(worker=3).pop(timeout=0)
        assert again.redeliveries == 1
        assert queue.reap(3) == (0, 0, 1)
        assert queue.counters()["dropped_deliveries"] == 1
    assert queue.occupancy()["free"] == 4
    assert segment is not None
    with pytest.raises(TransportError, match="no longer owns"):
        segment.commit()
    with pytest.raises(TransportError, match="no longer owns"):
        dead.release()


def test_finishing_ends_both_sides() -> None:
    queue = make()
    producer, consumer = queue.producer(worker=1), queue.consumer(worker=2)
    producer.put(obs=obs(1), length=1, timeout=0)
    assert queue.oldest_age is not None
    queue.finish()
    assert queue.finished
    with pytest.raises(ClosedError):
        producer.acquire(timeout=None)
    consumer.pop(timeout=None).release()
    assert queue.oldest_age is None
    with pytest.raises(ClosedError):
        consumer.pop(timeout=None)


def test_a_wait_lets_other_threads_run_and_is_woken() -> None:
    queue = make()
    producer, consumer = queue.producer(worker=1), queue.consumer(worker=2)

    def late() -> None:
        time.sleep(0.05)
        producer.put(obs=obs(1), length=5, timeout=0)

    thread = threading.Thread(target=late)
    thread.start()
    assert int(consumer.pop(timeout=10)["length"]) == 5
    thread.join()
    assert queue.counters()["missed_wakeups"] == 0


@pytest.mark.parametrize(
    ("fields", "error", "text"),
    [
        ({"obs": np.zeros((4, 2))}, TypeError, "float32"),
        ({"obs": np.zeros((4, 3), np.float32)}, ValueError, r"shape \(4, 2\)"),
        ({"obs": np.zeros((2, 4), np.float32).T}, TypeError, "not C-contiguous"),
        ({"length": 2**40}, ValueError, "does not fit"),
        ({"size": 1}, KeyError, "expected the fields obs, length"),
    ],
)
def test_a_segment_that_does_not_fit_is_refused_and_takes_no_slot(
    fields: dict[str, Any], error: type[Exception], text: str
) -> None:
    queue = make()
    given = {"obs": obs(0), "length": 1, **fields}
    with pytest.raises(error, match=text):
        queue.producer(worker=1).put(timeout=0, **given)
    with pytest.raises(KeyError):
        queue.producer(worker=1).put(timeout=0, obs=obs(0))
    assert queue.occupancy()["free"] == 4


def test_batches_that_do_not_fit_are_refused() -> None:
    queue = make()
    consumer = queue.consumer(worker=1)
    frozen = np.zeros((2, 4, 2), np.float32)
    frozen.flags.writeable = False
    for bad in (
        {"obs": frozen},
        {"obs": np.zeros((2, 4, 2))},
        {"obs": np.zeros((2, 4, 2), np.float32), "length": np.zeros(3, np.int32)},
    ):
        with pytest.raises(ValueError, match=r"into..(obs|length)"):
            consumer.pop_batch(bad, timeout=0)
    with pytest.raises(ValueError, match="at least one field"):
        consumer.pop_batch({}, timeout=0)
    with pytest.raises(KeyError, match="expected the fields obs, length"):
        consumer.pop_batch({"size": np.zeros(2)}, timeout=0)
    with pytest.raises(ValueError, match="tickets"):
        consumer.pop_batch({"length": np.zeros(2, np.int32)}, timeout=0, tickets=np.zeros(3, np.uint64))
    with pytest.raises(ValueError, match='when_full: given "sometimes"'):
        make(when_full="sometimes")
    with pytest.raises(WaitTimeoutError):
        consumer.pop_batch({"length": np.zeros(2, np.int32)}, timeout=0)
