"""Which device a learner with `--device auto` runs on: the faster one. Without a card nothing is measured.

Not run on a GPU yet.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from rlz.algorithms.base import Algorithm, Batch
from rlz.learning.executors import EagerExecutor
from rlz.learning.graphs import WARM_UP, cuda_graph
from rlz.system.cores import cores

MEASURE_S = 0.5
"""Time for the updates of one device."""


def fastest_device(
    algorithm: Algorithm[Any], batch: Batch, *, graphs: bool, log: Callable[[str], None], card: str = "cuda:0"
) -> torch.device:
    """CPU or card, whichever makes an update of this size sooner; one line says what was measured.

    Parameters
    ----------
    batch : on the CPU; its size counts, not its numbers.
    graphs : updates on the card will be CUDA graphs.
    """
    cpu, cuda = torch.device("cpu"), torch.device(card)
    times = {device: seconds_per_update(algorithm, batch, device, graphs=graphs) for device in (cpu, cuda)}
    fastest = min(times, key=times.__getitem__)
    measured = ", ".join(f"{device}: {1 / seconds:.0f}" for device, seconds in times.items())
    log(f"--device auto: {fastest} (updates/s before compilation, {measured})")
    return fastest


def seconds_per_update(algorithm: Algorithm[Any], batch: Batch, device: torch.device, *, graphs: bool) -> float:
    """Time of one update: on the CPU eager with all cores, on a card as a graph where it may be one."""
    initial = algorithm.init(torch.Generator().manual_seed(0))
    state = type(initial)(*(tensor.to(device) for tensor in initial))
    rows = Batch(*(None if tensor is None else tensor.to(device) for tensor in batch))  # type: ignore[arg-type]
    noise = torch.zeros(algorithm.noise_shape(len(batch.obs)), device=device)
    failed = torch.zeros((), dtype=torch.int64, device=device)
    rate = torch.full((), 1e-4, dtype=torch.float64, device=device)
    executor = EagerExecutor(algorithm)

    def work() -> None:
        for kind in algorithm.cycle:
            executor(state, failed, rows, noise, rate, kind)

    threads = torch.get_num_threads()
    torch.set_num_threads(cores())
    try:
        for _ in range(WARM_UP):
            work()
        run: Callable[[], object] = work
        if device.type == "cuda" and graphs:
            try:
                run = cuda_graph(work, torch.Generator(device))
            except RuntimeError:
                run = work  # the engine will say why there are no graphs
        done, begin = 0, time.perf_counter()
        while time.perf_counter() - begin < MEASURE_S:
            run()
            int(failed)  # waits for the device
            done += len(algorithm.cycle)
        return (time.perf_counter() - begin) / done
    finally:
        torch.set_num_threads(threads)
