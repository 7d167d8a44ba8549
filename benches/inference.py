"""Env steps/s of samplers with inline and central inference, by groups, for cheap and slow environments and networks.

    python benches/inference.py > benches/results/inference.md          # all cases, two interleaved rounds
    python benches/inference.py --cases pendulum --rounds 1 --seconds 2
    python benches/inference.py --samplers 1 --cases pendulum ant wide

Two samplers with six environments each, or one with twelve, step as fast as they can, in processes of their own beside
the inference server where there is one; no learner takes a core, the parameters are random ones. On two cores the
server shares them with two samplers, and has one of its own beside one.
"""

from __future__ import annotations

import argparse
import contextlib
import platform
import sys
import tempfile
import time
from collections import defaultdict
from datetime import date
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import gymnasium as gym

from rlz import envs
from rlz.bench.sampling import publish_random_actor
from rlz.config import run_config
from rlz.system.detect import detect
from rlz.transport.stats import Stat
from rlz.transport.streams import FIRST_WORKER_ID, Origin
from rlz.workers.job import Job
from rlz.workers.process import WorkerProcess, single_threaded, wait_until_dead

ENVS = 12
HERE = Path(__file__)


class Slow(gym.Wrapper):
    """Sleeps in each step, as an environment that talks to a robot or a server; `only`: in this instance alone."""

    def __init__(self, env: gym.Env, seconds: float, index: int, only: int = -1) -> None:
        super().__init__(env)
        self._seconds = seconds if only in (-1, index) else 0.0

    def step(self, action: Any) -> Any:
        time.sleep(self._seconds)
        return super().step(action)


def wide(inputs: int, outputs: int) -> Any:
    """A network that takes its time: three layers of 1024 in torch."""
    from torch import nn

    sizes = [inputs, 1024, 1024, 1024]
    layers = [part for a, b in pairwise(sizes) for part in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], outputs))


SLOW = "inference:Slow,seconds=0.005,index={index}"
RUST, TORCH = {"hidden": (256, 256)}, {"network": f"{HERE.resolve()}:wide"}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "pendulum": ("Pendulum-v1, 2x256 in Rust", {"env": "Pendulum-v1", **RUST}),
    "ant": ("Ant-v4, 2x256 in Rust", {"env": "Ant-v4", **RUST}),
    "slow": ("Pendulum-v1 with 5 ms of sleep, 2x256 in Rust", {"env": "Pendulum-v1", "wrapper": (SLOW,), **RUST}),
    "one": (
        "Pendulum-v1, 5 ms of sleep in one of twelve, 2x256 in Rust",
        {"env": "Pendulum-v1", "wrapper": (f"{SLOW},only=0",), **RUST},
    ),
    "wide": ("Pendulum-v1, 3x1024 in torch", {"env": "Pendulum-v1", **TORCH}),
    "wide-slow": (
        "Pendulum-v1 with 5 ms of sleep, 3x1024 in torch",
        {"env": "Pendulum-v1", "wrapper": (SLOW,), **TORCH},
    ),
}
PLACES = [("inline", 1), ("central", 1), ("central", 2), ("central", 3)]


def measure(
    options: dict[str, Any], inference: str, groups: int, seconds: float, samplers: int
) -> tuple[float, float, list[float]]:
    """Env steps/s, mean rows of a batch of the server (NaN without one), and env steps/s of each sampler."""
    config = run_config(
        **options,
        **{"samplers": samplers, "num_envs": ENVS, "inference": inference, "env_groups": groups},
        **{"learning_starts": 0, "replay_ratio": "free", "total_timesteps": 10**9, "buffer_size": 100_000},
        **{"eval_every": 0, "device": "cpu"},
    )
    job = Job.of(config, envs.inspect_env(config))
    streams = job.streams(Origin(run_id=1))
    publish_random_actor(streams, seed=1)
    processes = []
    with tempfile.TemporaryDirectory() as folder, contextlib.closing(streams):
        try:
            for place in job.places:
                if not place.node.torch:
                    worker = FIRST_WORKER_ID + place.slot
                    spec = job.spec(place, worker_id=worker, run_dir=folder, fds=streams.fds(place.node))
                    processes.append(WorkerProcess(place, spec, Path(folder) / place.name, single_threaded()))
            slots = [process.place.slot for process in processes]
            deadline = time.monotonic() + 60
            while not all(streams.stats.read()[slot][Stat.READY_S] > 0 for slot in slots):
                time.sleep(0.05)
                if time.monotonic() > deadline:
                    words = {
                        place.name: place.read_text()[-500:] for place in Path(folder).iterdir() if place.is_file()
                    }
                    raise RuntimeError(f"{options} {inference} {groups}: they do not start: {words}")
            time.sleep(0.5)
            begin, before = time.monotonic(), streams.stats.read()
            time.sleep(seconds)
            grown, took = streams.stats.read() - before, time.monotonic() - begin
        finally:
            streams.limiter.stop()
            wait_until_dead(processes, timeout=2.0)
            for process in processes:
                process.kill()
                process.reap()
    rates = [grown[one.place.slot][Stat.ENV_STEPS] / took for one in processes if one.place.role == "sampler"]
    server = [grown[one.place.slot] for one in processes if one.place.role == "inference"]
    batch = server[0][Stat.ROWS_WRITTEN] / max(server[0][Stat.BATCHES], 1.0) if server else float("nan")
    return sum(rates), batch, rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--samplers", type=int, default=2)
    options = parser.parse_args()
    sys.path.insert(0, str(HERE.parent))  # workers find `Slow` there
    found: dict[tuple[str, str, int], list[tuple[float, float, list[float]]]] = defaultdict(list)
    for _ in range(options.rounds):
        for case in options.cases:
            for inference, groups in PLACES:
                one = measure(CASES[case][1], inference, groups, options.seconds, options.samplers)
                found[case, inference, groups].append(one)
    machine = detect()
    print(f"{date.today()}, {machine.cpu}, {platform.python_version()}, `{' '.join(sys.argv)}`\n")
    columns = [f"{inference}, {groups} group{'s' * (groups > 1)}" for inference, groups in PLACES]
    print(f"| env steps/s (rows of a batch) | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}")
    for case in options.cases:
        cells = []
        for place in PLACES:
            rounds = found[case, *place]
            rate, batch = median(one[0] for one in rounds), median(one[1] for one in rounds)
            each = " + ".join(f"{median(part):,.0f}" for part in zip(*(one[2] for one in rounds), strict=True))
            cells.append(f"{rate:,.0f}" + (f" ({batch:.1f})" if batch == batch else "") + f"; {each}" * (case == "one"))
        print(f"| {CASES[case][0]} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
