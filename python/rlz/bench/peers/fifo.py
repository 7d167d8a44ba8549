# faster-fifo is not installed where rlz is checked.
# mypy: ignore-errors
"""Measures faster-fifo between processes, in its own environment; knows nothing of rlz.

    python fifo.py '{"form": "dict", "seconds": 1.0, "layouts": {"19kB": [["obs", "f32", [65, 64]], ...]}, ...}'

Prints one JSON object as its last line. Forms: "dict" (arrays, pickled) and "raw bytes" (copied as they are).
"""

import importlib.metadata
import json
import multiprocessing
import statistics
import struct
import sys
import time
from queue import Empty

import numpy as np
from faster_fifo import Queue

SLOTS = 16
WARM_UP = 50
PAUSE_S = 1e-3
PATIENCE_S = 3600
KINDS = {"f32": np.float32, "u8": np.uint8, "i32": np.int32}
NOTE = struct.Struct("<q")


def same(value):
    """No conversion."""
    return value


def make_queue(form, nbytes):
    """Make a queue with room for as many messages as the others have slots, and at least the library's own default."""
    size = max(1_000_000, SLOTS * (nbytes + 1000))
    return Queue(max_size_bytes=size, dumps=same, loads=bytes) if form == "raw bytes" else Queue(max_size_bytes=size)


def produce(queue, form, layout, pause):
    """Put messages, each with the time of its put, until this process is killed."""
    content = {name: np.ones(shape, KINDS[dtype]) for name, dtype, shape in layout}
    raw = bytes(NOTE.size + sum(value.nbytes for value in content.values()))
    while True:
        if form == "dict":
            queue.put((time.monotonic_ns(), content), timeout=PATIENCE_S)
        elif pause:
            queue.put(NOTE.pack(time.monotonic_ns()) + raw[NOTE.size :], timeout=PATIENCE_S)
        else:  # only the rate counts: no copy to put the time in
            queue.put(raw, timeout=PATIENCE_S)
        if pause:
            time.sleep(pause)


def getter(queue, form, block):
    """Take a message and give the time of its put."""
    if form == "dict":
        return lambda: queue.get(block=block, timeout=PATIENCE_S)[0]
    return lambda: NOTE.unpack_from(queue.get(block=block, timeout=PATIENCE_S))[0]


def spinning(get):
    """Poll until there is a message."""

    def spin():
        while True:
            try:
                return get()
            except Empty:
                pass

    return spin


def throughput(get, seconds):
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


def latency(get, seconds):
    """Median time in microseconds from a put until the message has been taken."""
    for _ in range(WARM_UP):
        get()
    found, begin = [], time.monotonic()
    while time.monotonic() - begin < seconds:
        put = get()
        found.append(time.monotonic_ns() - put)
    return statistics.median(found) / 1e3


def between_processes(job, layout, producers, pause, measure):
    """Start producers, apply `measure` to the queue, and stop them."""
    nbytes = sum(int(np.prod(shape)) * np.dtype(KINDS[dtype]).itemsize for _, dtype, shape in layout)
    queue = make_queue(job["form"], nbytes)
    arguments = (queue, job["form"], layout, pause)
    children = [multiprocessing.Process(target=produce, args=arguments, daemon=True) for _ in range(producers)]
    for child in children:
        child.start()
    try:
        return measure(queue)
    finally:
        for child in children:
            child.kill()
            child.join()


def main(job):
    """All metrics, with the versions of the packages."""
    layouts, form, seconds, size = job["layouts"], job["form"], job["seconds"], job["latency_size"]
    metrics = {}
    for name, producers in [*((name, 1) for name in layouts), (size, 2)]:
        metric = f"messages_{name}" + ("_2_to_1" if producers == 2 else "")
        metrics[metric] = between_processes(
            job, layouts[name], producers, 0.0, lambda queue: throughput(getter(queue, form, True), seconds)
        )
    metrics["latency_sleep_us"] = between_processes(
        job, layouts[size], 1, PAUSE_S, lambda queue: latency(getter(queue, form, True), seconds)
    )
    metrics["latency_spin_us"] = between_processes(
        job, layouts[size], 1, PAUSE_S, lambda queue: latency(spinning(getter(queue, form, False)), seconds)
    )
    versions = {package: importlib.metadata.version(package) for package in job["recorded"]}
    print(json.dumps({"metrics": metrics, "versions": versions}), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
