"""Child process of `rlz profile`: samplers and a learner together, because they fight for cores.

Each setting is a short run of the real thing: the samplers are `rlz train`'s own processes, the learner is its own
class in this process (so torch is imported once for all settings), joined by streams as in a run, and the rates are
read off the stats board by the tracker's own reader. What is missing beside a run: controller, evaluator, checkpoints.

How long OpenMP's threads spin, and the cores that they keep to, are fixed when torch loads: settings that differ there
are for another child.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlz import envs
from rlz.bench.children import say
from rlz.config import RunConfig, run_config
from rlz.envs.spaces import EnvSpec
from rlz.errors import in_one_line
from rlz.placement import Place
from rlz.system.notices import notices_to
from rlz.tracking import WorkerInfo
from rlz.tracking.reading import Reader, Reading
from rlz.tracking.snapshot import Snapshot, between
from rlz.transport.stats import Stat
from rlz.transport.streams import FIRST_WORKER_ID, Origin
from rlz.workers.job import Job
from rlz.workers.learner import Learner
from rlz.workers.process import WorkerProcess, single_threaded, wait_until_dead

SAME_IN_BOTH = "samplers", "envs_per_sampler", "spin_count", "pinned", "device", "inference"
"""Keys of a setting and of what was measured in it."""

BUFFER_ROWS = 50_000
"""Rows of the replay buffer: as many as are sampled in some seconds."""

LEARNING_STARTS = 100
"""Env steps before the first update, or as many as the environments need for a row each."""

START_S = 20.0
"""Longest time until everything is at work; after that a setting is given up."""

SETTLE_S = 1.0
"""Time in which the learner measures its threads and the samplers' caches get warm, from when all are at work."""

SETTLE_LIMIT_S = 4.0
"""The window begins by then, settled or not."""


class Run:
    """One setting, with everything that belongs to it; a context manager, nothing of it is left afterwards."""

    def __init__(self, config: RunConfig, env_spec: EnvSpec, cores: Sequence[int], folder: Path) -> None:
        self._config = config
        (folder / "checkpoints").mkdir()
        self._job = Job.of(config, env_spec, cores=cores)
        self._streams = self._job.streams(Origin(run_id=1))
        self._folder = folder
        self._processes: list[WorkerProcess] = []
        self._infos: list[WorkerInfo] = []
        self._learner: Learner | None = None
        try:
            for place in self._job.places:
                self._add(place, FIRST_WORKER_ID + place.slot)
        except BaseException:
            self.close()
            raise
        self._reader = Reader(self._streams, lambda: self._infos)

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def precision(self) -> str:
        """What the learner computes in: what `--precision auto` has turned out to be."""
        assert self._learner is not None
        return self._learner.precision

    def measure(self, seconds: float) -> Snapshot:
        """Wait until all is at work and settled, then look at a window."""
        begin = time.monotonic()
        while not self._at_work():
            self._work(0.1)
            if time.monotonic() - begin > START_S or self._dead():
                raise RuntimeError(f"the samplers did not start: {self._last_words()}")
        working = time.monotonic()
        assert self._learner is not None
        self._work(SETTLE_S)
        while not self._learner.settled and time.monotonic() - working < SETTLE_LIMIT_S:
            self._work(0.1)
        before: Reading = self._reader.read()
        self._work(seconds)
        return between(before, self._reader.read(), config=self._config, started=begin)

    def close(self) -> None:
        """End samplers and learner, and let go of the memory."""
        self._streams.limiter.stop()
        wait_until_dead(self._processes, timeout=1.0)
        for process in self._processes:
            process.kill()
            process.reap()
        if self._learner is not None:
            self._learner.close()
        self._streams.close()

    def _add(self, place: Place, worker: int) -> None:
        if place.node.torch:
            spec = self._job.spec(place, worker_id=worker, run_dir=str(self._folder))
            self._learner = Learner(spec, self._streams.of(place.node))
            self._learner.start()
            pid = os.getpid()
        else:
            fds = self._streams.fds(place.node)
            spec = self._job.spec(place, worker_id=worker, run_dir=str(self._folder), fds=fds)
            process = WorkerProcess(place, spec, self._folder / f"{place.name}.log", single_threaded())
            self._processes.append(process)
            pid = process.pid
        self._infos.append(WorkerInfo.of(place, pid))

    def _work(self, seconds: float) -> None:
        assert self._learner is not None
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self._learner.step(min(left, 0.05))

    def _at_work(self) -> bool:
        """Every sampler has made steps, the learner updates."""
        board = self._streams.stats.read()
        return all(board[info.slot][Stat.READY_S] > 0 for info in self._infos)

    def _dead(self) -> bool:
        return any(wait_until_dead([process], timeout=0.0) for process in self._processes)

    def _last_words(self) -> str:
        words = [process.log.read_text(errors="replace").strip() for process in self._processes]
        return next((text.splitlines()[-1] for text in words if text), "no word from them")


def measure(
    config: RunConfig, env_spec: EnvSpec, cores: Sequence[int], setting: dict[str, Any], seconds: float
) -> dict[str, Any]:
    """Rates of one setting: keys as `Joint` of the profile."""
    envs = setting["samplers"] * setting["envs_per_sampler"]
    options = {
        "samplers": setting["samplers"],
        "num_envs": envs,
        "env_groups": min(config.env_groups, setting["envs_per_sampler"]),
        "learning_starts": max(LEARNING_STARTS, envs * config.replay().n_step),
        "pin": setting["pinned"],
        "device": setting["device"],
        "inference": setting["inference"],
        "compile": setting["compile"],
        "replay_ratio": "free" if setting["replay_ratio"] is None else setting["replay_ratio"],
    }
    short = run_config({**config.model_dump(), **options})
    folder = Path(tempfile.mkdtemp(prefix="run-"))  # within that of the profile, which removes it
    with Run(short, env_spec, cores, folder) as run:
        found, precision = run.measure(seconds), run.precision
    samplers = [worker for worker in found.workers if worker.progress == "env_steps"]
    learner = next(worker for worker in found.workers if worker.progress == "updates")
    return {
        **{name: setting[name] for name in SAME_IN_BOTH},
        "batch_size": short.replay().batch,
        "replay_ratio": setting["replay_ratio"],
        "precision": precision,
        "executor": "compiled" if found.values.get("train/compiled") else "eager",
        "threads": int(found.values.get("train/threads", 1)),
        "env_steps_per_s": found.env_steps_per_s,
        "updates_per_s": found.updates_per_s,
        "frames_per_s": found.frames_per_s,
        "sampler_cpu": sum(worker.cpu_percent or 0.0 for worker in samplers) / 100,
        "learner_cpu": (learner.cpu_percent or 0.0) / 100,
        "sampler_waits": sum(worker.waits.get("limiter", 0.0) for worker in samplers) / len(samplers),
        "learner_waits": learner.waits.get("limiter", 0.0),
        "batch_waits": learner.waits.get("batch", 0.0),
        "publish_share": found.values.get("train/publish_share", 0.0),
        "seconds": seconds,
    }


def main(config: dict[str, Any], settings: Sequence[dict[str, Any]], seconds: float) -> None:
    """Measure settings one after the other; {"next": number} comes before, {"joint": ...} or {"error": ...} after."""
    notices_to(lambda _: None)
    quiet = {
        **{"total_timesteps": 10**12, "buffer_size": BUFFER_ROWS, "mode": "async"},
        **{"eval_every": 0, "checkpoint_every": 0, "save_replay": False},
    }
    base = run_config({**config, **quiet, "learning_starts": 10**6})
    cores = sorted(os.sched_getaffinity(0))
    env_spec = envs.inspect_env(base, on_note=lambda _: None)
    pinned = next((setting for setting in settings if setting["pinned"]), None)
    if pinned is not None:  # before torch starts its threads, which inherit it
        job = Job.of(base.model_copy(update={"samplers": pinned["samplers"], "pin": True}), env_spec, cores=cores)
        os.sched_setaffinity(0, next(place.cores for place in job.places if place.node.torch) or cores)
    for number, setting in enumerate(settings):
        say({"next": number})
        try:
            say({"joint": measure(base, env_spec, cores, setting, seconds)})
        except Exception as error:
            say({"error": in_one_line(error)})


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
