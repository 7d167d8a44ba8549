"""How fast memory is copied. No torch."""

import threading
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

COPY_BYTES = 1 << 27
"""Of one array that is copied to measure memory: larger than any cache of one socket."""


def memory_copies(threads: int, seconds: float) -> dict[str, Any]:
    """Bytes per second of copies, read and written (keys as `Memory`); each thread has arrays of its own."""
    size = COPY_BYTES // threads
    pairs = [(np.ones(size, np.uint8), np.ones(size, np.uint8)) for _ in range(threads)]
    return {"threads": threads, "bytes_per_s": _rate(pairs, seconds)}


def _rate(pairs: list[tuple[NDArray[np.uint8], NDArray[np.uint8]]], seconds: float) -> float:
    done = [0] * len(pairs)
    until = time.perf_counter() + seconds

    def copy(index: int) -> None:
        source, target = pairs[index]
        while True:
            np.copyto(target, source)
            done[index] += 2 * source.nbytes
            if time.perf_counter() >= until:
                return

    begin = time.perf_counter()
    threads = [threading.Thread(target=copy, args=(index,)) for index in range(len(pairs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(done) / (time.perf_counter() - begin)
