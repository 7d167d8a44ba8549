"""What busy processes cost a whole run: `rlz train sac` beside them, against its fair share and beside others.

    python benches/busy_neighbours.py                       # Ant-v4, 0 to 2 busy loops, three interleaved rounds
    python benches/busy_neighbours.py --env Pendulum-v1 --loops 0 1 2 4 --rounds 5
    python benches/busy_neighbours.py --loops 0 0.5 1 --peers sb3,sbx     # beside SAC of others and the same loops

A fair share is that of one more process among equals: `loops` busy ones and the run share the cores, so the run has
min(1, cores / (loops + 1)) of one core. What one core gives is measured in the same rounds: the whole run, samplers and
controller included, kept on one core that nobody else uses. Half a loop works for 5 ms and sleeps for 5 ms. With peers
env steps/s of each are compared with its own without a loop, and nothing is measured on one core.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import median

from rlz._native import dense_bf16
from rlz.bench.train import TrainSettings, Variant, measure_peer, measure_rlz

HALF = """
import time
while True:
    end = time.perf_counter() + 0.005
    while time.perf_counter() < end:
        pass
    time.sleep(0.005)
"""


@contextmanager
def neighbours(loops: float) -> Iterator[None]:
    """Busy loops in processes of their own."""
    programs = ["while True: pass"] * int(loops) + [HALF] * (loops % 1 > 0)
    busy = [subprocess.Popen([sys.executable, "-c", program]) for program in programs]
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


def compare(settings: TrainSettings, peers: Sequence[str], loops: Sequence[float], rounds: int) -> None:
    """Env steps/s of rlz and of others beside the same loops, interleaved; what each keeps of its own without one."""
    most = Variant(len(os.sched_getaffinity(0)), 1)  # all cores, one environment

    def measure(name: str) -> float:
        if name.startswith("rlz"):
            options = ["--precision", "bf16"] if name == "rlz bf16" else []
            return measure_rlz(settings, options).metrics["rlz"]["env_steps_per_s"]
        return float(measure_peer(name, most, settings, "train")["env_steps_per_s"])

    rates: dict[tuple[str, float], list[float]] = {}
    for _ in range(rounds):
        for count in loops:
            for name in ("rlz", *(["rlz bf16"] if dense_bf16() else []), *peers):
                with neighbours(count):
                    rates.setdefault((name, count), []).append(measure(name))
    print(f"{settings.env}, {most.threads} cores; env steps/s: median (all rounds), what is kept of it beside loops")
    for (name, count), found in sorted(rates.items()):
        kept = [rate / one for rate, one in zip(found, rates[name, min(loops)], strict=True)]
        every = " ".join(f"{value:.0f}" for value in found)
        print(f"{name}, {count:g} loops: {median(found):.1f} ({every}), {median(kept):.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="Ant-v4")
    parser.add_argument("--loops", nargs="+", type=float, default=[0.0, 1.0, 2.0])
    parser.add_argument("--peers", type=lambda text: text.split(","), default=[], help="sb3, sbx")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    settings = TrainSettings(env=options.env, seconds=options.seconds)
    if options.peers:
        compare(settings, options.peers, options.loops, options.rounds)
        return
    alone: list[float] = []
    beside: dict[float, list[float]] = {loops: [] for loops in options.loops}
    threads: dict[float, set[object]] = {loops: set() for loops in options.loops}
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
            f"{loops:g} busy loops: {median(rates):.1f} ({' '.join(f'{value:.0f}' for value in rates)}), "
            f"{median(shares):.2f} of its fair share ({min(shares):.2f} to {max(shares):.2f}), "
            f"learner threads at the end of the window: {', '.join(sorted(map(str, threads[loops])))}",
            flush=True,
        )


if __name__ == "__main__":
    main()
