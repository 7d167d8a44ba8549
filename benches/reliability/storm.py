"""SIGKILL of a random sampler (or of the evaluator) again and again while SAC trains on Pendulum-v1.

    python benches/reliability/storm.py --role sampler --seconds 60 --every 2
    python benches/reliability/storm.py --role evaluator --seconds 60 --every 2

The run must complete with exactly the env steps and updates it was asked for, every saved row must be one step of the
pendulum, and every kill must be counted as a restart. Between two kills of one worker it makes enough progress (1,000
env steps, one episode) for the supervision not to give the run up.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import rows
from job import Job, fresh, generator, kill, left_since, shared_files, spread, stat, wait_for, write_result

from rlz.errors import RlzError
from rlz.loaded_policy import load
from rlz.runtime.live import Live
from rlz.tracking import WorkerInfo
from rlz.transport.stats import Stat

ENOUGH = {"sampler": 1000, "evaluator": 1}
"""Progress between two deaths of a worker, as the controller asks for it: env steps, episodes."""


@dataclass(frozen=True)
class Storm:
    """Settings of a storm."""

    role: str
    seconds: float
    every: float
    samplers: int = 2
    replay_ratio: float = 0.1
    seed: int = 0
    fake: bool = False
    total: int = 0

    def options(self, total: int) -> dict[str, Any]:
        evaluator = self.role == "evaluator"
        values: dict[str, Any] = {
            "env": "Pendulum-v1",
            "samplers": 1 if evaluator else self.samplers,
            "total_timesteps": total,
            "buffer_size": 2 * total,  # nothing is overwritten: every row can be checked
            "learning_starts": 500,
            "replay_ratio": self.replay_ratio,
            "hidden": [16] if self.fake else 16,
            "batch_size": 32,
            "eval_every": 500 if evaluator else 5000,
            "eval_episodes": 3,
            "checkpoint_every": 5.0,
            "log_every": 1.0,
        }
        return values | ({} if self.fake else {"compile": False})


def storm(settings: Storm, folder: Path) -> dict[str, Any]:
    """Run one storm; raises AssertionError when anything is not as it must be."""
    rng = random.Random(settings.seed)
    shm = shared_files()
    total = settings.total or _pilot(settings, folder)
    job = Job(fresh(folder), settings.options(total), fake=settings.fake)
    kills: list[float] = []
    try:
        with job.live() as live:
            fds = _until_all_run(job, live)
            began = time.monotonic()
            deaths: dict[str, float] = {}
            due = began
            while job.process.poll() is None and time.monotonic() < began + settings.seconds:
                time.sleep(max(0.0, min(0.05, due - time.monotonic())))
                if time.monotonic() >= due and _strike(settings, total, job, live, deaths, rng):
                    kills.append(time.monotonic())
                    due = max(due + settings.every, time.monotonic() + 0.5 * settings.every)
            lasted = time.monotonic() - began
            fds_after = _fds(job) if job.process.poll() is None else fds
        status = job.wait(600)
        left = job.left()
        assert status == 0, f"exit status {status}\n{job.text()}"
        result = _judge(settings, job, total, len(kills))
        assert not left, left
        assert not left_since(shm), left_since(shm)
        assert not list(job.run_dir.rglob(".tmp-*")), "unfinished files are left"
        assert fds_after <= fds + 3, f"the controller had {fds} descriptors, later {fds_after}"
    finally:
        job.close()
    gaps = [b - a for a, b in pairwise(kills)]
    return {"kills": len(kills), "storm_s": round(lasted, 1), "seconds_between": spread(gaps), **result}


def _strike(settings: Storm, total: int, job: Job, live: Live, deaths: dict[str, float], rng: random.Random) -> bool:
    """Kill one worker that has made enough progress since its last death; False when there is none."""
    try:
        live.refresh()
    except (OSError, RlzError):
        return False  # it is ending
    if live.limiter.env_steps > 0.97 * total:
        return False  # a sampler that dies after the last step is not started again
    alive = [worker for worker in live.workers() if worker.role == settings.role and worker.pid]
    ready = [w for w in alive if w.name not in deaths or _progress(live, w) - deaths[w.name] >= ENOUGH[w.role]]
    if not ready:
        return False
    worker = rng.choice(ready)
    process = next((p for p in job.workers()[settings.role] if p.pid == worker.pid), None)
    if process is None or not kill(process):
        return False
    time.sleep(0.02)  # its last step has been counted now; its successor's first one takes longer than this
    live.refresh()
    deaths[worker.name] = _progress(live, worker)
    return True


def _progress(live: Live, worker: WorkerInfo) -> float:
    if worker.role == "sampler":
        steps = live.limiter.lane_steps()
        return float(sum(steps[lane] for lane in worker.lanes))
    return stat(live, worker.name, Stat.EPISODES)


def _until_all_run(job: Job, live: Live) -> int:
    """Wait until every worker works; returns the controller's descriptors then."""

    def ready() -> bool:
        live.refresh()
        board = live.stats.read()
        return all(board[w.slot][Stat.HEARTBEAT] > 0 for w in live.workers()) and live.limiter.updates > 0

    wait_for(ready, 120, job.describe)
    return _fds(job)


def _fds(job: Job) -> int:
    return int(job.controller.num_fds())


def _pilot(settings: Storm, folder: Path) -> int:
    """Env steps that the storm lasts for, from a look at the speed of an undisturbed run."""
    job = Job(fresh(folder), settings.options(10_000_000) | {"buffer_size": 200_000}, fake=settings.fake)
    try:
        with job.live() as live:
            _until_all_run(job, live)
            before, at = live.limiter.env_steps, time.monotonic()
            time.sleep(4.0)
            live.refresh()
            rate = (live.limiter.env_steps - before) / (time.monotonic() - at)
    finally:
        job.close()
    return int(1.4 * rate * settings.seconds) + 5000  # it gets faster when the others have started


def _judge(settings: Storm, job: Job, total: int, kills: int) -> dict[str, Any]:
    summary, events = job.summary(), job.events()
    assert summary["status"] == "completed", summary
    assert summary["env_steps"] == total, summary
    options = settings.options(total)
    due = int(settings.replay_ratio * 1000) * (total - options["learning_starts"]) // 1000
    assert summary["updates"] == due, (summary["updates"], due)
    assert summary["rows_lost"] == 0, summary
    noticed = events.count(" was killed by SIGKILL")
    assert noticed == kills, f"{kills} kills, {noticed} noticed\n{events}"
    assert summary["restarts"] + events.count("it is not restarted") == kills, (summary["restarts"], kills, events)
    checked = rows.check(job.run_dir)
    assert checked["torn"] == 0, checked
    assert 0 <= checked["rows_beyond_steps"] <= kills, checked
    if settings.role == "evaluator":
        assert summary["evaluations"] > 0, summary
    load(job.run_dir, checkpoint="best")
    kept = ("status", "env_steps", "updates", "restarts", "rows_lost", "evaluations", "checkpoints", "env_steps_per_s")
    return {name: summary[name] for name in kept} | {"rows": checked}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--role", choices=("sampler", "evaluator"), default="sampler")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--every", type=float, default=2.0)
    parser.add_argument("--samplers", type=int, default=2)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--output")
    given = parser.parse_args()
    _, seed = generator(given.seed)
    settings = Storm(given.role, given.seconds, given.every, given.samplers, seed=seed)
    with tempfile.TemporaryDirectory(prefix="rlz-storm-") as folder:
        result = storm(settings, Path(folder) / "storm")
    write_result(f"reliability_storm_{given.role}", vars(settings), result, given.output)


if __name__ == "__main__":
    main()
