"""Measures queues of trajectories between processes: rlz's, multiprocessing's, and bare copies in one process.

The measuring process is the consumer; producers are processes of their own. A message's note is the time of its put.
"""

import json
import multiprocessing
import queue
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from rlz._native import QueueConsumer, QueueProducer

Message = dict[str, NDArray[Any]]
Get = Callable[[], int]
"""Takes a message, copies it where that belongs to the contender, and gives its note."""

LAYOUTS: dict[str, list[tuple[str, str, tuple[int, ...]]]] = {
    # 64 steps of Ant; 43 steps of one 84 x 84 picture; 20 steps of four.
    "19kB": [
        ("obs", "f32", (65, 64)),
        ("action", "f32", (64, 8)),
        ("reward", "f32", (64,)),
        ("discount", "f32", (64,)),
    ],
    "305kB": [("obs", "u8", (43, 84, 84)), ("action", "i32", (43,)), ("reward", "f32", (43,)), ("value", "f32", (43,))],
    "565kB": [
        ("obs", "u8", (20, 4, 84, 84)),
        ("action", "i32", (20,)),
        ("reward", "f32", (20,)),
        ("value", "f32", (20,)),
    ],
}
LATENCY_SIZE = "19kB"
SLOTS = 16
WARM_UP = 50
"""Messages before a measurement."""
PAUSE_S = 1e-3
"""Between two messages, where latency is measured."""
LINE = 64
"""Bytes of a cache line."""

KINDS = {"f32": np.float32, "u8": np.uint8, "i32": np.int32}


def message(size: str) -> Message:
    """Make a message; its pages are written."""
    return {name: np.ones(shape, KINDS[dtype]) for name, dtype, shape in LAYOUTS[size]}


def throughput(get: Get, seconds: float) -> float:
    """Messages per second."""
    for _ in range(WARM_UP):
        get()
    count, begin = 0, time.perf_counter()
    while True:
        get()
        count += 1
        passed = time.perf_counter() - begin
        if passed >= seconds:
            return count / passed


def latency(get: Get, seconds: float) -> float:
    """Median time in microseconds from a message's note until it has been taken."""
    for _ in range(WARM_UP):
        get()
    found, begin = [], time.monotonic()
    while time.monotonic() - begin < seconds:
        put = get()
        found.append(time.monotonic_ns() - put)
    return statistics.median(found) / 1e3


def polling(get: Get, nothing: type[Exception]) -> Get:
    """Turn a get that raises `nothing` at once into one that spins."""

    def spin() -> int:
        while True:
            try:
                return get()
            except nothing:
                pass

    return spin


def produce(put: Callable[[Message, int], object], size: str, pause: float) -> None:
    """Put messages until this process is killed."""
    content = message(size)
    while True:
        put(content, time.monotonic_ns())
        if pause:
            time.sleep(pause)


class Rlz:
    """`TrajectoryQueue`, copied in and out."""

    in_place = False

    @contextmanager
    def consumer(
        self, size: str, producers: int, pause: float, timeout: float | None
    ) -> Iterator[tuple[Get, type[Exception]]]:
        """Start producers; a get, and what it raises when there is nothing."""
        from rlz._native import TrajectoryQueue
        from rlz.errors import WaitTimeoutError

        shared = TrajectoryQueue.create(LAYOUTS[size], slots=SLOTS, run_id=1)
        with ExitStack() as stack:
            for number in range(producers):
                job = {"fd": shared.fd, "worker": 2 + number, "size": size, "pause": pause, "in_place": self.in_place}
                command = [sys.executable, "-m", "rlz.bench.messages", json.dumps({"producer": job})]
                child = stack.enter_context(subprocess.Popen(command, pass_fds=[shared.fd]))
                stack.callback(child.kill)
            yield self.get(shared.consumer(worker=1), size, timeout), WaitTimeoutError

    def get(self, consumer: "QueueConsumer", size: str, timeout: float | None) -> Get:
        """Copy the next message into arrays of this process."""
        into = {name: value[None].copy() for name, value in message(size).items()}
        notes = np.zeros(1, np.uint64)

        def get() -> int:
            consumer.pop_batch(into, timeout=timeout, notes=notes)
            return int(notes[0])

        return get

    @staticmethod
    def put(producer: "QueueProducer") -> Callable[[Message, int], object]:
        """Copy messages in."""
        return lambda content, note: producer.put(timeout=None, note=note, **content)


class InPlace(Rlz):
    """`TrajectoryQueue`, written and read in its memory."""

    in_place = True

    def get(self, consumer: "QueueConsumer", size: str, timeout: float | None) -> Get:
        """Look at each cache line of the largest field."""
        field = max(LAYOUTS[size], key=lambda field: int(np.prod(field[2])))[0]

        def get() -> int:
            with consumer.pop(timeout=timeout) as segment:
                segment[field].reshape(-1).view(np.uint8)[::LINE].max()
                return segment.note

        return get

    @staticmethod
    def put(producer: "QueueProducer") -> Callable[[Message, int], object]:
        """Write messages into slots."""

        def put(content: Message, note: int) -> None:
            segment = producer.acquire(timeout=None)
            assert segment is not None, "the queue blocks when it is full"
            with segment:
                for name, value in content.items():
                    segment[name][...] = value
                segment.note = note

        return put


class MpQueue:
    """`multiprocessing.Queue` of dictionaries."""

    @contextmanager
    def consumer(
        self, size: str, producers: int, pause: float, timeout: float | None
    ) -> Iterator[tuple[Get, type[Exception]]]:
        """Start producers; a get, and what it raises when there is nothing."""
        context = multiprocessing.get_context("spawn")
        shared: Any = context.Queue(SLOTS)
        children = [
            context.Process(target=_mp_producer, args=(shared, size, pause), daemon=True) for _ in range(producers)
        ]
        for child in children:
            child.start()
        try:
            yield lambda: shared.get(block=timeout is None)[0], queue.Empty
        finally:
            for child in children:
                child.kill()
                child.join()


def _mp_producer(shared: Any, size: str, pause: float) -> None:
    produce(lambda content, note: shared.put((note, content)), size, pause)


def _rlz_producer(fd: int, worker: int, size: str, pause: float, in_place: bool) -> None:
    from rlz._native import TrajectoryQueue

    shared = TrajectoryQueue.attach(fd)
    produce((InPlace if in_place else Rlz).put(shared.producer(worker=worker)), size, pause)


def measure(contender: str, seconds: float) -> dict[str, float]:
    """All metrics of a contender."""
    if contender.startswith("memcpy"):
        places = 1 if contender == "memcpy: one place" else SLOTS
        return {f"messages_{size}": throughput(_memcpy(size, places), seconds) for size in LAYOUTS}
    kinds: dict[str, type[Rlz | MpQueue]] = {"rlz": Rlz, "rlz in place": InPlace, "mp.Queue": MpQueue}
    found = kinds[contender]()
    metrics = {}
    for size, producers in [*((size, 1) for size in LAYOUTS), (LATENCY_SIZE, 2)]:
        with found.consumer(size, producers, 0.0, None) as (get, _):
            metrics[f"messages_{size}" + ("_2_to_1" if producers == 2 else "")] = throughput(get, seconds)
    with found.consumer(LATENCY_SIZE, 1, PAUSE_S, None) as (get, _):
        metrics["latency_sleep_us"] = latency(get, seconds)
    with found.consumer(LATENCY_SIZE, 1, PAUSE_S, 0.0) as (get, nothing):
        metrics["latency_spin_us"] = latency(polling(get, nothing), seconds)
    return metrics


def _memcpy(size: str, places: int) -> Get:
    nbytes = sum(value.nbytes for value in message(size).values())
    source, into = np.ones(nbytes, np.uint8), np.ones((places, nbytes), np.uint8)
    count = 0

    def get() -> int:
        nonlocal count
        count += 1
        np.copyto(into[count % places], source)
        return 0

    return get


if __name__ == "__main__":
    job = json.loads(sys.argv[1])
    if "producer" in job:
        _rlz_producer(**job["producer"])
    print(json.dumps(measure(**job)))
