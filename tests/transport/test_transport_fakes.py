"""The fakes behave as the streams: the same random script gives the same log, and signatures are those of the stub."""

import ast
import gc
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlz
from rlz import transport
from rlz.errors import TransportError, WaitTimeoutError
from rlz.transport import fakes

PACKAGE = Path(rlz.__file__).parent
ROW = [("obs", "f32", (2,)), ("next_obs", "f32", (2,)), ("reward", "f32", ()), ("discount", "f32", ()), ("n", "u8", ())]
SEED = [1, 2, 3, 4]

Script = Callable[[Any, np.random.Generator, "Log"], None]


class Log:
    """What a script has seen: results, and classes of errors."""

    def __init__(self) -> None:
        self.lines: list[Any] = []

    def __call__(self, call: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Call, note what came of it, and return it; None after an error."""
        try:
            result = call(*args, **options)
        except Exception as error:
            self.lines.append((getattr(call, "__name__", call), type(error).__name__))
            return None
        self.lines.append((getattr(call, "__name__", call), plain(result)))
        return result

    def look(self, stream: Any, *names: str) -> None:
        """Note properties, and results of methods without arguments."""
        for name in names:
            value = getattr(stream, name)
            self.lines.append((name, plain(value() if callable(value) else value)))


def plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.dtype.name, (np.round(value, 9) if value.dtype.kind == "f" else value).tolist()
    if isinstance(value, dict):
        return {key: plain(item) for key, item in sorted(value.items())}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    return value if isinstance(value, int | float | str | bytes | None) else type(value).__name__


def queue_script(streams: Any, rng: np.random.Generator, log: Log) -> None:
    options = {
        "when_full": str(rng.choice(["block", "drop_new", "drop_oldest"])),
        "redelivery": str(rng.choice(["at_least_once", "at_most_once"])),
        "max_deliveries": int(rng.integers(1, 4)),
    }
    fields = [("obs.x", "f32", (2,)), ("done", "bool", ()), ("half", "bf16", (2,))]
    queue = streams.TrajectoryQueue.create(fields, slots=int(rng.integers(1, 5)), run_id=1, **options)
    log.look(queue, "fields", "stride", "slots", *options)
    workers = [1, 2]
    producers = [queue.producer(worker=worker) for worker in workers]
    consumers = [queue.consumer(worker=worker) for worker in workers]
    writing: list[Any] = []
    reading: list[Any] = []
    views: list[Any] = []
    dead: list[Any] = []
    for step in range(60):
        who = int(rng.integers(2))
        producer, consumer = producers[who], consumers[who]
        values = {"obs.x": np.full(2, step, np.float32), "done": bool(step % 2), "half": np.full(2, step, np.uint16)}
        match int(rng.integers(14)):
            case 0 | 1:
                log(producer.put, timeout=0, note=step, **values)
            case 2:
                wrong = [{"obs.x": np.zeros(2)}, {"obs.x": np.zeros(3, np.float32)}, {"other": 1}, {"done": 1.5}]
                log(producer.put, timeout=0, **{**values, **wrong[rng.integers(4)]})
            case 3:
                if (segment := log(producer.acquire, timeout=0)) is not None:
                    for name, value in values.items():
                        segment[name][...] = value
                    segment.note = step
                    writing.append((who, segment))
            case 4 if writing:
                log(writing.pop()[1].commit)
            case 5 if writing:
                log(writing.pop()[1].abort)
            case 6 if writing:
                views.append(writing[-1][1]["obs.x"])
            case 7 | 8:
                if (segment := log(consumer.pop, timeout=0)) is not None:
                    log.look(segment, "ticket", "note", "redeliveries", "keys")
                    log.lines.append([plain(segment[name]) for name in values])
                    reading.append((who, segment))
            case 9 if reading:
                log(reading.pop()[1].release)
            case 10 if reading:
                views.append(reading[-1][1]["obs.x"])
                log(views[-1].setflags, write=True)
            case 11:
                into = {"half": np.zeros((2, 2), np.uint16), "done": np.zeros(2, bool)}
                words = {name: np.zeros(2, np.uint64) for name in ("tickets", "notes")}
                log(consumer.pop_batch, into, timeout=0, **words)
                log.lines.append((plain(into), plain(words)))
            case 12:
                views.clear()
            case 13:  # killed with all that it held; another takes its place
                dead += [segment for owner, segment in writing + reading if owner == who]
                writing, reading = ([held for held in kept if held[0] != who] for kept in (writing, reading))
                log(queue.reap, workers[who])
                workers[who] += 2
                producers[who] = queue.producer(worker=workers[who])
                consumers[who] = queue.consumer(worker=workers[who])
        producer = consumer = segment = None
        gc.collect(0)
        log.look(queue, "occupancy", "counters")
        log.lines.append(queue.oldest_age is None)
    queue.finish()
    log.look(queue, "finished")
    for producer, consumer in zip(producers, consumers, strict=True):
        log(producer.acquire, timeout=None)
        log(consumer.pop, timeout=None)
        for end in (producer, consumer):
            end.close()
        log(producer.acquire, timeout=0)
        log(consumer.pop, timeout=0)
    views.clear()
    for segment in dead:
        log(segment.commit if hasattr(segment, "commit") else segment.release)
    for kept in (writing, reading, views, dead):
        kept.clear()
    segment = None
    log.look(queue, "occupancy")


def replay_script(streams: Any, rng: np.random.Generator, log: Log) -> None:
    replay = streams.Replay.create(ROW, buffer_size=int(rng.integers(3, 30)), lanes=2, run_id=1)
    log.look(replay, "fields", "stride", "lanes", "lane_capacity", "buffer_size")
    n_step = int(rng.integers(1, 4))
    writer = replay.writer([0, 1], worker=2, n_step=n_step)
    log(replay.writer, [1], worker=3)
    tail, sampler = replay.tail(), replay.sampler(seed=SEED)
    priorities = replay.prioritized_sampler(seed=SEED, alpha=0.5, beta=1.0)
    obs = np.zeros(2, np.float32)
    wrong = [(1,), (obs.astype(np.float64),) * 5, (obs, obs[:1], 0.0, 0.0, 0), 7, (obs, obs, 0.0, 0.0, 256)]

    def arrays(size: int) -> tuple[Any, Any, Any]:
        return np.zeros((size, replay.stride), np.uint8), np.zeros(size, np.uint64), np.zeros(size, np.uint64)

    for step in range(60):
        lane = int(rng.integers(2))
        match int(rng.integers(14)):
            case 0 | 1 | 2 | 3:
                flags = int(rng.choice([0, 0, 0, transport.FLAG_TERMINATED, transport.FLAG_TRUNCATED]))
                discount = 0.0 if flags == transport.FLAG_TERMINATED else 0.5
                row = (obs + step, obs + step + 1, float(step), discount, step)
                log(writer.append, lane, row, version=step, flags=flags)
            case 4:
                log(writer.append, 0, wrong[rng.integers(len(wrong))], version=0)
                log(writer.append, 5, (obs, obs, 0.0, 0.0, 0), version=0)
            case 5:
                into = arrays(int(rng.integers(1, 5)))
                count = log(tail.read, lane, *into)
                log.lines.append(plain([array[:count] for array in into]))
            case 6:
                rows, meta, _ = arrays(3)
                count = log(replay.read_rows, lane, int(rng.integers(0, 20)), rows, meta) or 0
                log.lines.append(plain((rows[:count], meta[:count])))
            case 7:
                log(writer.flush, lane)
            case 12:
                lanes = [lane] * int(rng.integers(1, 3))  # one lane: samplers guess the order of what they did not see
                many = np.full((len(lanes), 2), step, np.float32)
                columns = [many, many + 1, many[:, 0].copy(), many[:, 1] / 100, np.full(len(lanes), step, np.uint8)]
                log(writer.append_batch, lanes, columns, version=step, flags=[0] * len(lanes))
                log(writer.append_batch, lanes, columns, version=step, flags=[0] * 3)
                log(writer.append_batch, [0] * 9, columns, version=step)
                log(writer.append_batch, lanes, columns[1:], version=step)
            case 8:
                log(writer.restore_open_windows, lane, log(writer.open_windows, lane))
            case 9:
                log(tail.seek, 0, int(rng.integers(0, 9)))
            case 10:
                ids = np.array([[lane, 0, int(rng.integers(1, 9))]], np.uint64)
                log(priorities.update_priorities, ids, np.array([step], np.float32))
            case 13:
                position = int(rng.integers(5))
                log(priorities.restore_weights, lane, int(rng.integers(4)), position, np.ones(2), float(step))
            case 11 if step % 4 == 0:
                log(replay.reap, 2)
                log(writer.append, 0, (obs, obs, 0.0, 0.0, 0), version=0)
                writer = replay.writer([0, 1], worker=2, n_step=n_step)
        log.look(replay, "committed", "owners")
        log.look(writer, "pending")
        log.look(tail, "cursors", "lapped", "lost")
        log.look(sampler, "available")
        log.look(priorities, "available", "stale", "largest")
        log(priorities.weights, lane)
    rows, meta, _ = arrays(2)
    log(replay.restore_rows, 0, rows, meta, worker=9)
    log(writer.close)
    log(replay.restore_rows, 0, rows, meta, worker=9)
    log(writer.append, 0, (), version=0)
    log.look(replay, "committed", "owners")


def parameters_script(streams: Any, rng: np.random.Generator, log: Log) -> None:
    manifest = [("w", "f32", (2,)), ("b", "bf16", (1,)), ("n", "i64", ())]
    store = streams.ParameterStore.create(manifest, leases=1, run_id=1, version=int(rng.integers(0, 3)))
    log.look(store, "manifest", "nbytes", "version")
    publisher, subscriber = store.publisher(worker=1), store.subscriber(worker=2)
    into = np.zeros(store.nbytes, np.uint8)
    for step in range(40):
        data = np.full(store.nbytes, step, np.uint8)
        match int(rng.integers(8)):
            case 0 | 1:
                log(publisher.publish, data, env_steps=step, updates=2 * step)
            case 2:
                at, bits = [(0, [0, 0, 0xC0, 0x7F]), (8, [0x80, 0x7F])][step % 2]  # not a number; infinity
                data[at : at + len(bits)] = bits
                log(publisher.publish, data, env_steps=0, updates=0)
            case 3:
                log(subscriber.read, into)
                log.lines.append(into.tolist())
                log(subscriber.read, into[:3])
            case 4:
                log(subscriber.wait_newer, step // 4, timeout=0)
            case 5:
                log(subscriber.wait_env_steps, max(0, step - 3), timeout=0)
            case 6:
                log(store.publisher, worker=3)
            case 7:
                log(store.reap, 1)
                log(publisher.publish, data, env_steps=0, updates=0)
                log(publisher.close)
                publisher = store.publisher(worker=1)
        log.look(store, "version")
        log.look(subscriber, "version")
    for end in (publisher, subscriber, store):
        end.close()
    log(publisher.publish, into, env_steps=0, updates=0)
    log(subscriber.version)
    log(store.version)


def limiter_script(streams: Any, rng: np.random.Generator, log: Log) -> None:
    ratio = [None, (1, 1), (3, 2), (1, 4)][rng.integers(4)]
    options = {"learning_starts": int(rng.integers(0, 6)), "slack": float(rng.integers(2, 5)), "ratio": ratio}
    start = {"env_steps": int(rng.integers(0, 3)), "updates": int(rng.integers(0, 2))}
    limiter = streams.Limiter.create(lanes=3, total_timesteps=15, run_id=1, **options, **start)
    log.look(limiter, "total_timesteps", "target_updates")
    stop = int(rng.integers(60, 120))
    for step in range(90):
        lanes = rng.permutation(3)[: rng.integers(0, 4)].tolist()
        tickets = np.zeros(len(lanes), np.int64)
        match int(rng.integers(5)):
            case 0 | 1:
                log(limiter.acquire_steps, lanes, tickets, worker=1, timeout=0)
                log.lines.append(tickets.tolist())
            case 2:
                log(limiter.complete_step, int(rng.integers(4)))
            case 3:
                log(limiter.acquire_updates, int(rng.integers(0, 3)), worker=2, timeout=0)
            case 4:
                log(limiter.complete_updates, 1)
        if step == stop:
            log([limiter.stop, limiter.finish, limiter.cancel][rng.integers(3)])
        log.look(limiter, "state", "env_steps", "granted", "updates", "lane_steps")
    limiter.close()
    log(limiter.lane_steps)


def stats_script(streams: Any, rng: np.random.Generator, log: Log) -> None:
    board = streams.StatsBoard.create(slots=2, names=["a", "b"], event_width=2, event_capacity=3, run_id=1)
    log.look(board, "names", "slots")
    for step in range(40):
        slot, index = int(rng.integers(3)), int(rng.integers(3))
        match int(rng.integers(4)):
            case 0:
                log(board.set, slot, index, float(step))
            case 1:
                log(board.add, slot, index, 0.5)
            case 2:
                log(board.push_event, slot, [float(step)] * int(rng.integers(1, 3)))
            case 3:
                log(board.events, slot, index)
        log.look(board, "read")
    board.close()
    log(board.read)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # arrays that outlive their block: once per process
        yield


SCRIPTS: dict[str, Script] = {
    "queue": queue_script,
    "replay": replay_script,
    "parameters": parameters_script,
    "limiter": limiter_script,
    "stats": stats_script,
}


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("name", SCRIPTS)
def test_the_same_script_gives_the_same_log(name: str, seed: int) -> None:
    logs = []
    for streams in (transport, fakes):
        log = Log()
        SCRIPTS[name](streams, np.random.default_rng(seed), log)
        logs.append(log.lines)
    real, fake = logs
    for number, (expected, got) in enumerate(zip(real, fake, strict=True)):
        assert got == expected, f"line {number}, after {real[max(0, number - 4) : number]}"


@pytest.mark.parametrize("streams", [transport, fakes], ids=["real", "fake"])
def test_what_samplers_promise(streams: Any) -> None:
    replay = streams.Replay.create(ROW, buffer_size=20, lanes=2, run_id=1)
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


@pytest.mark.parametrize("streams", [transport, fakes], ids=["real", "fake"])
def test_saved_rows_can_be_loaded_by_either(streams: Any, tmp_path: Path) -> None:
    zero = np.zeros(2, np.float32)
    source = streams.Replay.create(ROW, buffer_size=10, lanes=2, run_id=1)
    with source.writer([0, 1], worker=1) as writer:
        for number in range(7):
            writer.append(number % 2, (zero, zero, float(number), 1.0, number), version=number)
    assert source.save(tmp_path / "all.npy") == 7
    assert source.save(tmp_path / "part.npy", ranges=[(0, 2, 3)]) == 2
    assert np.load(tmp_path / "part.npy")["n"].tolist() == [2, 4]
    for other in (transport, fakes):
        target: Any = other.Replay.create(ROW, buffer_size=10, lanes=2, run_id=1)
        with target.writer([0], worker=1), pytest.raises(TransportError, match="owned"):
            target.load(tmp_path / "all.npy", worker=2)
        assert target.load([tmp_path / "all.npy"], worker=2) == 7
        assert target.committed() == [4, 3]
        rows, meta = np.zeros((4, target.stride), np.uint8), np.zeros(4, np.uint64)
        at = next(offset for name, _, _, offset in target.fields if name == "n")
        for lane, expected in enumerate([[0, 2, 4, 6], [1, 3, 5]]):
            count = target.read_rows(lane, 1, rows, meta)
            assert rows[:count, at].tolist() == expected
            assert (meta[:count] >> np.uint64(32)).tolist() == expected
            assert meta[count - 1] & np.uint64(transport.FLAG_TRUNCATED)


def test_a_fake_never_waits_and_has_no_descriptor() -> None:
    queue = fakes.TrajectoryQueue.create(ROW, slots=1, run_id=1)
    with pytest.raises(WaitTimeoutError, match="a fake does not wait"):
        queue.consumer(worker=1).pop(timeout=None)
    for call in (lambda: queue.fd, lambda: fakes.Replay.attach(3), lambda: fakes.ParameterStore.attach(3, 4)):
        with pytest.raises(TransportError, match="no descriptor"):
            call()


@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        ("bf16", [1.0, -2.5, 3.1415926, 1e-40, 65504.0, float("inf"), float("nan"), 1.00390625, 1.01171875, 7, 1e39]),
        ("f16", [1.0, 65504.0, 65520.0, float("inf"), 1e-8, 3]),
        ("f32", [1e39, 0.1, np.float64(2), True, "1", None, 2**200]),
        ("u8", [0, 255, 256, -1, 1.0, np.int64(7), True]),
        ("i64", [-(2**63), 2**63, np.uint64(5)]),
        ("u64", [2**64 - 1, 2**64, -1]),
        ("bool", [True, np.bool_(False), 1, 0.0]),
    ],
)
def test_numbers_are_taken_alike(dtype: str, values: list[Any]) -> None:
    logs = []
    for streams in (transport, fakes):
        queue: Any = streams.TrajectoryQueue.create([("x", dtype, ())], slots=len(values), run_id=1)
        log = Log()
        for value in values:
            producer = queue.producer(worker=1)
            log(producer.put, x=value, timeout=0)
            consumer = queue.consumer(worker=2)
            if (segment := log(consumer.pop, timeout=0)) is not None:
                log.lines.append(segment["x"].tobytes())
        logs.append(log.lines)
    assert logs[0] == logs[1]


def methods(folder: Path) -> dict[str, dict[str, str]]:
    """Signature of every public method by class, those of base classes in the same folder included."""
    classes = {
        node.name: node
        for path in ([folder] if folder.is_file() else sorted(folder.glob("*.py")))
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef)
    }

    def of(name: str) -> dict[str, str]:
        found: dict[str, str] = {}
        for base in classes[name].bases:
            parent = base.value if isinstance(base, ast.Subscript) else base
            if isinstance(parent, ast.Name) and parent.id in classes:
                found |= of(parent.id)
        for node in classes[name].body:
            if isinstance(node, ast.FunctionDef):
                kinds = [ast.unparse(decorator) for decorator in node.decorator_list]
                key = f"{node.name}.setter" if any(kind.endswith(".setter") for kind in kinds) else node.name
                returns = "" if node.returns is None else ast.unparse(node.returns)
                found[key] = f"{'|'.join(kinds)} ({ast.unparse(node.args)}) -> {returns}"
        return {key: text for key, text in found.items() if key[0] != "_" or key in PROTOCOL}

    return {name: of(name) for name in classes}


PROTOCOL = {"__enter__", "__exit__", "__getitem__"}


@pytest.mark.parametrize("name", fakes.__all__)
def test_every_signature_is_that_of_the_stub(name: str) -> None:
    stub, fake = methods(PACKAGE / "_native.pyi")[name], methods(PACKAGE / "transport" / "fakes")[name]
    assert fake == stub


def test_every_stream_has_a_fake() -> None:
    classes = {name for name in transport.__all__ if isinstance(getattr(transport, name), type)} - {"Streams"}
    assert classes == set(fakes.__all__)
