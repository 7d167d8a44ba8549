"""Calls that wait: time-outs, wakes, Ctrl-C, and other threads meanwhile."""

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlz._native as native
from rlz._native import (
    CLOSED,
    FINISHED,
    RUNNING,
    STOPPING,
    InferenceStream,
    Limiter,
    ParameterStore,
    QueueProducer,
    Subscriber,
    TrajectoryQueue,
)
from rlz.errors import ClosedError, TransportError, WaitTimeoutError

Wait = Callable[[float | None], Any]
MakeWait = Callable[[], Wait]


def limiter(**options: Any) -> Limiter:
    """A limiter that grants one env step, then waits for an update, which waits for a step."""
    defaults: dict[str, Any] = {
        "lanes": 1,
        "total_timesteps": 1_000,
        "learning_starts": 0,
        "ratio": (1, 1),
        "slack": 1.0,
        "run_id": 1,
    }
    return Limiter.create(**{**defaults, **options})


def subscriber() -> tuple[ParameterStore, Subscriber]:
    store = ParameterStore.create([("w", "f32", (4,))], leases=2, run_id=1)
    return store, store.subscriber(worker=3)


def blocked_limiter() -> tuple[Limiter, np.ndarray]:
    gate, tickets = limiter(), np.zeros(1, np.int64)
    assert gate.acquire_steps([0], tickets, worker=2, timeout=0) == 1
    gate.complete_step(0)
    return gate, tickets


def queue() -> TrajectoryQueue:
    return TrajectoryQueue.create([("x", "f32", (4,))], slots=1, run_id=1)


def acquire_steps() -> Wait:
    gate, tickets = blocked_limiter()
    return lambda timeout: gate.acquire_steps([0], tickets, worker=2, timeout=timeout)


def acquire_updates() -> Wait:
    gate = limiter()
    return lambda timeout: gate.acquire_updates(1, worker=2, timeout=timeout)


def wait_newer() -> Wait:
    store, reader = subscriber()
    return lambda timeout: reader.wait_newer(store.version(), timeout=timeout)


def wait_env_steps() -> Wait:
    _, reader = subscriber()
    return lambda timeout: reader.wait_env_steps(1, timeout=timeout)


def full_producer() -> QueueProducer:
    producer = queue().producer(worker=2)
    producer.put(x=np.zeros(4, np.float32), timeout=0)
    return producer


def queue_acquire() -> Wait:
    producer = full_producer()
    return lambda timeout: producer.acquire(timeout=timeout)


def queue_put() -> Wait:
    producer = full_producer()
    return lambda timeout: producer.put(x=np.zeros(4, np.float32), timeout=timeout)


def queue_pop() -> Wait:
    consumer = queue().consumer(worker=2)
    return lambda timeout: consumer.pop(timeout=timeout)


def queue_pop_batch() -> Wait:
    consumer = queue().consumer(worker=2)
    return lambda timeout: consumer.pop_batch({"x": np.zeros((2, 4), np.float32)}, timeout=timeout)


def stream() -> InferenceStream:
    return InferenceStream.create([("obs", "f32", (4,))], [("action", "f32", (1,))], lanes=1, run_id=1)


def inference_client() -> Wait:
    """Of a lane whose last client died while a server had its request."""
    made = stream()
    (dead := made.client([[0]], worker=2)).ask(0, {"obs": np.zeros((1, 4), np.float32)})
    server = made.server(worker=3)
    server.take({"obs": np.zeros((1, 4), np.float32)}, timeout=0)
    made.reap(2)
    return lambda timeout: (server, dead, made.client([[0]], worker=2, timeout=timeout))


def inference_wait() -> Wait:
    client = stream().client([[0]], worker=2)
    client.ask(0, {"obs": np.zeros((1, 4), np.float32)})
    return lambda timeout: client.wait(timeout=timeout)


def inference_take() -> Wait:
    server = stream().server(worker=2)
    return lambda timeout: server.take({"obs": np.zeros((1, 4), np.float32)}, timeout=timeout)


WAITS = [
    acquire_steps,
    acquire_updates,
    wait_newer,
    wait_env_steps,
    queue_acquire,
    queue_put,
    queue_pop,
    queue_pop_batch,
    inference_client,
    inference_wait,
    inference_take,
]
"""Each makes a call that has nothing to come back for."""

every_wait = pytest.mark.parametrize("wait", WAITS, ids=lambda wait: wait.__name__)


def test_every_call_that_may_wait_is_here() -> None:
    """Against the stub: who takes a timeout may wait."""
    stub = Path(native.__file__).with_name("_native.pyi").read_text()
    assert stub.count("timeout: float | None") == len(WAITS)


@every_wait
def test_time_out(wait: MakeWait) -> None:
    call = wait()
    with pytest.raises(WaitTimeoutError, match="waited 0"):
        call(0)
    start = time.monotonic()
    with pytest.raises(TimeoutError):
        call(0.15)
    assert 0.14 < time.monotonic() - start < 5.0
    for bad in (-1.0, float("nan")):
        with pytest.raises(ValueError, match="timeout"):
            call(bad)


@every_wait
def test_other_threads_run_during_a_wait(wait: MakeWait) -> None:
    call, count, stop = wait(), 0, threading.Event()

    def tick() -> None:
        nonlocal count
        while not stop.is_set():
            count += 1
            time.sleep(0.001)

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        with pytest.raises(WaitTimeoutError):
            call(0.3)
    finally:
        stop.set()
        thread.join()
    assert count > 20


@every_wait
def test_ctrl_c_ends_a_wait(wait: MakeWait) -> None:
    call, delays = wait(), []
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        for _ in range(3):
            sent: list[float] = []

            def interrupt(sent: list[float] = sent) -> None:
                sent.append(time.monotonic())
                os.kill(os.getpid(), signal.SIGINT)

            timer = threading.Timer(0.15, interrupt)  # well into the wait, after its first slice
            timer.start()
            with pytest.raises(KeyboardInterrupt):
                call(None)
            delays.append(time.monotonic() - sent[0])
            timer.join()
    finally:
        signal.signal(signal.SIGINT, before)
    assert min(delays) < 0.3  # the best of three: a busy machine takes its time


def test_a_handler_that_does_not_raise_lets_the_wait_go_on() -> None:
    seen = []
    before = signal.signal(signal.SIGUSR1, lambda *_: seen.append(1))
    try:
        timer = threading.Timer(0.05, lambda: signal.raise_signal(signal.SIGUSR1))
        timer.start()
        with pytest.raises(WaitTimeoutError):
            wait_newer()(0.4)
        timer.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert seen == [1]


def test_what_is_waited_for_wakes() -> None:
    store, reader = subscriber()
    gate, tickets = blocked_limiter()
    results: dict[str, Any] = {}
    threads = [
        threading.Thread(target=lambda: results.update(version=reader.wait_newer(0, timeout=None))),
        threading.Thread(
            target=lambda: results.update(steps=gate.acquire_steps([0], tickets, worker=2, timeout=float("inf")))
        ),
    ]
    for thread in threads:
        thread.start()
    time.sleep(0.1)
    assert not results
    store.publisher(worker=1).publish(np.zeros(16, np.uint8), env_steps=5, updates=1)
    assert gate.acquire_updates(1, worker=4, timeout=1.0) == 1
    gate.complete_updates(1)
    for thread in threads:
        thread.join(5.0)
    assert results == {"version": 1, "steps": 1}
    assert tickets.tolist() == [1]
    assert gate.missed_wakeups == 0


def test_states_and_close() -> None:
    gate, tickets = blocked_limiter()
    assert gate.state == RUNNING
    threading.Timer(0.05, gate.stop).start()
    assert gate.acquire_steps([0], tickets, worker=2, timeout=10.0) == 0
    assert tickets.tolist() == [-1]
    assert gate.state == STOPPING
    assert gate.acquire_updates(1, worker=4, timeout=None) == 0
    gate.finish()
    assert gate.state == FINISHED
    gate.cancel()
    assert gate.state == CLOSED
    for call in (
        lambda: gate.acquire_updates(1, worker=4, timeout=None),
        lambda: gate.acquire_steps([0], tickets, worker=2, timeout=0),
    ):
        with pytest.raises(ClosedError):
            call()


def test_counts() -> None:
    gate = limiter(lanes=3, total_timesteps=5, learning_starts=2, ratio=(3, 2), slack=4.0)
    assert (gate.total_timesteps, gate.target_updates) == (5, 4)
    other = Limiter.attach(gate.fd)
    tickets = np.zeros(3, np.int64)
    assert other.acquire_steps([0, 1, 2], tickets, worker=2, timeout=0) == 3
    assert tickets.tolist() == [0, 1, 2]
    other.complete_step(1)
    assert (gate.granted, gate.env_steps, gate.lane_steps()) == (3, 1, [0, 1, 0])
    assert other.acquire_steps([0, 2], tickets[:2], worker=2, timeout=0) == 2
    assert tickets[:2].tolist() == [0, 2]  # open indices stay with their lane
    with pytest.raises(ValueError, match="open step index"):
        gate.complete_step(1)
    with pytest.raises(ValueError, match="lane"):
        gate.complete_step(3)
    with pytest.raises(ValueError, match="ticket"):
        gate.acquire_steps([0, 1], tickets, worker=2, timeout=0)
    free = limiter(ratio=None)
    assert free.target_updates is None
    resumed = limiter(env_steps=7, updates=6)
    assert (resumed.env_steps, resumed.updates, resumed.lane_steps()) == (7, 6, [0])


def test_a_second_learner_is_refused() -> None:
    gate, _ = blocked_limiter()
    other = Limiter.attach(gate.fd)
    assert gate.acquire_updates(10, worker=3, timeout=0) == 2
    for worker in (3, 4):
        with pytest.raises(TransportError, match=r"learner's place .* owned by worker 3"):
            other.acquire_updates(10, worker=worker, timeout=0)
    gate.complete_updates(2)
    gate.reap(3)
    with pytest.raises(WaitTimeoutError):
        other.acquire_updates(10, worker=4, timeout=0)
    other.close()
    with pytest.raises(WaitTimeoutError):
        gate.acquire_updates(1, worker=5, timeout=0)
