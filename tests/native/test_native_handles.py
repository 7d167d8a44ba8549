"""Life of a handle: close, fork, leaks, errors; parameter store and stats board through the bindings."""

import gc
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlz._native as native
from rlz import errors
from rlz._native import InferenceStream, Limiter, ParameterStore, Replay, StatsBoard, TrajectoryQueue
from support.handles import ROW, SEED, board, bytes_of, limiter, queue, replay, store


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
    assert events.tolist() == [[n, 2.0 * n, -1.0] for n in (2, 3, 4, 5)]
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
import gc, os
from rlz.errors import TransportError
from support.handles import Everything
everything = Everything()
pid = os.fork()
if pid == 0:
    for number, call in enumerate(everything.calls()):
        try:
            call()
        except TransportError as error:
            assert "fork" in str(error) and "spawn" in str(error), error
        else:
            print("call", number, "was not refused", flush=True)
            os._exit(1)
    del call, everything
    gc.collect()
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
everything.check()  # the child's clean-up gave nothing of the parent's away
"""


def test_a_forked_child_is_refused() -> None:
    subprocess.run([sys.executable, "-c", FORK], check=True, timeout=60)


def cycle_replay() -> None:
    owner = replay()
    other = Replay.attach(owner.fd)
    writer = other.writer([0], worker=2)
    writer.append(0, ROW, version=0)
    ends = other.sampler(seed=SEED), other.prioritized_sampler(seed=SEED), other.tail()
    ends[0].sample(np.zeros((2, 64), np.uint8))
    for handle in (writer, owner):  # the rest goes without
        handle.close()


def cycle_queue() -> None:
    owner = queue()
    other = TrajectoryQueue.attach(owner.fd)
    producer, consumer = other.producer(worker=2), owner.consumer(worker=3)
    producer.put(x=ROW[0], timeout=0)
    with consumer.pop(timeout=0) as segment:
        segment["x"].sum()
    producer.acquire(timeout=0)  # forgotten
    for handle in (producer, owner):
        handle.close()


def cycle_inference() -> None:
    owner = InferenceStream.create([("x", "f32", (4,))], [("y", "f32", (4,))], lanes=2, run_id=1)
    other = InferenceStream.attach(owner.fd)
    client, server = other.client([[0], [1]], worker=2), owner.server(worker=3)
    rows = np.zeros((1, 4), np.float32)
    client.ask(0, {"x": rows})
    server.take({"x": rows}, timeout=0)
    server.answer({"y": rows})
    client.take(0, {"y": rows})
    client.ask(1, {"x": rows})  # forgotten
    for handle in (server, owner):
        handle.close()


def cycle_store() -> None:
    owner = store()
    other = ParameterStore.attach(owner.control_fd, owner.readonly_payload_fd)
    publisher, subscriber = owner.publisher(worker=2), other.subscriber(worker=3)
    publisher.publish(bytes_of(1), env_steps=0, updates=0)
    subscriber.read(np.zeros(19, np.uint8))
    for handle in (subscriber, owner):
        handle.close()


def cycle_limiter() -> None:
    owner = limiter()
    Limiter.attach(owner.fd).acquire_steps([0], np.zeros(1, np.int64), worker=2, timeout=0)


def cycle_board() -> None:
    owner = board()
    other = StatsBoard.attach(owner.fd)
    other.push_event(0, (1.0, 2.0, 3.0))
    owner.close()


@pytest.mark.parametrize("cycle", [cycle_replay, cycle_queue, cycle_inference, cycle_store, cycle_limiter, cycle_board])
def test_nothing_leaks(cycle: Callable[[], None]) -> None:
    def held() -> tuple[int, int]:
        return len(list(Path("/proc/self/fd").iterdir())), Path("/proc/self/maps").read_text().count("rlz-")

    def private_kib() -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith("RssAnon")))

    for _ in range(500):
        cycle()
    gc.collect()
    before, memory = held(), private_kib()
    for _ in range(10_000):
        cycle()
    gc.collect()
    assert held() == before
    assert private_kib() - memory < 1024  # less than 100 bytes a cycle


def test_the_extension_has_no_kill_points() -> None:
    """They are for the tests of the core; their names would be in the file."""
    assert b"ring: half a row" not in Path(native.__file__).read_bytes()


GIB = ("f32", (2**28,))
TOO_LARGE: dict[str, Callable[[], Any]] = {
    "replay": lambda: Replay.create([("x", "f32", (64,))], buffer_size=2**45, lanes=1, run_id=1),
    "queue": lambda: TrajectoryQueue.create([("x", *GIB)], slots=2**10, run_id=1),
    "parameters": lambda: ParameterStore.create([(f"w{i}", *GIB) for i in range(2**10)], leases=253, run_id=1),
    "stats": lambda: StatsBoard.create(slots=2, names=["a"], event_width=1, event_capacity=2**45, run_id=1),
}
"""1 TiB and more."""


@pytest.fixture
def no_room() -> Iterator[None]:
    """Should one of these sizes not be refused, it cannot be mapped either, and so cannot fill the machine's memory."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (2**40, hard))
    yield
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@pytest.mark.usefixtures("no_room")
@pytest.mark.parametrize("stream", TOO_LARGE)
def test_too_much_memory_is_a_clear_error(stream: str) -> None:
    with pytest.raises(errors.SharedMemoryError, match=rf"MiB.*{stream}.*smaller") as caught:
        TOO_LARGE[stream]()
    assert isinstance(caught.value, MemoryError)


def test_shared_memory_is_checked_before() -> None:
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
