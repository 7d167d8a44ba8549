"""What random scripts do not show of the fakes: draws, files, numbers, and that signatures are those of the stub."""

import ast
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_tools import ROW, SEED, Log

import rlz
from rlz import transport
from rlz.errors import TransportError, WaitTimeoutError
from rlz.transport import fakes

PACKAGE = Path(rlz.__file__).parent


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
