"""SIGKILL of samplers and inference server, at random and again and again, while APPO trains on CartPole-v1.

    python benches/reliability/rollout_storm.py --seconds 120 --every 2

Each kill falls on a worker that has made enough progress since its last one for the supervision not to give the run up.
After each the run must go on: env steps and updates are looked at. In the end it makes as many steps as before without
a kill, is stopped, and is resumed from its checkpoint to an exact number of env steps. No segment that is learned from
may be older than the run allows. Then a learner dies of a crash: the run must end at once, with its traceback.
"""

from __future__ import annotations

import argparse
import random
import signal
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from job import Job, fresh, generator, kill, left_since, shared_files, spread, wait_for, write_result

from rlz.bench.train import read_lines
from rlz.records.checkpoint import newest_checkpoint
from rlz.runtime.live import Live
from rlz.tracking import WorkerInfo
from rlz.transport.stats import Stat

ENOUGH = 1500
"""Env steps of a sampler, or answers of a server, between two deaths of it; the controller asks for 1,000."""

GOES_ON_S = 30.0
"""For new env steps and updates after a kill, on a busy machine."""

MOST_LAG = 3


@dataclass(frozen=True)
class Storm:
    """Settings of a storm."""

    seconds: float
    every: float
    inference: str = "central"
    seed: int = 0

    def options(self) -> dict[str, Any]:
        return {
            **{"env": "CartPole-v1", "samplers": 2, "num_envs": 8, "env_groups": 2, "inference": self.inference},
            **{"total_timesteps": 10**9, "n_steps": 32, "batch_size": 64, "n_epochs": 1, "compile": False},
            **{"max_policy_lag": MOST_LAG, "eval_every": 0, "checkpoint_every": 5.0, "log_every": 0.5, "threads": 1},
        }


def storm(settings: Storm, folder: Path) -> dict[str, Any]:
    """Run one storm; raises AssertionError when anything is not as it must be."""
    rng, shm = random.Random(settings.seed), shared_files()
    job = Job(fresh(folder), settings.options(), algo="appo")
    kills: Counter[str] = Counter()
    pauses: list[float] = []
    try:
        with job.live() as live:
            _goes_on(job, live, 120.0)
            began, deaths = time.monotonic(), dict[str, float]()
            while time.monotonic() < began + settings.seconds:
                time.sleep(rng.uniform(0.5, 1.5) * settings.every)
                role = _strike(job, live, deaths, rng)
                if role is not None:
                    kills[role] += 1
                    pauses.append(_goes_on(job, live, GOES_ON_S))
            for _ in range(10):
                _goes_on(job, live, GOES_ON_S)
        job.process.send_signal(signal.SIGINT)
        assert job.wait(60) == 130, job.text()
        summary = job.summary()
        assert summary["restarts"] == kills.total() == job.events().count(" was killed by SIGKILL"), (summary, kills)
        assert not job.left(), job.left()
        assert not left_since(shm), left_since(shm)
        lags = [row.get("train/policy_lag") for row in read_lines(job.run_dir / "metrics.jsonl")]
        assert all(lag is None or lag <= MOST_LAG for lag in lags), max(lag for lag in lags if lag is not None)
        resumed = _resumed(folder, newest_checkpoint(job.run_dir).env_steps)
    finally:
        job.close()
    kept = ("env_steps", "updates", "restarts", "env_steps_per_s")
    dropped = read_lines(job.run_dir / "metrics.jsonl")[-1].get("replay/segments_dropped")
    return {"kills": dict(kills), "until it went on, s": spread(pauses), "segments dropped": dropped, **resumed} | {
        name: summary[name] for name in kept
    }


def learners_death(settings: Storm, folder: Path) -> dict[str, Any]:
    """A learner that crashes ends the run with its traceback."""
    job = Job(fresh(folder), settings.options(), algo="appo")
    try:
        with job.live() as live:
            _goes_on(job, live, 120.0)
        died = time.monotonic()
        job.workers()["learner"][0].send_signal(signal.SIGABRT)
        status, text = job.wait(30), job.text()
        took = time.monotonic() - died
        assert status == 1, text
        assert "learner was killed by SIGABRT" in text, text
        assert "most recent call first" in text, text
        assert "workers/learner.py" in text, text
        assert not job.left(), job.left()
    finally:
        job.close()
    return {"learner's death to exit, s": round(took, 2)}


def _goes_on(job: Job, live: Live, within: float) -> float:
    """Wait until every environment has stepped and the learner has updated; the seconds that it took."""
    began = time.monotonic()
    live.refresh()
    steps, updates = live.limiter.lane_steps(), live.limiter.updates

    def done() -> bool:
        live.refresh()
        moved = all(now > then for now, then in zip(live.limiter.lane_steps(), steps, strict=True))
        return moved and live.limiter.updates > updates

    wait_for(done, within, job.describe)
    return time.monotonic() - began


def _strike(job: Job, live: Live, deaths: dict[str, float], rng: random.Random) -> str | None:
    """Kill a sampler or the server; its role, None where none has made enough progress."""
    live.refresh()
    alive = [worker for worker in live.workers() if worker.role in ("sampler", "inference") and worker.pid]
    ready = [one for one in alive if _progress(live, one) - deaths.get(one.name, -ENOUGH) >= ENOUGH]
    if not ready:
        return None
    worker = rng.choice(ready)
    process = next((one for one in job.workers()[worker.role] if one.pid == worker.pid), None)
    if process is None or not kill(process):
        return None
    deaths[worker.name] = _progress(live, worker)
    return worker.role


def _progress(live: Live, worker: WorkerInfo) -> float:
    if worker.role == "sampler":
        steps = live.limiter.lane_steps()
        return float(sum(steps[lane] for lane in worker.lanes))
    return float(live.stats.read()[worker.slot][Stat.ROWS_WRITTEN])


def _resumed(folder: Path, done: int) -> dict[str, Any]:
    total = done + 5000
    resumed = Job(folder, {"total_timesteps": total}, algo="appo", resume=True)
    try:
        assert resumed.wait(120) == 0, resumed.text()
        summary = resumed.summary()
        assert (summary["status"], summary["env_steps"]) == ("completed", total), summary
    finally:
        resumed.close()
    return {"resumed from": done, "completed at": total}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--every", type=float, default=2.0)
    parser.add_argument("--inference", choices=("central", "inline"), default="central")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--output")
    given = parser.parse_args()
    _, seed = generator(given.seed)
    settings = Storm(given.seconds, given.every, given.inference, seed)
    with tempfile.TemporaryDirectory(prefix="rlz-storm-") as folder:
        result = storm(settings, Path(folder) / "storm") | learners_death(settings, Path(folder) / "death")
    write_result("reliability_storm_rollouts", vars(settings), result, given.output)


if __name__ == "__main__":
    main()
