"""Ends of a queue under everyday use: names for arrays, the end of the queue, one id twice, a signal in a batch."""

import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rlz._native import QueueConsumer, TrajectoryQueue
from rlz.errors import ClosedError, LeaseLostError, TransportError, WaitTimeoutError

FIELDS = [("obs", "f32", (8,)), ("reward", "f32", ())]
LIMIT = 20.0
"""Seconds after which a wait is stuck."""


def make(slots: int, **options: Any) -> TrajectoryQueue:
    return TrajectoryQueue.create(FIELDS, slots=slots, **options)


def together(*calls: Callable[[], None]) -> None:
    """Run calls in threads of their own; their first error."""
    errors: list[BaseException] = []

    def run(call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


@pytest.mark.parametrize(("slots", "ends"), [(1, 1), (2, 2), (3, 3)])
def test_names_for_arrays_never_block_a_queue(slots: int, ends: int) -> None:
    """`obs, reward = segment["obs"], segment["reward"]` in a loop; as many producers and consumers as slots."""
    queue, rounds = make(slots), 20
    gate = threading.Barrier(ends)
    seen: list[float] = []

    def produce(worker: int) -> None:
        with queue.producer(worker=worker) as producer:
            for number in range(rounds):
                with producer.acquire(timeout=LIMIT) as segment:  # type: ignore[union-attr]
                    obs, reward = segment["obs"], segment["reward"]
                    obs[:] = worker * rounds + number
                    reward[()] = worker * rounds + number
                    if number == 0:
                        gate.wait()  # every slot is taken

    def consume(worker: int) -> None:
        with queue.consumer(worker=100 + worker) as consumer:
            for _ in range(rounds):
                with consumer.pop(timeout=LIMIT) as segment:
                    obs, reward = segment["obs"], segment["reward"]
                    assert (obs == reward).all()
                    seen.append(float(reward))

    together(
        *(lambda worker=worker: produce(worker) for worker in range(1, ends + 1)),  # type: ignore[misc]
        *(lambda worker=worker: consume(worker) for worker in range(1, ends + 1)),  # type: ignore[misc]
    )
    assert sorted(seen) == list(range(rounds, rounds * (ends + 1)))
    assert queue.counters()["copied"] > 0


@pytest.mark.parametrize("when_full", ["block", "drop_new", "drop_oldest"])
def test_what_was_acquired_is_committed_whoever_keeps_its_arrays(when_full: str) -> None:
    queue = make(2, when_full=when_full)
    producer = queue.producer(worker=1)
    producer.put(obs=np.zeros(8, np.float32), reward=0.0, timeout=0)
    segment = producer.acquire(timeout=0)
    assert segment is not None
    with segment:
        view = segment["obs"]
        view[:] = 1
    assert queue.occupancy()["full"] == 2
    assert sum(value for name, value in queue.counters().items() if name.startswith("dropped")) == 0


def test_what_is_being_written_or_read_comes_before_the_end() -> None:
    queue = make(4)
    producer, first, second = queue.producer(worker=1), queue.consumer(worker=2), queue.consumer(worker=3)
    producer.put(obs=np.zeros(8, np.float32), reward=1.0, timeout=0)
    held = first.pop(timeout=0)
    late = producer.acquire(timeout=0)
    assert late is not None
    queue.finish()
    with pytest.raises(ClosedError):
        producer.acquire(timeout=0)
    with pytest.raises(WaitTimeoutError):
        second.pop(timeout=0)
    late["reward"] = 2.0
    late.commit()
    assert float(second.pop(timeout=0)["reward"]) == 2.0
    assert float(held["reward"]) == 1.0
    queue.reap(2)  # the first consumer's process died
    with second.pop(timeout=0) as segment:
        assert (float(segment["reward"]), segment.redeliveries) == (1.0, 1)
    with pytest.raises(ClosedError):
        second.pop(timeout=None)
    with pytest.raises(LeaseLostError):
        first.pop(timeout=None)


def test_the_end_comes_to_whoever_waits_for_it() -> None:
    queue = make(2)
    producer, consumer = queue.producer(worker=1), queue.consumer(worker=2)
    late = producer.acquire(timeout=0)
    assert late is not None
    queue.finish()

    def wait() -> None:
        with pytest.raises(ClosedError):
            consumer.pop(timeout=LIMIT)

    together(wait, late.abort)
    assert queue.counters()["missed_wakeups"] == 0


def test_one_worker_id_in_two_ends_is_refused() -> None:
    queue = make(2)
    producer = queue.producer(worker=5)
    with pytest.raises(TransportError, match=r"producer of worker id 5 .*owned by worker 5"):
        queue.producer(worker=5)
    queue.consumer(worker=5).close()  # in the same process it is no harm
    # The other kind of end in another process is: reaping one takes the slots of both.
    code = (
        "import sys; from rlz.transport import TrajectoryQueue; from rlz.errors import TransportError\n"
        f"queue = TrajectoryQueue.attach({queue.fd})\n"
        "try: queue.consumer(worker=5)\nexcept TransportError as error: print(error)"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], pass_fds=[queue.fd], capture_output=True, text=True, check=True
    )
    assert "the producer of worker id 5" in found.stdout
    held = producer.acquire(timeout=0)
    assert held is not None
    queue.reap(5)
    successor = queue.producer(worker=5)
    mine = successor.acquire(timeout=0)
    assert mine is not None
    with pytest.raises(LeaseLostError):
        held.commit()
    with pytest.raises(LeaseLostError):
        producer.acquire(timeout=0)
    assert mine.commit() >= 1


def test_a_batch_that_a_signal_ends_loses_nothing() -> None:
    queue = make(8)
    producer, consumer = queue.producer(worker=1), queue.consumer(worker=2)
    zeros = np.zeros(8, np.float32)
    for number in (1.0, 2.0, 3.0):
        producer.put(obs=zeros, reward=number, note=int(number), timeout=0)

    class Stop(Exception):
        pass

    def stop(*_: object) -> None:
        raise Stop

    into, notes = {"reward": np.zeros(8, np.float32)}, np.zeros(8, np.uint64)
    before = signal.signal(signal.SIGALRM, stop)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(Stop):
            consumer.pop_batch(into, timeout=LIMIT, notes=notes)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert queue.occupancy()["free"] == 8, "no slot is held while nobody waits"
    producer.put(obs=zeros, reward=4.0, note=4, timeout=0)
    with consumer.pop(timeout=0) as segment:
        assert (float(segment["reward"]), segment.note, segment.ticket) == (1.0, 1, 1)
        assert (segment["obs"] == 0).all()
    assert consumer.pop_batch(into, timeout=0, notes=notes) == 3
    assert (into["reward"][:3].tolist(), notes[:3].tolist()) == ([2, 3, 4], [2, 3, 4])


def readable(consumer: QueueConsumer, timeout: float) -> bool:
    return select.select([consumer], [], [], timeout)[0] == [consumer]


def test_a_descriptor_to_wait_on() -> None:
    queue = make(2)
    producer, consumer = queue.producer(worker=1), queue.consumer(worker=2)
    assert consumer.fileno() == consumer.fileno()
    assert not readable(consumer, 0.05)
    for number in range(50):
        put = threading.Thread(target=producer.put, kwargs={"obs": np.zeros(8, np.float32), "reward": float(number)})
        put.start()
        assert readable(consumer, LIMIT)
        put.join()
        assert float(consumer.pop(timeout=0)["reward"]) == number
        with pytest.raises(WaitTimeoutError):  # and now it knows
            consumer.pop(timeout=0)
        assert not readable(consumer, 0)
    queue.finish()
    assert readable(consumer, LIMIT)
    with pytest.raises(ClosedError):
        consumer.pop(timeout=0)
    consumer.close()
    with pytest.raises(ClosedError):
        consumer.fileno()
    queue.consumer(worker=2).close()  # its seat is free at once
    assert queue.counters()["missed_wakeups"] == 0


def test_a_descriptor_in_an_event_loop() -> None:
    import asyncio

    queue = make(2)
    consumer = queue.consumer(worker=2)

    async def take(count: int) -> list[float]:
        found: list[float] = []
        done = asyncio.Event()

        def pop() -> None:
            try:
                with consumer.pop(timeout=0) as segment:
                    found.append(float(segment["reward"]))
            except WaitTimeoutError:
                return
            if len(found) == count:
                done.set()

        asyncio.get_running_loop().add_reader(consumer, pop)
        await asyncio.wait_for(done.wait(), LIMIT)
        asyncio.get_running_loop().remove_reader(consumer)
        return found

    def produce() -> None:
        with queue.producer(worker=1) as producer:
            for number in range(30):
                producer.put(obs=np.zeros(8, np.float32), reward=float(number))

    thread = threading.Thread(target=produce)
    thread.start()
    assert asyncio.run(take(30)) == list(range(30))
    thread.join()
    consumer.close()
