"""Replay buffer through the bindings: rows in, rows out, and what is refused. The protocol is tested in Rust."""

import threading
from typing import Any

import numpy as np
import pytest

from rlz._native import FLAG_FIRST, FLAG_TERMINATED, FLAG_TRUNCATED, Replay
from rlz.errors import ClosedError, LeaseLostError, TransportError

SEED = [1, 2, 3, 4]
FIELDS = [
    ("obs", "f32", (3,)),
    ("image", "u8", (2, 2)),
    ("reward", "f32", ()),
    ("count", "i32", ()),
    ("on", "bool", ()),
]


def make(**options: Any) -> Replay:
    defaults: dict[str, Any] = {"buffer_size": 100, "lanes": 2, "run_id": 1}
    return Replay.create(options.pop("fields", FIELDS), **{**defaults, **options})


def row(value: int) -> tuple[Any, ...]:
    return (
        np.full(3, value, np.float32),
        np.full((2, 2), value % 256, np.uint8),
        float(value),
        value,
        value % 2 == 1,
    )


def read(replay: Replay, lane: int) -> tuple[np.ndarray, np.ndarray]:
    count = replay.committed()[lane]
    rows, meta = np.full((count, replay.stride), 7, np.uint8), np.zeros(count, np.uint64)
    assert replay.read_rows(lane, 1, rows, meta) == count
    return rows, meta


def column(replay: Replay, rows: np.ndarray, name: str, dtype: str) -> np.ndarray:
    for field, _, shape, offset in replay.fields:
        if field == name:
            size = int(np.prod(shape)) * np.dtype(dtype).itemsize
            return rows[:, offset : offset + size].copy().view(dtype).reshape(len(rows), *shape)
    raise KeyError(name)


def test_rows_come_back_as_they_went_in() -> None:
    replay = make()
    other = Replay.attach(replay.fd)
    writer = other.writer([0, 1], worker=5)
    assert replay.owners() == [5, 5]
    for value in range(10):
        writer.append(value % 2, row(value), version=value, flags=FLAG_TRUNCATED if value == 4 else 0)
    writer.append(0, list(row(10)), version=10)
    assert replay.committed() == [6, 5]
    rows, meta = read(replay, 0)
    values = np.array([0, 2, 4, 6, 8, 10])
    np.testing.assert_array_equal(column(replay, rows, "obs", "f4"), np.repeat(values[:, None], 3, 1))
    np.testing.assert_array_equal(column(replay, rows, "image", "u1")[:, 1, 1], values)
    np.testing.assert_array_equal(column(replay, rows, "reward", "f4"), values)
    np.testing.assert_array_equal(column(replay, rows, "count", "i4"), values)
    assert not column(replay, rows, "on", "?").any()
    assert (meta >> np.uint64(32)).tolist() == values.tolist()
    flags = (meta & np.uint64(0xFFFF)).tolist()
    assert flags == [FLAG_FIRST, 0, FLAG_TRUNCATED, FLAG_FIRST, 0, 0]
    assert FLAG_TERMINATED not in flags
    # Padding is zero: equal rows have equal bytes.
    used = sum(
        int(np.prod(shape)) * {"f32": 4, "u8": 1, "i32": 4, "bool": 1}[dtype] for _, dtype, shape, _ in replay.fields
    )
    assert rows[5].astype(bool).sum() <= used
    writer.close()
    assert replay.owners() == [0, 0]


def test_packed_rows() -> None:
    replay = make()
    writer = replay.writer([1], worker=2)
    packed = np.arange(replay.stride, dtype=np.uint8)
    writer.append_packed(1, packed, version=1)
    rows, _ = read(replay, 1)
    np.testing.assert_array_equal(rows[0], packed)
    with pytest.raises(ValueError, match=f"given 3 bytes, expected {replay.stride}"):
        writer.append_packed(1, packed[:3], version=1)


def test_a_batch_is_as_many_single_rows() -> None:
    one, many = make(), make()
    writers = [replay.writer([0, 1], worker=1) for replay in (one, many)]
    values, lanes, flags = [3, 4, 5], [1, 0, 1], [FLAG_TRUNCATED, 0, 0]
    for value, lane, flag in zip(values, lanes, flags, strict=True):
        writers[0].append(lane, row(value), version=9, flags=flag)
    columns = [np.stack([np.asarray(row(value)[index], dtype) for value in values]) for index, dtype in enumerate(
        (np.float32, np.uint8, np.float32, np.int32, np.bool_)
    )]  # fmt: skip
    writers[1].append_batch(lanes, columns, version=9, flags=flags)
    for lane in range(2):
        for ours, theirs in zip(read(many, lane), read(one, lane), strict=True):
            np.testing.assert_array_equal(ours, theirs)
    with pytest.raises(
        ValueError, match=r'"image": .* uint8 array of shape \(3, 2, 2\), got a uint8 array of shape \(2,'
    ):
        writers[1].append_batch(lanes, [columns[0], columns[1][:2], *columns[2:]], version=9)
    with pytest.raises(ValueError, match=r'"obs": expected a C-contiguous float32 array .* got a float64 array'):
        writers[1].append_batch(lanes, [columns[0].astype(np.float64), *columns[1:]], version=9)
    with pytest.raises(ValueError, match="flags: expected one for each of 3 lanes"):
        writers[1].append_batch(lanes, columns, version=9, flags=[0])
    with pytest.raises(ValueError, match="given 2 values, expected 5"):
        writers[1].append_batch(lanes, columns[:2], version=9)
    assert many.committed() == [1, 2], "nothing is appended unless all fits"


def test_numbers_of_numpy_and_python() -> None:
    kinds = ["f16", "f32", "f64", "bf16", "u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64"]
    replay = make(fields=[(kind, kind, ()) for kind in kinds])
    writer = replay.writer([0], worker=2)
    names = {"f": "float", "i": "int", "u": "uint"}
    scalars = [np.uint16(0x4000) if k == "bf16" else getattr(np, names[k[0]] + k[1:])(2) for k in kinds]
    scalars[3] = 2.0  # a number, not the bits, for bfloat16
    for values in (tuple([2] * 12), tuple(scalars), tuple(np.asarray(scalar) for scalar in scalars)):
        if isinstance(values[3], np.ndarray):
            values = (*values[:3], np.array(0x4000, np.uint16), *values[4:])
        writer.append(0, values, version=0)
    rows, _ = read(replay, 0)
    assert len({bytes(row) for row in rows}) == 1
    assert column(replay, rows, "f16", "f2").tolist() == [2.0] * 3
    assert column(replay, rows, "i64", "i8").tolist() == [2] * 3


def test_extreme_integers() -> None:
    replay = make(fields=[("i", "i64", ()), ("u", "u64", ()), ("b", "i8", ())])
    writer = replay.writer([0], worker=2)
    writer.append(0, (-(2**63), 2**64 - 1, -128), version=0)
    rows, _ = read(replay, 0)
    assert column(replay, rows, "i", "i8")[0] == -(2**63)
    assert column(replay, rows, "u", "u8")[0] == 2**64 - 1
    for values, name in [((2**63, 0, 0), "i"), ((0, -1, 0), "u"), ((0, 2**64, 0), "u"), ((0, 0, 128), "b")]:
        with pytest.raises(ValueError, match=f"field '?\"?{name}.*does not fit"):
            writer.append(0, values, version=0)


OBS, IMAGE = np.zeros(3, np.float32), np.zeros((2, 2), np.uint8)


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ((OBS.astype(np.float64), IMAGE, 0.0, 0, True), TypeError, r'"obs".*float32.*\(3,\).*float64.*\(3,\)'),
        ((np.zeros(4, np.float32), IMAGE, 0.0, 0, True), ValueError, r'"obs".*\(3,\), got a float32 array.*\(4,\)'),
        (([0.0, 0.0, 0.0], IMAGE, 0.0, 0, True), TypeError, r'"obs".*got a list'),
        ((0.0, IMAGE, 0.0, 0, True), TypeError, r'"obs".*got a float'),
        ((OBS, IMAGE.T[::-1], 0.0, 0, True), TypeError, r'"image" \(number 1\).*not C-contiguous'),
        ((OBS, IMAGE.astype(">i2"), 0.0, 0, True), TypeError, r'"image".*>i2'),
        ((OBS, IMAGE, "1.0", 0, True), TypeError, r'"reward".*a number for float32.*got a str'),
        ((OBS, IMAGE, np.zeros(1, np.float32), 0, True), ValueError, r'"reward".*shape \(1,\)'),
        ((OBS, IMAGE, np.array(1.0), 0, True), TypeError, r'"reward".*float64'),
        ((OBS, IMAGE, None, 0, True), TypeError, r'"reward".*NoneType'),
        ((OBS, IMAGE, 1e39, 0, True), ValueError, r'"reward".*1e\+39 does not fit into float32'),
        ((OBS, IMAGE, 0.0, 1.5, True), TypeError, r'"count".*int32.*got a float'),
        ((OBS, IMAGE, 0.0, 2**31, True), ValueError, r'"count".*does not fit into int32'),
        ((OBS, IMAGE, 0.0, 0, 1), TypeError, r'"on".*bool.*got a int'),
        ((OBS, IMAGE, 0.0, 0), ValueError, "given 4 values, expected 5, one per field: obs, image, reward, count, on"),
        ({"obs": OBS}, KeyError, "given obs, expected the fields obs, image"),
    ],
)
def test_wrong_rows_are_named(values: Any, error: type[Exception], message: str) -> None:
    replay = make()
    writer = replay.writer([0], worker=2)
    with pytest.raises(error, match=message):
        writer.append(0, values, version=0)
    assert replay.committed() == [0, 0]


def test_wrong_lanes_and_owners() -> None:
    replay = make()
    writer = replay.writer([0], worker=2)
    with pytest.raises(ValueError, match="lane"):
        writer.append(1, row(1), version=0)
    with pytest.raises(TransportError, match="owned by worker 2"):
        replay.writer([1, 0], worker=3)
    assert replay.owners() == [2, 0]  # all or none
    with pytest.raises(ValueError, match="lane"):
        replay.writer([2], worker=3)
    for worker in (0, 1023):
        with pytest.raises(ValueError, match="1 to 1022"):
            replay.writer([1], worker=worker)
    assert replay.reap(2) == 1
    with pytest.raises(LeaseLostError, match="no longer owns"):
        writer.append(0, row(1), version=0)
    successor = replay.writer([0], worker=3)
    writer.close()  # must not give the successor's lane back
    successor.append(0, row(1), version=0)
    assert replay.owners() == [3, 0]
    successor.close()
    with pytest.raises(ClosedError):
        successor.append(0, row(1), version=0)
    successor.close()


def test_a_number_whose_conversion_uses_the_writer() -> None:
    """`__float__` runs Python code in the middle of an append; it gets an error instead of a deadlock."""
    replay = make(fields=[("x", "f32", ())])
    writer = replay.writer([0], worker=2)

    class Sly:
        def __float__(self) -> float:
            writer.append(0, (1.0,), version=0)
            return 1.0

    with pytest.raises((TypeError, ValueError)):
        writer.append(0, (Sly(),), version=0)
    writer.append(0, (1.0,), version=0)
    assert replay.committed()[0] == 1


def test_sampling() -> None:
    replay = make()
    sampler = replay.sampler(seed=SEED)
    rows = np.zeros((64, replay.stride), np.uint8)
    with pytest.raises(TransportError, match="empty"):
        sampler.sample(rows)
    writer = replay.writer([0, 1], worker=2)
    for value in range(60):
        writer.append(value % 2, row(value), version=value)
    assert sampler.available == 60
    meta, ids = np.zeros(64, np.uint64), np.zeros((64, 3), np.uint64)
    state = sampler.state
    sampler.sample(rows, meta=meta, ids=ids)
    values = column(replay, rows, "count", "i4")
    np.testing.assert_array_equal(column(replay, rows, "obs", "f4")[:, 2], values)
    np.testing.assert_array_equal(meta >> np.uint64(32), values)
    np.testing.assert_array_equal(ids[:, 0], values % 2)
    np.testing.assert_array_equal(ids[:, 2], values // 2 + 1)
    assert len(set(values.tolist())) > 20
    again = np.zeros_like(rows)
    sampler.state = state
    sampler.sample(again, threads=3)
    np.testing.assert_array_equal(rows, again)
    assert sampler.redraws == 0
    for bad, message in [
        (np.zeros((4, 3), np.uint8), rf"shape \(n, {replay.stride}\), got a uint8 array of shape \(4, 3\)"),
        (np.zeros((4, replay.stride + 64), np.uint8)[:, :-64], "C-contiguous"),
        (np.zeros(4 * replay.stride + 1, np.uint8)[1:].reshape(4, -1), "multiple of 8"),
    ]:
        with pytest.raises(ValueError, match=message):
            sampler.sample(bad)
    with pytest.raises(ValueError, match="ids"):
        sampler.sample(rows, ids=np.zeros((64, 2), np.uint64))
    with pytest.raises(ValueError, match="meta"):
        sampler.sample(rows, meta=np.zeros(63, np.uint64))
    with pytest.raises(TypeError, match="rows"):
        sampler.sample(rows.view(np.int8))
    with pytest.raises(ValueError, match="32 bytes"):
        sampler.state = b"short"
    sampler.sample(np.zeros((0, replay.stride), np.uint8))


def test_a_sampler_shared_by_threads() -> None:
    """One thread gathers while another looks: neither deadlocks (the lock is never taken with the GIL)."""
    replay = make(buffer_size=5_000)
    writer = replay.writer([0], worker=2)
    for value in range(2_000):
        writer.append(0, row(value), version=0)
    sampler = replay.sampler(seed=SEED)
    rows = np.zeros((4_096, replay.stride), np.uint8)
    thread = threading.Thread(target=lambda: [sampler.sample(rows) for _ in range(50)])
    thread.start()
    while thread.is_alive():
        assert sampler.available == 2_000
    thread.join()


def test_saved_rows_are_restored() -> None:
    replay, resumed = make(), make(run_id=2)
    writer = replay.writer([0], worker=2)
    for value in range(30):
        writer.append(0, row(value), version=value)
    rows, meta = read(replay, 0)
    resumed.restore_rows(0, rows, meta, worker=1)
    assert resumed.owners() == [0, 0]
    again, meta_again = read(resumed, 0)
    np.testing.assert_array_equal(rows, again)
    np.testing.assert_array_equal(meta, meta_again)
    with pytest.raises(TransportError, match="owned by worker 2"):
        replay.restore_rows(0, rows, meta, worker=1)
    with pytest.raises(ValueError, match="rows"):
        resumed.restore_rows(0, rows[:, :-1].copy(), meta, worker=1)
    with pytest.raises(ValueError, match="rows"):
        resumed.restore_rows(0, rows[:-1], meta, worker=1)


def test_bad_layouts() -> None:
    for fields, message in [
        ([], "at least one field"),
        ([("a", "f33", ())], "f33"),
        ([("a", "f32", (0,))], "shape"),
        ([("a", "f32", ()), ("a", "f32", ())], "twice"),
    ]:
        with pytest.raises(ValueError, match=message):
            make(fields=fields)
    with pytest.raises(ValueError, match="lanes"):
        make(lanes=0)
    with pytest.raises(ValueError, match="buffer_size"):
        make(buffer_size=1)
    with pytest.raises(ValueError, match=r"^buffer_size: "):
        make(buffer_size=-1)


def test_versions_of_rows_go_on_beyond_their_32_bits() -> None:
    with (
        Replay.create([("x", "f32", ())], buffer_size=8, lanes=1, run_id=1) as replay,
        replay.writer([0], worker=1) as writer,
    ):
        for version in (2**32 - 1, 2**32, 2**40 + 5):
            writer.append(0, (0.0,), version=version)
        writer.append_batch([0], [np.zeros(1, np.float32)], version=2**32 + 6)
        rows, meta = np.empty((4, replay.stride), np.uint8), np.empty(4, np.uint64)
        assert replay.read_rows(0, 1, rows, meta) == 4
        assert (meta >> np.uint64(32)).tolist() == [2**32 - 1, 0, 5, 6]
        with pytest.raises(ValueError, match=r"^version: "):
            writer.append(0, (0.0,), version=-1)
