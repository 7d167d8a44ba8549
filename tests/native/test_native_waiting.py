"""Calls that wait: time-outs, wakes, Ctrl-C, and other threads meanwhile."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rlz._native import CLOSED, FINISHED, RUNNING, STOPPING, Limiter, ParameterStore, Subscriber
from rlz.errors import ClosedError, WaitTimeoutError


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


WAITS: dict[str, Callable[[float | None], Any]] = {}


def wait_calls() -> dict[str, Callable[[float | None], Any]]:
    gate, tickets = blocked_limiter()
    store, reader = subscriber()
    learner = limiter()
    return {
        "acquire_steps": lambda timeout: gate.acquire_steps([0], tickets, worker=2, timeout=timeout),
        "acquire_updates": lambda timeout: learner.acquire_updates(1, worker=2, timeout=timeout),
        "wait_newer": lambda timeout: reader.wait_newer(store.version(), timeout=timeout),
        "wait_env_steps": lambda timeout: reader.wait_env_steps(1, timeout=timeout),
    }


NAMES = ["acquire_steps", "acquire_updates", "wait_newer", "wait_env_steps"]


@pytest.mark.parametrize("name", NAMES)
def test_time_out(name: str) -> None:
    call = wait_calls()[name]
    with pytest.raises(WaitTimeoutError, match="waited 0"):
        call(0)
    start = time.monotonic()
    with pytest.raises(TimeoutError):
        call(0.15)
    assert 0.14 < time.monotonic() - start < 5.0
    for bad in (-1.0, float("nan")):
        with pytest.raises(ValueError, match="timeout"):
            call(bad)


@pytest.mark.parametrize("name", NAMES)
def test_other_threads_run_during_a_wait(name: str) -> None:
    call, count, stop = wait_calls()[name], 0, threading.Event()

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


CTRL_C = """
import signal, sys, time
sys.path.insert(0, {folder!r})
from test_native_waiting import wait_calls
call = wait_calls()[{name!r}]
print("ready", flush=True)
try:
    call(None)
except KeyboardInterrupt:
    print(time.monotonic(), flush=True)
"""


@pytest.mark.parametrize("name", ["acquire_steps", "wait_newer"])
def test_ctrl_c_ends_a_wait(name: str, request: pytest.FixtureRequest) -> None:
    import signal

    program = CTRL_C.format(folder=str(request.path.parent), name=name)
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.3)  # well into the wait
        sent = time.monotonic()
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=10)
    assert process.returncode == 0
    assert float(out) - sent < 0.3


def test_a_handler_that_does_not_raise_lets_the_wait_go_on() -> None:
    import signal

    seen = []
    before = signal.signal(signal.SIGUSR1, lambda *_: seen.append(1))
    try:
        timer = threading.Timer(0.05, lambda: signal.raise_signal(signal.SIGUSR1))
        timer.start()
        with pytest.raises(WaitTimeoutError):
            wait_calls()["wait_newer"](0.4)
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
    gate.close()
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
