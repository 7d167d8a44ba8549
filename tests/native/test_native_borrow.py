"""Arrays that a call uses without the GIL are flagged: other calls refuse them, by name, instead of mixing rows."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from rlz._native import Limiter, ParameterStore, Policy, Replay, TrajectoryQueue
from rlz.errors import WaitTimeoutError

ROW = [("x", "f32", (4,)), ("half", "f16", ()), ("done", "bool", ())]


@pytest.fixture
def busy() -> Iterator[dict[str, Any]]:
    """Arrays that a batch of a queue is being gathered into, by a thread that waits for its segments."""
    queue = TrajectoryQueue.create(ROW, slots=1)
    arrays: dict[str, Any] = {
        "x": np.zeros((2, 4), np.float32),
        "half": np.zeros(2, np.float16),
        "done": np.zeros(2, np.bool_),
        "notes": np.zeros(2, np.uint64),
    }
    into = {name: arrays[name] for name in ("x", "half", "done")}
    consumer, done = queue.consumer(worker=1), threading.Event()

    def gather() -> None:
        while not done.is_set():
            with pytest.raises(WaitTimeoutError):
                consumer.pop_batch(into, timeout=0.5, notes=arrays["notes"])

    thread = threading.Thread(target=gather)
    thread.start()
    while True:  # until the thread waits
        try:
            ParameterStore.create([("w", "u8", (16,))]).publisher(worker=1).publish(arrays["notes"].view(np.uint8))
        except ValueError:
            break
        assert thread.is_alive()
        time.sleep(0.001)
    yield arrays
    done.set()
    thread.join()


def test_an_array_that_another_thread_is_filling_is_refused_everywhere(busy: dict[str, Any]) -> None:
    replay = Replay.create(ROW, buffer_size=8)
    writer = replay.writer([0], worker=1)
    queue = TrajectoryQueue.create(ROW, slots=1)
    producer, store = queue.producer(worker=1), ParameterStore.create([("w", "f32", (8,))])
    other = queue.consumer(worker=2)
    gate = Limiter.create(lanes=2, total_timesteps=9, learning_starts=0, ratio=None, slack=1.0)
    good = {"x": np.zeros(4, np.float32), "half": 0.0, "done": False}
    bytes_of_x = busy["x"].reshape(-1).view(np.uint8)
    policy = Policy(
        obs_dim=4, action_dim=4, hidden=[2], activation="relu", layer_norm=False, head="deterministic", seed=1
    )
    uses: list[tuple[str, Callable[[], object]]] = [
        ("another thread is filling", lambda: writer.append(0, {**good, "x": busy["x"][0]})),
        ("another thread is filling", lambda: writer.append(0, {**good, "half": busy["half"][0:1].reshape(())})),
        ("another thread is filling", lambda: producer.put({**good, "done": busy["done"][1:].reshape(())}, timeout=0)),
        (r"row: .* in use", lambda: writer.append_packed(0, bytes_of_x[:64])),
        ("another thread is filling", lambda: policy.act(busy["x"], np.zeros((2, 4), np.float32))),
        ("another thread is filling", lambda: policy.act(np.zeros((2, 4), np.float32), busy["x"])),
        (r"into.*another thread is filling", lambda: other.pop_batch({"x": busy["x"]}, timeout=0)),
        (r"parameters: .* in use", lambda: store.publisher(worker=1).publish(bytes_of_x)),
        (r"tickets: .* in use", lambda: gate.acquire_steps([0, 1], busy["notes"].view(np.int64), worker=1, timeout=0)),
    ]
    for text, use in uses:
        with pytest.raises((ValueError, TypeError), match=text):
            use()
    # Others go on meanwhile.
    writer.append(0, {**good, "x": np.ones(4, np.float32)})
    assert replay.committed() == [1]


def test_an_array_given_twice_is_refused() -> None:
    words = np.zeros((3, 3), np.uint64)
    replay = Replay.create([("x", "u64", (3,))], buffer_size=8)
    replay.writer([0], worker=1).append(0, (np.zeros(3, np.uint64),))
    with pytest.raises(ValueError, match=r"(meta|ids): .* in use by another call"):
        replay.sampler(seed=1).sample(np.zeros((3, 64), np.uint8), ids=words[:3], meta=words.reshape(-1)[:3])


def test_rows_appended_beside_a_sampler_that_fills_the_same_array_are_never_mixed() -> None:
    """The sampler draws rows of one value each, without the GIL, into the array that is appended from."""
    width = 1 << 16
    source = Replay.create([("x", "f32", (width,))], buffer_size=8)
    writer = source.writer([0], worker=1)
    for value in range(8):
        writer.append(0, x=np.full(width, value, np.float32))
    target = Replay.create([("x", "f32", (width,))], buffer_size=4)
    appender = target.writer([0], worker=1)
    rows, stop, refused, taken = np.zeros((1, source.stride), np.uint8), [False], 0, 0
    view, sampler = rows[0].view(np.float32), source.sampler(seed=1)

    def draw() -> None:
        while not stop[0]:
            sampler.sample(rows)

    thread = threading.Thread(target=draw)
    thread.start()
    out, meta = np.empty((1, target.stride), np.uint8), np.empty(1, np.uint64)
    end = time.monotonic() + 1.0
    try:
        while time.monotonic() < end and (not refused or not taken or taken < 50):
            try:
                appender.append(0, x=view)
            except TypeError:
                refused += 1
                continue
            taken += 1
            assert target.read_rows(0, taken, out, meta) == 1
            row = out[0].view(np.float32)
            assert row.min() == row.max()
    finally:
        stop[0] = True
        thread.join()
    assert refused > 0


@pytest.mark.parametrize(
    ("error", "text", "call"),
    [
        (TypeError, r"rows: expected a writable, C-contiguous uint8 array of shape \(n, 64\), got a float32 array of "
         r"shape \(2, 64\)", lambda s, r: s.sample(np.zeros((2, 64), np.float32))),
        (ValueError, r"rows: .* shape \(n, 64\), got a uint8 array of shape \(2, 3\)",
         lambda s, r: s.sample(np.zeros((2, 3), np.uint8))),
        (ValueError, "not C-contiguous", lambda s, r: s.sample(np.zeros((2, 128), np.uint8)[:, ::2])),
        (ValueError, r"ids: .*uint64 array of shape \(2, 3\), got a uint64 array of shape \(3, 2\)",
         lambda s, r: s.sample(np.zeros((2, 64), np.uint8), ids=np.zeros((3, 2), np.uint64))),
        (TypeError, "ids: .*got a int64 array",
         lambda s, r: s.sample(np.zeros((2, 64), np.uint8), ids=np.zeros((2, 3), np.int64))),
        (TypeError, "rows: expected .*, got a str", lambda s, r: s.sample("x")),
        (ValueError, "rows: given 0, expected at least 1", lambda s, r: s.sample(0)),
        (ValueError, "read-only", lambda s, r: s.sample(np.frombuffer(bytes(128), np.uint8).reshape(2, 64))),
        (TypeError, "meta: expected", lambda s, r: r.read_rows(0, 1, np.zeros((1, 64), np.uint8), [0])),
    ],
)  # fmt: skip
def test_errors_name_argument_expected_and_given(error: type[Exception], text: str, call: Any) -> None:
    replay = Replay.create([("x", "f32", (4,))], buffer_size=8)
    replay.writer([0], worker=1).append(0, x=np.zeros(4, np.float32))
    with pytest.raises(error, match=text):
        call(replay.sampler(seed=1), replay)
