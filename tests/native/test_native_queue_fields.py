"""Any schema goes through the trajectory queue bit by bit: every dtype, nested names, images, random schemas."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rlz._native import TrajectoryQueue
from rlz.errors import ClosedError, WaitTimeoutError

NUMPY = {
    "f16": np.float16, "bf16": np.uint16, "f32": np.float32, "f64": np.float64, "u8": np.uint8, "i8": np.int8,
    "u16": np.uint16, "i16": np.int16, "u32": np.uint32, "i32": np.int32, "u64": np.uint64, "i64": np.int64,
    "bool": np.bool_,
}  # fmt: skip

Fields = list[tuple[str, str, tuple[int, ...]]]
Arrays = dict[str, NDArray[Any]]


def random_bits(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """Any bits of a dtype, with not-a-numbers, infinities and both ends of its range."""
    kind = np.dtype(NUMPY[dtype])
    if kind == np.bool_:
        return rng.integers(0, 2, shape).astype(bool)
    return np.frombuffer(rng.bytes(int(np.prod(shape)) * kind.itemsize), kind).reshape(shape)


def segment_of(rng: np.random.Generator, fields: Fields) -> Arrays:
    return {name: random_bits(rng, dtype, shape) for name, dtype, shape in fields}


def batch_of(fields: Fields, size: int) -> Arrays:
    return {name: np.empty((size, *shape), NUMPY[dtype]) for name, dtype, shape in fields}


def assert_same_bits(given: NDArray[Any], got: NDArray[Any]) -> None:
    assert (got.dtype, got.shape) == (given.dtype, given.shape)
    assert got.tobytes() == given.tobytes()


def round_trip(fields: Fields, rng: np.random.Generator) -> None:
    """Write segments in both ways, read them in both ways."""
    queue = TrajectoryQueue.create(fields, slots=4, run_id=1)
    producer, consumer = queue.producer(worker=1), TrajectoryQueue.attach(queue.fd).consumer(worker=2)
    segments = [segment_of(rng, fields) for _ in range(4)]
    for number, values in enumerate(segments):
        if number % 2:
            producer.put(timeout=0, **values)
        else:
            with producer.acquire(timeout=0) as slot:  # type: ignore[union-attr]
                assert slot.keys() == list(values)
                for name, value in values.items():
                    slot[name][...] = value
    for values in segments[:2]:
        with consumer.pop(timeout=0) as read:
            for name, value in values.items():
                assert_same_bits(value, read[name])
                assert not read[name].flags.writeable
    batch = batch_of(fields, 2)
    assert consumer.pop_batch(batch, timeout=0) == 2
    for name in batch:
        assert_same_bits(np.stack([values[name] for values in segments[2:]]), batch[name])


@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 2, 5)], ids=str)
@pytest.mark.parametrize("dtype", NUMPY)
def test_every_dtype_keeps_its_bits(dtype: str, shape: tuple[int, ...]) -> None:
    # Between bytes, so that its alignment is not there by chance.
    round_trip([("before", "u8", ()), ("x", dtype, shape), ("after", "bool", (3,))], np.random.default_rng(len(shape)))


@pytest.mark.parametrize("seed", range(30))
def test_random_schemas(seed: int) -> None:
    rng = np.random.default_rng(seed)
    names = ["obs", "obs.image", "obs.arm.left.pose", "action", "next obs", "belohnung_ß", "a.b", "x" * 200]
    fields: Fields = [
        (names[i], str(rng.choice(list(NUMPY))), tuple(rng.integers(1, 5, rng.integers(0, 5)).tolist()))
        for i in rng.permutation(len(names))[: rng.integers(1, len(names) + 1)]
    ]
    round_trip(fields, rng)


def test_images() -> None:
    round_trip([("obs.camera", "u8", (16, 4, 84, 84)), ("obs.depth", "f16", (16, 64, 64))], np.random.default_rng(0))


@pytest.mark.parametrize("dtype", NUMPY)
def test_a_batch_of_other_kinds_is_refused_and_nothing_is_popped(dtype: str) -> None:
    queue = TrajectoryQueue.create([("x", dtype, (2, 3))], slots=2, run_id=1)
    queue.producer(worker=1).put(x=np.zeros((2, 3), NUMPY[dtype]), timeout=0)
    consumer = queue.consumer(worker=2)
    right = np.zeros((4, 2, 3), NUMPY[dtype])
    other = np.float32 if dtype != "f32" else np.int32
    frozen = right.copy()
    frozen.flags.writeable = False
    swapped = right.astype(right.dtype.newbyteorder(">"))
    for wrong in (right.astype(other), right[:, :1], right[:0], right[::2], right.transpose(0, 2, 1), frozen, [1, 2]):
        with pytest.raises(ValueError, match=r"into\[.x.\]: expected a writable, C-contiguous"):
            consumer.pop_batch({"x": wrong}, timeout=0)  # type: ignore[dict-item]
    if right.dtype.itemsize > 1:
        with pytest.raises(ValueError, match="into"):
            consumer.pop_batch({"x": swapped}, timeout=0)
    assert queue.occupancy()["full"] == 1
    assert consumer.pop_batch({"x": right[1:3]}, timeout=0) == 1  # part of a larger buffer is fine


def test_numbers_and_bits_of_half_precision() -> None:
    queue = TrajectoryQueue.create([("b", "bf16", ()), ("h", "f16", ()), ("flag", "bool", ())], slots=2, run_id=1)
    producer, consumer = queue.producer(worker=1), queue.consumer(worker=2)
    producer.put(b=1.0, h=-2.0, flag=True, timeout=0)
    producer.put(b=3.0, h=65504.0, flag=False, timeout=0)
    batch: Arrays = {"b": np.zeros(2, np.uint16), "h": np.zeros(2, np.float16), "flag": np.zeros(2, np.bool_)}
    assert consumer.pop_batch(batch, timeout=0) == 2
    assert (batch["b"].astype(np.uint32) << 16).view(np.float32).tolist() == [1.0, 3.0]
    assert batch["h"].tolist() == [-2.0, 65504.0]
    assert batch["flag"].tolist() == [True, False]
    for bad in ({"b": 1e39}, {"h": 65536.0}):
        with pytest.raises(ValueError, match="does not fit"):
            producer.put(timeout=0, **{"b": 0.0, "h": 0.0, "flag": True, **bad})
    for wrong in ({"flag": 1}, {"b": "one"}):
        with pytest.raises(TypeError, match="expected a number for"):
            producer.put(timeout=0, **{"b": 0.0, "h": 0.0, "flag": True, **wrong})


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ({"obs.pose": np.zeros(3, np.float32)}, KeyError, "expected the fields obs.pose, obs.image"),
        ({}, KeyError, "expected the fields obs.pose, obs.image"),
        ({"obs.pose": np.zeros(3), "obs.image": np.zeros((2, 2), np.uint8)}, TypeError, "obs.pose.*float64"),
        ({"obs.pose": [1, 2, 3], "obs.image": np.zeros((2, 2), np.uint8)}, TypeError, "obs.pose.*got a list"),
        ({"obs.pose": 1.0, "obs.image": np.zeros((2, 2), np.uint8)}, TypeError, r"obs.pose.*shape \(3,\), got a float"),
        (
            {"obs.pose": np.zeros(3, np.float32), "obs.image": np.zeros((2, 3), np.uint8)},
            ValueError,
            r"obs.image.*shape \(2, 2\), got a uint8 array of shape \(2, 3\)",
        ),
        (
            {"obs.pose": np.zeros(6, np.float32)[::2], "obs.image": np.zeros((2, 2), np.uint8)},
            TypeError,
            "obs.pose.*not C-contiguous",
        ),
    ],
)
def test_errors_of_put_name_field_expected_and_given(given: Any, error: type[Exception], text: str) -> None:
    queue = TrajectoryQueue.create([("obs.pose", "f32", (3,)), ("obs.image", "u8", (2, 2))], slots=1, run_id=1)
    with pytest.raises(error, match=text):
        queue.producer(worker=1).put(timeout=0, **given)
    assert queue.occupancy() == {"free": 1, "writing": 0, "full": 0, "reading": 0}
    with (
        queue.producer(worker=1).acquire(timeout=0) as slot,
        pytest.raises(KeyError, match="expected one of the fields obs"),
    ):  # type: ignore[union-attr]
        slot["pose"]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ([], "at least one field"),
        ([("x", "float33", ())], "float33.*f16 bf16 f32"),
        ([("x", "f32", ()), ("x", "u8", ())], "twice"),
        ([("", "f32", ())], "field name"),
        ([("x", "f32", (3, 0))], "none of them 0"),
        ([("x", "f32", (1,) * 9)], "at most 8 dimensions"),
    ],
)
def test_schemas_that_cannot_be_are_refused(fields: Fields, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        TrajectoryQueue.create(fields, slots=1, run_id=1)


def test_ages() -> None:
    queue = TrajectoryQueue.create([("x", "u8", ())], slots=2, run_id=1)
    producer, consumer = queue.producer(worker=1), queue.consumer(worker=2)
    assert queue.oldest_age is None
    producer.put(x=1, timeout=0)
    producer.put(x=2, timeout=0)
    with consumer.pop(timeout=0) as first, consumer.pop(timeout=0) as second:
        assert first.age >= second.age >= 0.0
        held = first.age
        assert first.age >= held
    with pytest.raises(ClosedError, match="released"):
        _ = first.age
    assert queue.oldest_age is None
    with pytest.raises(WaitTimeoutError):
        consumer.pop(timeout=0)


def test_arrays_of_both_ends_outlive_segment_end_and_queue() -> None:
    queue = TrajectoryQueue.create([("x", "f64", (4,)), ("flag", "bool", (2,))], slots=1, run_id=1)
    producer = queue.producer(worker=1)
    producer.put(x=np.arange(4.0), flag=np.array([True, False]), timeout=0)
    consumer = queue.consumer(worker=2)
    with consumer.pop(timeout=0) as segment:
        tail, flags = segment["x"][2:], segment["flag"].view(np.uint8)
    assert queue.occupancy()["free"] == 1  # the arrays have memory of their own
    del segment
    for end in (consumer, producer, queue):
        end.close()
    assert (tail.tolist(), flags.tolist()) == ([2.0, 3.0], [1, 0])
