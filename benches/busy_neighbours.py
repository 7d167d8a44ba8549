"""What busy processes cost a whole run: updates/s of `rlz train sac` beside them, against its fair share of the cores.

    python benches/busy_neighbours.py                       # Ant-v4, 0 to 2 busy loops, three interleaved rounds
    python benches/busy_neighbours.py --env Pendulum-v1 --loops 0 1 2 4 --rounds 5

A fair share is that of one more process among equals: `loops` busy ones and the run share the cores, so the run has
min(1, cores / (loops + 1)) of one core. What one core gives is measured in the same rounds: the whole run, samplers and
controller included, kept on one core that nobody else uses.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import median

from rlz.bench.train import TrainSettings, measure_rlz


@contextmanager
def neighbours(loops: int) -> Iterator[None]:
    """Busy loops in processes of their own."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(loops)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


@contextmanager
def on_cores(cores: Sequence[int]) -> Iterator[None]:
    """Child processes of this block may use these cores alone."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="Ant-v4")
    parser.add_argument("--loops", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    settings = TrainSettings(env=options.env, seconds=options.seconds)
    alone: list[float] = []
    beside: dict[int, list[float]] = {loops: [] for loops in options.loops}
    threads: dict[int, set[object]] = {loops: set() for loops in options.loops}
    for _ in range(options.rounds):
        with on_cores(cores[:1]):
            alone.append(measure_rlz(settings).metrics["rlz"]["updates_per_s"])
        for loops in options.loops:
            with neighbours(loops):
                outcome = measure_rlz(settings)
            beside[loops].append(outcome.metrics["rlz"]["updates_per_s"])
            threads[loops].add(outcome.facts["rlz learner threads"])
    print(f"{options.env}, {len(cores)} cores; updates/s: median (all rounds)")
    print(f"one core, nobody else: {median(alone):.1f} ({' '.join(f'{value:.0f}' for value in alone)})")
    for loops, rates in beside.items():
        share = min(1.0, len(cores) / (loops + 1))
        shares = [rate / one / share for rate, one in zip(rates, alone, strict=True)]
        print(
            f"{loops} busy loops: {median(rates):.1f} ({' '.join(f'{value:.0f}' for value in rates)}), "
            f"{median(shares):.2f} of its fair share ({min(shares):.2f} to {max(shares):.2f}), "
            f"learner threads at the end of the window: {', '.join(sorted(map(str, threads[loops])))}",
            flush=True,
        )


if __name__ == "__main__":
    main()
