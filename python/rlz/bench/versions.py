"""Measures how long a publication of parameters takes to reach private copies in two reading processes.

Contenders: rlz's parameter store; an array in shared memory behind a lock, which readers poll; a queue for each reader.
"""

import json
import multiprocessing
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

SIZES = {"300kB": 300_000, "5MB": 5_000_000}
READERS = 2
LEAST = 20
"""Publications at least, however short the measurement."""
POLL_S = 50e-6
"""Between two looks of a polling reader."""

Parameters = NDArray[np.uint8]
Read = Callable[[], int]
"""Waits for a new publication, copies it, and gives the time of its beginning (monotonic, ns); 0 ends the reader."""
Publish = Callable[[Parameters, int], object]


def read_all(read: Read) -> list[int]:
    """Nanoseconds that each publication took to arrive."""
    found = []
    while begun := read():
        found.append(time.monotonic_ns() - begun)
    return found


@contextmanager
def rlz(nbytes: int) -> Iterator[tuple[Publish, Callable[[], list[list[int]]]]]:
    """`ParameterStore`. Gives a publish, and what collects the readers' times after the last publication."""
    from rlz._native import ParameterStore

    store = ParameterStore.create([("parameters", "f32", (nbytes // 4,))], leases=READERS, run_id=1)
    publisher = store.publisher(worker=1)
    fds = [store.control_fd, store.readonly_payload_fd]
    with ExitStack() as stack:
        children = []
        for number in range(READERS):
            job = {"reader": {"fds": fds, "nbytes": nbytes, "worker": 2 + number}}
            command = [sys.executable, "-m", "rlz.bench.versions", json.dumps(job)]
            child = subprocess.Popen(command, pass_fds=fds, stdout=subprocess.PIPE, text=True)
            stack.enter_context(child)
            stack.callback(child.kill)
            children.append(child)
        for child in children:
            assert child.stdout is not None
            child.stdout.readline()  # it is there
        yield (
            lambda parameters, begun: publisher.publish(parameters, env_steps=begun, updates=0),
            lambda: [json.loads(child.communicate()[0]) for child in children],
        )


def _rlz_reader(fds: list[int], nbytes: int, worker: int) -> None:
    from rlz._native import ParameterStore

    subscriber = ParameterStore.attach(*fds).subscriber(worker=worker)
    into, version = np.zeros(nbytes, np.uint8), 0
    print("ready", flush=True)

    def read() -> int:
        nonlocal version
        subscriber.wait_newer(version, timeout=None)
        version, begun, _ = subscriber.read(into)
        return begun

    print(json.dumps(read_all(read)), flush=True)


@contextmanager
def shared_array(nbytes: int) -> Iterator[tuple[Publish, Callable[[], list[list[int]]]]]:
    """An array in shared memory and a lock. As `rlz`."""
    context = multiprocessing.get_context("spawn")
    shared, begun_at = context.RawArray("B", nbytes), context.RawValue("q", -1)
    lock, ready, results = context.Lock(), context.Queue(), context.Queue()
    arguments = (shared, lock, begun_at, ready, results)
    target = np.frombuffer(shared, np.uint8)

    def publish(parameters: Parameters, begun: int) -> None:
        with lock:
            target[:] = parameters
            begun_at.value = begun

    with _started([context.Process(target=_array_reader, args=arguments, daemon=True) for _ in range(READERS)], ready):
        yield publish, lambda: [results.get() for _ in range(READERS)]


@contextmanager
def _started(readers: Sequence[Any], ready: Any) -> Iterator[None]:
    """Start processes and wait until each has said so; kill them at the end."""
    try:
        for reader in readers:
            reader.start()
        for _ in readers:
            ready.get()
        yield
    finally:
        for reader in readers:
            reader.kill()
            reader.join()


def _array_reader(shared: Any, lock: Any, begun_at: Any, ready: Any, results: Any) -> None:
    source, seen = np.frombuffer(shared, np.uint8), -1
    into = np.zeros_like(source)
    ready.put(None)

    def read() -> int:
        nonlocal seen
        while True:
            with lock:
                if begun_at.value != seen:
                    seen = int(begun_at.value)
                    into[:] = source
                    return seen
            time.sleep(POLL_S)

    results.put(read_all(read))


@contextmanager
def queues(nbytes: int) -> Iterator[tuple[Publish, Callable[[], list[list[int]]]]]:
    """A `multiprocessing.Queue` for each reader. As `rlz`."""
    context = multiprocessing.get_context("spawn")
    ready, results = context.Queue(), context.Queue()
    channels = [context.Queue() for _ in range(READERS)]
    readers = [
        context.Process(target=_queue_reader, args=(channel, ready, results), daemon=True) for channel in channels
    ]

    def publish(parameters: Parameters, begun: int) -> None:
        for channel in channels:
            channel.put((begun, parameters))

    with _started(readers, ready):
        yield publish, lambda: [results.get() for _ in readers]


def _queue_reader(channel: Any, ready: Any, results: Any) -> None:
    ready.put(None)
    results.put(read_all(lambda: channel.get()[0]))


CONTENDERS = {"rlz": rlz, "lock and shared array": shared_array, "mp.Queue": queues}


def measure(contender: str, seconds: float) -> dict[str, float]:
    """Median time from publication to private copy in microseconds, for each size."""
    metrics = {}
    for size, nbytes in SIZES.items():
        parameters = np.ones(nbytes // 4, np.float32).view(np.uint8)
        pause = 2e-3 if nbytes < 1_000_000 else 2e-2
        with CONTENDERS[contender](nbytes) as (publish, collect):
            for _ in range(max(LEAST, int(seconds / pause))):
                publish(parameters, time.monotonic_ns())
                time.sleep(pause)
            publish(parameters, 0)
            times = [one for reader in collect() for one in reader]
        metrics[f"parameters_{size}_us"] = statistics.median(times) / 1e3
    return metrics


if __name__ == "__main__":
    job = json.loads(sys.argv[1])
    if "reader" in job:
        _rlz_reader(**job["reader"])
    else:
        print(json.dumps(measure(**job)))
