"""Streams alone: fields in any form, batches by name, segments as mappings, spawned processes."""

import multiprocessing
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rlz.errors import ClosedError, TransportError
from rlz.transport import Limiter, ParameterStore, Replay, StatsBoard, TrajectoryQueue

FIELDS = [("obs", "f32", (3,)), ("reward", "f64", ()), ("done", "bool", ())]


@pytest.mark.parametrize(
    "dtype", ["f32", "float32", "f4", "<f4", "single", np.float32, np.dtype("float32"), np.dtype("<f4")]
)
def test_a_dtype_in_every_form(dtype: Any) -> None:
    for shape in (3, (3,), [3], np.int64(3)):
        assert Replay.create([("x", dtype, shape)], buffer_size=8).fields == [("x", "f32", (3,), 0)]


def test_every_dtype_by_numpy_and_by_its_own_name() -> None:
    names = {
        "f16": "float16", "f32": "float32", "f64": "float64", "u8": "uint8", "i8": "int8", "u16": "uint16",
        "i16": "int16", "u32": "uint32", "i32": "int32", "u64": "uint64", "i64": "int64", "bool": "bool",
        "bf16": "bfloat16",
    }  # fmt: skip
    queue = TrajectoryQueue.create([(name, name, (2,)) for name in names], slots=1)
    other = TrajectoryQueue.create({name: (numpy, 2) for name, numpy in names.items()}, slots=1)
    assert queue.fields == other.fields
    assert queue.dtype["f16"].base == np.float16
    assert TrajectoryQueue.create([("x", float), ("y", int), ("z", bool)], slots=1).fields == [
        ("x", "f64", (), 0), ("y", "i64", (), 8), ("z", "bool", (), 16),
    ]  # fmt: skip


def test_fields_in_every_form() -> None:
    forms: list[Any] = [
        FIELDS,
        [("obs", np.float32, 3), ("reward", "float64"), ("done", "?")],
        {"obs": ("<f4", (3,)), "reward": np.float64, "done": bool},
        np.dtype([("obs", "f4", (3,)), ("reward", "f8"), ("done", "?")]),
    ]
    made = [Replay.create(form, buffer_size=8).fields for form in forms]
    assert all(fields == made[0] for fields in made)
    assert ParameterStore.create({"w": ("f32", (2, 2))}).manifest == [("w", "f32", (2, 2))]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ([("x", "float33", ())], r"dtype of field \"x\": given 'float33', expected one of f16 bf16"),
        ([("x", ">f4", ())], "given '>f4'"),
        ([("x", "datetime64[s]", ())], "datetime64"),
        ([("x", None, ())], "given None"),
        ([("x", "f32", "three")], r"shape of \"x\": given 'three', expected a tuple of sizes"),
        ([("x", "f32", -1)], "given -1"),
        ([(1, "f32", ())], "field name: given a int"),
        (["x"], "expected \\(name, dtype, shape\\)"),
        ([("x",)], "expected \\(name, dtype, shape\\)"),
        (7, "fields: given 7"),
        ([], "at least one (field|tensor)"),
        ([("x", "f32", ()), ("x", "f32", ())], "twice"),
    ],
)
def test_fields_that_are_none(fields: Any, text: str) -> None:
    for create in (
        lambda: Replay.create(fields, buffer_size=8),
        lambda: TrajectoryQueue.create(fields, slots=1),
        lambda: ParameterStore.create(fields),
    ):
        with pytest.raises((ValueError, TypeError), match=text):
            create()


def filled(rows: int = 6) -> Replay:
    replay = Replay.create(FIELDS, buffer_size=100, lanes=2)
    with replay.writer([0, 1], worker=1) as writer:
        for number in range(rows):
            obs = np.full(3, number, np.float32)
            match number % 3:
                case 0:
                    writer.append(number % 2, obs=obs, reward=float(number), done=number % 2 == 1)
                case 1:
                    writer.append(number % 2, {"done": number % 2 == 1, "reward": float(number), "obs": obs}, version=0)
                case _:
                    writer.append(number % 2, (obs, float(number), number % 2 == 1))
    return replay


def check(batch: dict[str, Any], size: int) -> None:
    assert list(batch) == ["obs", "reward", "done"]
    assert {name: (array.dtype, array.shape) for name, array in batch.items()} == {
        "obs": (np.float32, (size, 3)), "reward": (np.float64, (size,)), "done": (np.bool_, (size,)),
    }  # fmt: skip
    assert (batch["obs"] == batch["reward"][:, None]).all()
    assert (batch["done"] == (batch["reward"] % 2 == 1)).all()
    assert set(batch["reward"]) == set(range(6))


def test_batches_by_field_name() -> None:
    replay = filled()
    ids = np.zeros((200, 3), np.uint64)
    batch = replay.sampler(seed=3).sample(200, ids=ids)
    check(batch, 200)
    assert (batch["reward"] % 2 == ids[:, 0]).all()
    rows = np.zeros((200, replay.stride), np.uint8)
    assert replay.sampler(seed=3).sample(rows) is None
    assert (rows.view(replay.dtype)["obs"][:, 0] == batch["obs"]).all(), "the same draws, packed"
    prioritized = replay.prioritized_sampler(seed=3)
    batch, ids, weights = prioritized.sample(200)
    check(batch, 200)
    assert (ids.shape, weights.shape) == ((200, 3), (200,))
    assert prioritized.update_priorities(ids, weights) == 0
    with pytest.raises(TypeError, match="ids, weights: expected arrays"):
        prioritized.sample(rows)  # type: ignore[call-overload]
    with pytest.raises(TransportError, match="wait until"):
        Replay.create(FIELDS, buffer_size=8).sampler().sample(4)


def test_batches_appended_by_name() -> None:
    replay = Replay.create(FIELDS, buffer_size=100, lanes=2)
    columns = {"reward": np.array([1.0, 0.0]), "obs": np.zeros((2, 3), np.float32), "done": np.array([True, False])}
    with replay.writer([0, 1], worker=1) as writer:
        writer.append_batch([1, 0], **columns)
        writer.append_batch([0, 1], columns, version=3)
        writer.append_batch([0, 1], [columns[name] for name in ("obs", "reward", "done")])
        for wrong in ({"reward": 1.0}, {**columns, "more": 1}, {}):
            with pytest.raises((KeyError, TypeError), match="expected"):
                writer.append(0, **wrong)
            with pytest.raises((KeyError, TypeError), match="expected"):
                writer.append_batch([0], **wrong)
        with pytest.raises(KeyError, match="given reward, expected the fields obs, reward, done"):
            writer.append(0, reward=1.0)
        with pytest.raises(TypeError, match="row: given both"):
            writer.append(0, (1,), obs=2)
    assert replay.committed() == [3, 3]


def test_seeds_in_every_form() -> None:
    replay = filled()
    words = np.random.SeedSequence(5).generate_state(4, np.uint64)
    forms: list[Any] = [5, np.int64(5), np.random.SeedSequence(5), words, words.tolist(), tuple(words.tolist())]
    drawn = [replay.sampler(seed=form).sample(32)["reward"].tolist() for form in forms]
    assert all(rewards == drawn[0] for rewards in drawn)
    free = [replay.sampler().sample(32)["reward"].tolist() for _ in range(3)]
    assert free[0] != free[1] or free[1] != free[2]
    for bad, text in (
        ([1, 2, 3], "3 words"),
        (-1, "given -1"),
        ("x", "given 'x'"),
        (1.5, "given 1.5"),
        ([-1] * 4, "-1"),
    ):
        with pytest.raises(ValueError, match=f"seed: given .*{text}|seed: {text}"):
            replay.sampler(seed=bad)  # type: ignore[arg-type]


def test_segments_are_mappings() -> None:
    queue = TrajectoryQueue.create([*FIELDS, ("note", "i32", (2,)), ("bits", "bf16", ())], slots=2)
    producer, consumer = queue.producer(worker=1), queue.consumer(worker=2)
    with producer.acquire(timeout=0) as segment:  # type: ignore[union-attr]
        segment["obs"] = 2  # as numpy assigns
        segment["reward"] = 1.5
        segment["done"] = np.True_
        segment["note"] = np.array([3, 4], np.int32)
        segment["bits"] = 1.0
        segment["obs"][1:] = [5.0, 6.0]
        assert len(segment) == 5
        assert "obs" in segment
        assert 7 not in segment
        assert list(segment) == segment.keys() == [name for name, *_ in queue.fields]
        assert [array.dtype for array in segment.values()] == [np.float32, np.float64, np.bool_, np.int32, np.uint16]
        assert [name for name, _ in segment.items()] == segment.keys()
        for name, value, text in (
            ("obs", np.zeros(4, np.float32), r'field "obs" .*shape \(3,\), got a float32 array of shape \(4,\)'),
            ("note", 1.5, r'field "note" .*int32'),
            ("note", np.zeros(2), r'field "note" .*int32 .*float64'),
            ("reward", "much", r'field "reward" .*got a str'),
            ("done", 2, r'field "done"'),
        ):
            with pytest.raises((TypeError, ValueError), match=text):
                segment[name] = value
        with pytest.raises(KeyError, match='given "size", expected one of the fields obs'):
            segment["size"] = 1
    with consumer.pop(timeout=0) as got:
        found = {name: array.tolist() for name, array in dict(got).items()}
        assert found == {"obs": [2, 5, 6], "reward": 1.5, "done": True, "note": [3, 4], "bits": 0x3F80}
        assert (len(got), "done" in got, list(got)) == (5, True, got.keys())
        with pytest.raises(TypeError):
            got["obs"] = 1  # type: ignore[index]
    with pytest.raises(ClosedError, match="committed"):
        segment["obs"] = 1
    row = {"obs": np.zeros(3, np.float32), "reward": 0.0, "done": False, "bits": 0.0}
    assert producer.put({**row, "note": np.zeros(2, np.int32)}, note=7) == 2
    with pytest.raises(TypeError, match="one of both"):
        producer.put(row, obs=1)


def relay(queue: TrajectoryQueue, board: StatsBoard, gate: Limiter, store: ParameterStore, replay: Replay) -> None:
    """Target of a spawned process: it uses every stream."""
    with queue.producer(worker=2) as producer:
        producer.put(obs=np.ones(3, np.float32), reward=4.0, done=True)
    with replay.writer([0], worker=2) as writer:
        writer.append(0, obs=np.ones(3, np.float32), reward=4.0, done=True)
    board.set(0, 0, float(gate.total_timesteps))
    into = np.zeros(store.nbytes, np.uint8)
    if store.writable:
        store.publisher(worker=2).publish(np.full(store.nbytes // 4, 2.0, np.float32).view(np.uint8))
    store.subscriber(worker=3).read(into)
    board.set(0, 1, float(into.view(np.float32)[0]))


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_streams_travel_to_spawned_processes(method: str) -> None:
    context = multiprocessing.get_context(method)
    queue, replay = TrajectoryQueue.create(FIELDS, slots=2), Replay.create(FIELDS, buffer_size=8)
    board = StatsBoard.create(slots=1, names=["a", "b"])
    gate = Limiter.create(lanes=1, total_timesteps=33, learning_starts=0, ratio=None, slack=1.0)
    store = ParameterStore.create([("w", "f32", (2,))], leases=2)
    process = context.Process(target=relay, args=(queue, board, gate, store, replay))
    process.start()
    process.join(60)
    assert process.exitcode == 0
    assert float(queue.consumer(worker=1).pop(timeout=0)["reward"]) == 4.0
    assert replay.committed() == [1]
    assert (board.read().tolist(), store.version()) == ([[33.0, 2.0]], 1)


def test_a_store_travels_as_writable_as_it_is() -> None:
    owner = ParameterStore.create([("w", "f32", (2,))])
    owner.publisher(worker=1).publish(np.ones(2, np.float32).view(np.uint8))
    store = ParameterStore.attach(owner.control_fd, owner.readonly_payload_fd)
    assert (owner.writable, store.writable) == (True, False)
    context = multiprocessing.get_context("spawn")
    queue, replay = TrajectoryQueue.create(FIELDS, slots=2), Replay.create(FIELDS, buffer_size=8)
    board = StatsBoard.create(slots=1, names=["a", "b"])
    gate = Limiter.create(lanes=1, total_timesteps=1, learning_starts=0, ratio=None, slack=1.0)
    process = context.Process(target=relay, args=(queue, board, gate, store, replay))
    process.start()
    process.join(60)
    assert process.exitcode == 0
    assert (board.read().tolist(), owner.version()) == ([[1.0, 1.0]], 1)


@pytest.mark.parametrize(
    "make",
    [
        lambda: TrajectoryQueue.create(FIELDS, slots=1),
        lambda: Replay.create(FIELDS, buffer_size=8),
        lambda: ParameterStore.create([("w", "f32", (2,))]),
        lambda: TrajectoryQueue.create(FIELDS, slots=1).producer(worker=1),
    ],
)
def test_streams_are_not_pickled_elsewhere(make: Callable[[], object]) -> None:
    import rlz.transport  # noqa: F401  (it teaches pickle)

    with pytest.raises((RuntimeError, TypeError), match=r"through inheritance|cannot pickle"):
        pickle.dumps(make())
