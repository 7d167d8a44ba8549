"""Life of a handle: close, fork, leaks, errors; parameter store and stats board through the bindings."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlz._native as native
from rlz import errors
from rlz._native import Limiter, ParameterStore, Replay, StatsBoard


def replay() -> Replay:
    return Replay.create([("x", "f32", (4,))], buffer_size=64, lanes=1, run_id=1)


def store() -> ParameterStore:
    return ParameterStore.create([("w", "f32", (4,)), ("b", "u8", (3,))], leases=2, run_id=1)


def board() -> StatsBoard:
    return StatsBoard.create(slots=2, names=["a", "b"], event_width=3, event_capacity=4, run_id=1)


def limiter() -> Limiter:
    return Limiter.create(lanes=1, total_timesteps=10, learning_starts=0, ratio=None, slack=1.0, run_id=1)


def bytes_of(value: float) -> np.ndarray:
    return np.concatenate([np.full(4, value, np.float32).view(np.uint8), np.full(3, value, np.uint8)])


def test_parameters() -> None:
    owner = store()
    assert owner.nbytes == 19
    assert owner.manifest == [("w", "f32", (4,)), ("b", "u8", (3,))]
    learner = ParameterStore.attach(owner.control_fd, owner.payload_fd, writable=True)
    sampler = ParameterStore.attach(owner.control_fd, owner.readonly_payload_fd)
    publisher, subscriber = learner.publisher(worker=2), sampler.subscriber(worker=3)
    into = np.zeros(19, np.uint8)
    with pytest.raises(errors.TransportError, match="nothing has been published"):
        subscriber.read(into)
    assert publisher.publish(bytes_of(1), env_steps=10, updates=5) == 1
    assert publisher.publish(bytes_of(2), env_steps=20, updates=15) == 2
    assert subscriber.read(into) == (2, 20, 15)
    np.testing.assert_array_equal(into, bytes_of(2))
    assert (owner.version(), subscriber.version()) == (2, 2)
    assert subscriber.wait_env_steps(20, timeout=0) == 2
    bad = bytes_of(3)
    bad[8:12] = np.array([np.nan], np.float32).view(np.uint8)
    with pytest.raises(errors.NonFiniteError, match="w has a value that is not finite at flat index 2"):
        publisher.publish(bad, env_steps=0, updates=0)
    assert owner.version() == 2
    with pytest.raises(errors.TransportError, match="read-only"):
        sampler.publisher(worker=4)
    with pytest.raises(errors.TransportError, match="owned by worker 2"):
        learner.publisher(worker=4)
    owner.reap(2)
    with pytest.raises(errors.LeaseLostError):
        publisher.publish(bytes_of(3), env_steps=0, updates=0)
    successor = learner.publisher(worker=4)
    assert successor.publish(bytes_of(3), env_steps=30, updates=25) == 3
    successor.close()
    learner.publisher(worker=5).close()
    for wrong in (np.zeros(18, np.uint8), np.zeros(38, np.uint8)[::2]):
        with pytest.raises(ValueError, match=r"bytes|contiguous"):
            subscriber.read(wrong)
    subscriber.close()
    with pytest.raises(errors.ClosedError):
        subscriber.read(into)


def test_read_only_arrays_are_refused() -> None:
    owner = store()
    owner.publisher(worker=1).publish(bytes_of(1), env_steps=0, updates=0)
    into = np.zeros(19, np.uint8)
    into.flags.writeable = False
    with pytest.raises((TypeError, ValueError), match=r"writeable|read-?only"):
        owner.subscriber(worker=2).read(into)


def test_stats() -> None:
    owner = board()
    other = StatsBoard.attach(owner.fd)
    other.set(1, 0, 1.5)
    other.add(1, 0, 0.25)
    values = owner.read()
    assert values.dtype == np.float64
    assert values.tolist() == [[0.0, 0.0], [1.75, 0.0]]
    assert (owner.names, owner.slots) == (["a", "b"], 2)
    since, events = owner.events(0, 0)
    assert (since, events.shape) == (0, (0, 3))
    for number in range(6):
        other.push_event(0, (number, 2.0 * number, -1))
    since, events = owner.events(0, since)
    assert since == 6
    assert events.tolist() == [[n, 2.0 * n, -1.0] for n in (3, 4, 5)]
    assert owner.events(0, 5)[1].tolist() == [[5.0, 10.0, -1.0]]
    assert owner.events(0, 6)[1].shape == (0, 3)
    for call in (
        lambda: owner.set(2, 0, 1.0),
        lambda: owner.add(0, 2, 1.0),
        lambda: owner.push_event(0, [1.0]),
        lambda: owner.events(5, 0),
    ):
        with pytest.raises(ValueError, match="expected"):
            call()


def test_use_after_close() -> None:
    shared, parameters, numbers = replay(), store(), board()
    writer, sampler = shared.writer([0], worker=2), shared.sampler(seed=[1, 2, 3, 4])
    subscriber = parameters.subscriber(worker=2)
    writer.append(0, (np.zeros(4, np.float32),), version=0)
    for handle in (shared, parameters, numbers):
        handle.close()
        handle.close()
    for call in (
        shared.committed,
        shared.owners,
        lambda: shared.fd,
        lambda: shared.sampler(seed=[1, 2, 3, 4]),
        lambda: parameters.control_fd,
        parameters.version,
        lambda: parameters.reap(2),
        numbers.read,
        lambda: numbers.set(0, 0, 1.0),
    ):
        with pytest.raises(errors.ClosedError, match="closed"):
            call()
    # Ends that were made before stay valid: they hold the memory themselves.
    writer.append(0, (np.zeros(4, np.float32),), version=0)
    sampler.sample(np.zeros((2, 64), np.uint8))
    assert subscriber.version() == 0
    writer.close()
    sampler.close()
    with pytest.raises(errors.ClosedError):
        sampler.sample(np.zeros((2, 64), np.uint8))


FORK = """
import gc, os, sys
sys.path.insert(0, {folder!r})
import numpy as np
from rlz.errors import TransportError
from test_native_handles import board, limiter, replay, store
handles = replay(), store(), board(), limiter()
shared, parameters, numbers, gate = handles
ends = shared.writer([0], worker=2), shared.sampler(seed=[1, 2, 3, 4]), parameters.publisher(worker=2)
reader = parameters.subscriber(worker=3)
calls = [
    shared.committed, lambda: shared.fd, parameters.version, numbers.read, lambda: gate.env_steps,
    lambda: ends[0].append(0, (np.zeros(4, np.float32),), version=0),
    lambda: ends[1].sample(np.zeros((2, 64), np.uint8)),
    lambda: ends[2].publish(np.zeros(19, np.uint8), env_steps=0, updates=0),
    lambda: reader.wait_newer(0, timeout=None),
    lambda: gate.acquire_updates(1, worker=2, timeout=None),
]
pid = os.fork()
if pid == 0:
    for call in calls:
        try:
            call()
        except TransportError as error:
            assert "fork" in str(error) and "spawn" in str(error), error
        else:
            os._exit(1)
    del calls, handles, shared, parameters, numbers, gate, ends, reader
    gc.collect()
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
assert shared.owners() == [2]  # the child's clean-up did not give the parent's lanes away
ends[0].append(0, (np.zeros(4, np.float32),), version=0)
assert ends[2].publish(np.zeros(19, np.uint8), env_steps=0, updates=0) == 1
"""


def test_a_forked_child_is_refused(request: pytest.FixtureRequest) -> None:
    program = FORK.format(folder=str(request.path.parent))
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_nothing_leaks() -> None:
    def cycle() -> None:
        shared, parameters, numbers, gate = replay(), store(), board(), limiter()
        other = Replay.attach(shared.fd)
        writer = other.writer([0], worker=2)
        other.sampler(seed=[1, 2, 3, 4])
        parameters.publisher(worker=2)
        parameters.subscriber(worker=3)
        _ = parameters.readonly_payload_fd
        ParameterStore.attach(parameters.control_fd, parameters.readonly_payload_fd)
        writer.close()
        del gate
        for handle in (shared, parameters, numbers):
            handle.close()

    def held() -> tuple[int, int]:
        return len(list(Path("/proc/self/fd").iterdir())), Path("/proc/self/maps").read_text().count("rlz-")

    for _ in range(10):
        cycle()
    before = held()
    for _ in range(500):  # four streams each: 2,000 segments made and dropped
        cycle()
    assert held() == before


def test_too_much_memory_is_a_clear_error() -> None:
    with pytest.raises(errors.SharedMemoryError, match=r"MiB.*replay.*smaller") as caught:
        Replay.create([("x", "f32", (64,))], buffer_size=2**45, lanes=1, run_id=1)
    assert isinstance(caught.value, MemoryError)
    native.check_shared_memory(1 << 20)
    with pytest.raises(errors.SharedMemoryError, match="MiB"):
        native.check_shared_memory(1 << 60)


def test_wrong_descriptors() -> None:
    numbers = board()
    with pytest.raises(ValueError, match="-1"):
        Replay.attach(-1)
    with pytest.raises(errors.TransportError, match="not open"):
        Replay.attach(12345)
    with pytest.raises(errors.TransportError, match="stats board"):
        Replay.attach(numbers.fd)
    with Path("/dev/null").open() as file, pytest.raises(errors.TransportError, match="memfd"):
        Replay.attach(file.fileno())
    a, b = store(), ParameterStore.create([("w", "f32", (5,))], leases=2, run_id=1)
    with pytest.raises(errors.TransportError, match="different stores"):
        ParameterStore.attach(a.control_fd, b.payload_fd)


def test_handles_do_not_reach_children() -> None:
    shared = replay()
    assert not os.get_inheritable(shared.fd)
    assert not os.get_inheritable(Replay.attach(shared.fd).fd)


def test_every_error_is_one_of_ours() -> None:
    raised: list[Any] = []
    for call in (lambda: Replay.attach(12345), lambda: native.check_shared_memory(1 << 60)):
        try:
            call()
        except errors.RlzError as error:
            raised.append(type(error))
    assert raised == [errors.TransportError, errors.SharedMemoryError]
