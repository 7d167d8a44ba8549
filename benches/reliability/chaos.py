"""Random kills of any process of a run, at any time: nothing may hang, nothing may be left, checkpoints must load.

    python benches/reliability/chaos.py --kills 200
    python benches/reliability/chaos.py --kills 20 --fake        # a learner without torch: starts faster

Short runs of SAC on Pendulum-v1 follow each other. In each one to three processes (controller, learner, evaluator,
samplers, whatever they started) are killed at random times, in some runs from the first moment on, in most of them from
the start of the workers on. Then: the run ends within its
deadline; every process is gone within two seconds; /dev/shm is as before; unless the controller itself was killed, no
unfinished file and no socket is left; the newest checkpoint loads, its rows are whole; some runs are resumed from it
and must complete with exact counts.
"""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import rows
from job import Job, fresh, generator, kill, left_since, shared_files, spread, wait_for, write_result

from rlz.records.checkpoint import newest_checkpoint, step_folders

DEADLINE_S = 90.0
"""For a run to end after its last kill."""
CONTROLLER_SHARE = 0.15
RATIO = 0.1
LEARNING_STARTS = 100


@dataclass(frozen=True)
class Chaos:
    """Settings of a series of runs.

    Attributes
    ----------
    life_s : kills fall into this time, uniformly.
    early : share of runs in which that time begins with the controller's first instruction, not with the workers.
    total : env steps of a run.
    resume_every : one of so many runs that have a checkpoint is resumed.
    """

    kills: int
    life_s: float = 10.0
    total: int = 16_000
    samplers: int = 2
    resume_every: int = 3
    early: float = 0.2
    seed: int = 0
    fake: bool = False

    def options(self) -> dict[str, Any]:
        values: dict[str, Any] = {
            "env": "Pendulum-v1",
            "samplers": self.samplers,
            "total_timesteps": self.total,
            "buffer_size": 4 * self.total,
            "learning_starts": LEARNING_STARTS,
            "replay_ratio": RATIO,
            "hidden": [16] if self.fake else 16,
            "batch_size": 32,
            "eval_every": 1000,
            "eval_episodes": 3,
            "checkpoint_every": 0.3,
            "log_every": 0.5,
        }
        return values | ({} if self.fake else {"compile": False})


@dataclass
class Tally:
    """What has been seen so far."""

    runs: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    statuses: Counter[str] = field(default_factory=Counter)
    checkpoints_loaded: int = 0
    without_checkpoint: int = 0
    resumed: int = 0
    rows_checked: int = 0
    controller_death_to_last_process_s: list[float] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        values = dict(vars(self))
        values["kills"] = dict(self.kills)
        values["statuses"] = dict(self.statuses)
        values["controller_death_to_last_process_s"] = spread(self.controller_death_to_last_process_s)
        return values


def chaos(settings: Chaos, folder: Path, *, until: float | None = None) -> dict[str, Any]:
    """Make runs until so many kills have been made (or until that `time.monotonic()`); AssertionError at a fault."""
    rng = random.Random(settings.seed)
    shm = shared_files()
    tally = Tally()
    while tally.kills.total() < settings.kills and (until is None or time.monotonic() < until):
        job = Job(fresh(folder), settings.options(), fake=settings.fake)
        try:
            _one(settings, job, rng, tally)
            tally.runs += 1
            if _load(job, tally) and tally.checkpoints_loaded % settings.resume_every == 0:
                _resume(settings, folder, tally)
            assert not left_since(shm), left_since(shm)
        except AssertionError as error:
            kept = Path(tempfile.mkdtemp(prefix="rlz-chaos-fault-")) / "run"
            shutil.copytree(job.run_dir, kept, symlinks=True, ignore=shutil.ignore_patterns(".live.sock"))
            raise AssertionError(f"run {tally.runs} (seed {settings.seed}), kept in {kept}: {error}") from error
        finally:
            job.close()
    return tally.to_json()


def _one(settings: Chaos, job: Job, rng: random.Random, tally: Tally) -> None:
    if rng.random() >= settings.early:
        wait_for(lambda: len(job.workers()["sampler"]) == settings.samplers or job.process.poll() is not None, 60.0)
    began = time.monotonic()
    controller_died = False
    for moment in sorted(rng.uniform(0.0, settings.life_s) for _ in range(rng.randint(1, 3))):
        while job.process.poll() is None and time.monotonic() - began < moment:
            job.workers()
            time.sleep(min(0.02, max(0.0, moment - (time.monotonic() - began))))
        victim = _victim(job, rng)
        if victim is None:
            break
        role, process = victim
        job.workers()
        if not kill(process):
            continue
        tally.kills[role] += 1
        if role == "controller":
            controller_died = True
            died = time.monotonic()
            job.process.wait(10)
            left = job.left(within=2.0)
            tally.controller_death_to_last_process_s.append(time.monotonic() - died)
            assert not left, f"left 2 s after the death of the controller: {left}"
            break
    status = job.wait(DEADLINE_S)
    left = job.left()
    assert not left, left
    tally.statuses["controller killed" if controller_died else str(status)] += 1
    if not controller_died:
        assert status in (0, 1), f"exit status {status}\n{job.text()}"
        if job.run_dir.exists():
            assert not list(job.run_dir.rglob(".tmp-*")), "unfinished files are left"
            assert not (job.run_dir / ".live.sock").exists(), "the socket is left"
        assert "Traceback" not in job.text(), job.text()
        if status == 0:
            _exact(job, settings.total)


def _victim(job: Job, rng: random.Random) -> tuple[str, Any] | None:
    """Any living process; the role first, so that samplers do not take all kills."""
    if job.process.poll() is not None:
        return None
    found = {role: processes for role, processes in job.workers().items() if processes}
    if not found or rng.random() < CONTROLLER_SHARE:
        return "controller", job.controller
    role = rng.choice(sorted(found))
    return role, rng.choice(found[role])


def _exact(job: Job, total: int) -> None:
    summary = job.summary()
    assert (summary["status"], summary["env_steps"]) == ("completed", total), summary
    due = round(RATIO * 10) * (total - LEARNING_STARTS) // 10
    assert summary["updates"] == due, (summary["updates"], due)
    assert summary["rows_lost"] == 0, summary


def _load(job: Job, tally: Tally) -> bool:
    """The newest checkpoint must load; False when the run, killed early, has none."""
    if not step_folders(job.run_dir / "checkpoints"):
        tally.without_checkpoint += 1
        return False
    newest_checkpoint(job.run_dir)
    checked = rows.check(job.run_dir)
    assert checked["torn"] == 0, checked
    # A cut may fall between row and step of each lane, and so may each kill.
    assert checked["rows_beyond_steps"] >= 0, checked
    tally.rows_checked += checked["rows"]
    tally.checkpoints_loaded += 1
    return True


def _resume(settings: Chaos, folder: Path, tally: Tally) -> None:
    """Go on with the run, and complete it."""
    total = 2 * settings.total
    resumed = Job(folder, {"total_timesteps": total}, fake=settings.fake, resume=True)
    try:
        assert resumed.wait(4 * DEADLINE_S) == 0, resumed.text()
        assert not resumed.left()
        summary = resumed.summary()
        assert (summary["status"], summary["env_steps"]) == ("completed", total), summary
        due = round(RATIO * 10) * (total - LEARNING_STARTS) // 10
        assert summary["updates"] == due, (summary["updates"], due)
    finally:
        resumed.close()
    tally.resumed += 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--life", type=float, default=10.0, help="kills fall into this many seconds after the start")
    parser.add_argument("--total", type=int, default=16_000)
    parser.add_argument("--resume-every", type=int, default=3)
    parser.add_argument("--fake", action="store_true", help="a learner without torch")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--output")
    given = parser.parse_args()
    _, seed = generator(given.seed)
    print(f"seed {seed}")
    settings = Chaos(given.kills, given.life, given.total, resume_every=given.resume_every, seed=seed, fake=given.fake)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="rlz-chaos-") as folder:
        result = chaos(settings, Path(folder) / "chaos")
    name = "reliability_chaos_fake" if given.fake else "reliability_chaos"
    write_result(name, vars(settings), result | {"took_s": round(time.monotonic() - began, 1)}, given.output)


if __name__ == "__main__":
    main()
