"""How long recovery and stopping take, and what a checkpoint costs.

    python benches/reliability/timings.py                      # everything (about fifteen minutes)
    python benches/reliability/timings.py --only restart stop orphan --repeats 3
    python benches/reliability/timings.py --only checkpoint --minutes 8

- restart: SIGKILL of the sampler to the first env step of its successor.
- stop, stop-ant: Ctrl-C to the exit of `rlz train`, last checkpoint included; on Pendulum-v1, and on Ant-v4 with a
  buffer of 1M rows of which none is saved yet, and with one of which nearly all are.
- orphan: SIGKILL of the controller to the end of the last process.
- checkpoint: env steps/s of SAC on Ant-v4 with a buffer of 1M rows, in windows with and without a checkpoint that
  follow each other in one run; the cost at the default interval of 5 minutes comes from the steps that one takes away.
"""

from __future__ import annotations

import argparse
import json
import signal
import tempfile
import time
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
from job import Job, fresh, kill, spread, stat, wait_for, write_result

from rlz._native import Replay
from rlz.records.checkpoint import newest_checkpoint
from rlz.records.replay_files import ReplaySaver, open_rows
from rlz.runtime.live import Live
from rlz.transport.stats import Stat

PENDULUM: dict[str, Any] = {
    "env": "Pendulum-v1",
    "total_timesteps": 100_000_000,
    "hidden": 64,
    "replay_ratio": 0.25,
    "buffer_size": 100_000,
}
ANT: dict[str, Any] = {"env": "Ant-v4", "buffer_size": 1_000_000, "learning_starts": 100, "eval_every": 0}
DEFAULT_INTERVAL_S = 300.0


# restart, stop, orphan


def restart(folder: Path, repeats: int) -> dict[str, Any]:
    seconds = []
    job = Job(fresh(folder), PENDULUM)
    try:
        with job.live() as live:
            _until_updates(job, live, 1)
            for _ in range(repeats):
                _more_steps(job, live, 1500)  # a third death in a row without 1,000 steps would end the run
                ready = stat(live, "sampler-0", Stat.READY_S)
                killed = time.monotonic()
                kill(job.workers()["sampler"][0])
                wait_for(lambda old=ready: stat(live, "sampler-0", Stat.READY_S) > old, 60, job.describe, 0.005)
                seconds.append(stat(live, "sampler-0", Stat.READY_S) - killed)
                live.refresh()
    finally:
        job.close()
    return {"sampler_kill_to_first_step_s": spread(seconds)}


def stop_pendulum(folder: Path, repeats: int) -> dict[str, Any]:
    seconds = []
    for _ in range(repeats):
        job = Job(fresh(folder), PENDULUM)
        try:
            with job.live() as live:
                _until_updates(job, live, 500)
            seconds.append(_interrupt(job))
        finally:
            job.close()
    return {"ctrl_c_to_exit_s": spread(seconds)}


def stop_ant(folder: Path, repeats: int) -> dict[str, Any]:
    """Ctrl-C while no row, and while nearly every row of the full buffer is on the disk already."""
    unsaved, saved = [], []
    make_full_ant(folder)
    for _ in range(repeats):
        job = Job(folder, {"total_timesteps": 100_000_000, "checkpoint_every": 0}, resume=True)
        try:
            with job.live() as live:
                _until_updates(job, live, 20)
            unsaved.append(_interrupt(job, within=30.0))
        finally:
            job.close()
    for _ in range(repeats):
        job = Job(folder, {"total_timesteps": 100_000_000, "checkpoint_every": 5}, resume=True)
        try:
            with job.live() as live:
                _until_updates(job, live, 20)
                before = stat(live, "learner", Stat.CHECKPOINTS)
                wait_for(lambda old=before: stat(live, "learner", Stat.CHECKPOINTS) > old, 120, job.describe)
            saved.append(_interrupt(job, within=30.0))
        finally:
            job.close()
    return {"ctrl_c_to_exit_unsaved_rows_s": spread(unsaved), "ctrl_c_to_exit_saved_rows_s": spread(saved)}


def _interrupt(job: Job, within: float = 15.0) -> float:
    began = time.monotonic()
    job.process.send_signal(signal.SIGINT)
    job.process.wait(within)
    seconds = time.monotonic() - began
    assert job.process.returncode == 130, job.text()
    assert not job.left()
    assert job.summary()["status"] == "stopped"
    assert newest_checkpoint(job.run_dir).env_steps == job.summary()["env_steps"], "the last steps were not saved"
    return seconds


def orphan(folder: Path, repeats: int) -> dict[str, Any]:
    seconds = []
    for _ in range(repeats):
        job = Job(fresh(folder), PENDULUM)
        try:
            with job.live() as live:
                _until_updates(job, live, 100)
            job.workers()
            died = time.monotonic()
            kill(job.controller)
            assert not job.left(within=10.0)
            seconds.append(time.monotonic() - died)
        finally:
            job.close()
    return {"controller_kill_to_last_process_s": spread(seconds)}


def _until_updates(job: Job, live: Live, updates: int) -> None:
    live.refresh()
    goal = live.limiter.updates + updates

    def reached() -> bool:
        live.refresh()
        return live.limiter.updates >= goal

    wait_for(reached, 180, job.describe)


def _more_steps(job: Job, live: Live, steps: int) -> None:
    goal = live.limiter.env_steps + steps

    def reached() -> bool:
        live.refresh()
        return live.limiter.env_steps >= goal

    wait_for(reached, 180, job.describe)


# a full buffer


def make_full_ant(folder: Path, rows: int = 1_000_000) -> None:
    """Leave a run on Ant-v4 whose checkpoint holds a full buffer.

    Its real rows, drawn again and again, fill the buffer: for what is measured here rows are just bytes.
    """
    job = Job(fresh(folder), {**ANT, "buffer_size": rows, "total_timesteps": 1000, "compile": False})
    try:
        assert job.wait(300) == 0, job.text()
    finally:
        job.close()
    checkpoint = newest_checkpoint(job.run_dir)
    saved = checkpoint.replay
    assert saved is not None
    records = np.concatenate(open_rows(job.run_dir, saved.lanes[0]))
    names = [name for name in records.dtype.names or () if not name.startswith("rlz.")]
    fields = [(name, "f32", records.dtype[name].shape) for name in names]
    replay = Replay.create(fields, buffer_size=rows, lanes=1, run_id=1)
    packed = records.view(np.uint8).reshape(len(records), -1)
    real, meta = packed[:, : replay.stride], records["rlz.flags"].astype(np.uint64)
    generator = np.random.default_rng(1)
    for begin in range(0, rows, 50_000):
        chosen = generator.integers(0, len(real), min(50_000, rows - begin))
        replay.restore_rows(0, real[chosen], meta[chosen], worker=1)
    full = ReplaySaver(job.run_dir, replay).save(replay.committed())
    replay.close()
    state = json.loads((checkpoint.path / "state.json").read_text())
    state["replay"] = full.to_json()
    (checkpoint.path / "state.json").write_text(json.dumps(state))


# cost of checkpoints


def checkpoint_cost(folder: Path, minutes: float, every: float, window: float) -> dict[str, Any]:
    """Env steps/s in windows that hold a checkpoint, and in those that follow them."""
    make_full_ant(folder)
    # Snapshots at the learner's pace: a checkpoint begins when the first new file appears.
    job = Job(folder, {"total_timesteps": 100_000_000, "checkpoint_every": every}, resume=True)
    samples: list[tuple[float, int]] = []
    begins: list[float] = []
    ends: list[float] = []
    try:
        with job.live() as live:
            _until_updates(job, live, 200)
            stop_at = time.monotonic() + 60 * minutes
            files, done = _files(job.run_dir), stat(live, "learner", Stat.CHECKPOINTS)
            while time.monotonic() < stop_at:
                live.refresh()
                now = time.monotonic()
                samples.append((now, live.limiter.env_steps))
                found = _files(job.run_dir)
                if found - files and len(begins) == len(ends):
                    begins.append(now)
                files = found
                if (count := stat(live, "learner", Stat.CHECKPOINTS)) > done:
                    done = count
                    if len(begins) == len(ends):  # too quick to be seen
                        begins.append(now)
                    ends.append(now)
                time.sleep(0.1)
            compiled, threads = (stat(live, "learner", which) for which in (Stat.COMPILED, Stat.THREADS))
        job.process.send_signal(signal.SIGINT)
        job.wait(60)
    finally:
        job.close()
    return _cost(samples, begins[: len(ends)], ends, window) | {"compiled": compiled, "threads": threads}


def _files(run_dir: Path) -> set[str]:
    found = {str(path) for path in (run_dir / "replay").glob("g*/lane-*/*")}
    return found | {str(path) for path in (run_dir / "checkpoints").glob("*")}


def _cost(samples: list[tuple[float, int]], begins: list[float], ends: list[float], window: float) -> dict[str, Any]:
    times, steps = np.array([t for t, _ in samples]), np.array([s for _, s in samples], float)

    def rate(begin: float, end: float) -> float:
        at = np.interp([begin, end], times, steps)
        return float(at[1] - at[0]) / (end - begin)

    first, pairs = None, []
    for number, (begin, end) in enumerate(zip(begins, ends, strict=True)):
        last = max(end, begin + window)  # the checkpoint and what it may drag behind it
        after = (last, last + (last - begin))
        following = begins[number + 1] if number + 1 < len(begins) else times[-1]
        if begin < times[0] or after[1] > following:
            continue
        pair = (rate(begin, last), rate(*after), last - begin, end - begin)
        if number == 0:
            first = pair
        else:
            pairs.append(pair)
    result: dict[str, Any] = {"checkpoints": len(ends), "pairs": len(pairs)}
    if first is not None:
        result["first_with_all_rows"] = _described([first])
    if pairs:
        result["incremental"] = _described(pairs)
    return result


def _described(pairs: list[tuple[float, float, float, float]]) -> dict[str, Any]:
    with_, without, lengths, writing = (list(column) for column in zip(*pairs, strict=True))
    losses = [(b - a) * length for a, b, length, _ in pairs]  # env steps that a checkpoint took away
    quiet = mean(without)
    at_default = 100 * mean(losses) / (quiet * DEFAULT_INTERVAL_S)
    found: dict[str, Any] = {
        "window_s": spread(lengths),
        "written_in_s": spread(writing),
        "env_steps_per_s_with": spread(with_),
        "env_steps_per_s_without": spread(without),
        "slower_in_the_window_percent": round(100 * (1 - mean(with_) / quiet), 2),
        "env_steps_lost_per_checkpoint": round(mean(losses), 2),
        "cost_at_default_interval_percent": round(at_default, 3),
    }
    if len(losses) > 1:
        error = stdev(losses) / len(losses) ** 0.5
        bound = 100 * (mean(losses) + 2 * error) / (quiet * DEFAULT_INTERVAL_S)
        found |= {"standard_error_of_lost": round(error, 2), "cost_at_most_percent": round(bound, 3)}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = ("restart", "stop", "stop-ant", "orphan", "checkpoint")
    parser.add_argument("--only", nargs="+", choices=parts, default=list(parts))
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--ant-repeats", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=8.0, help="of the run whose checkpoints are measured")
    parser.add_argument("--every", type=float, default=20.0, help="seconds between these checkpoints")
    parser.add_argument("--window", type=float, default=5.0, help="shortest window around one")
    parser.add_argument("--output")
    given = parser.parse_args()
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="rlz-timings-") as name:
        folder = Path(name) / "timing"
        if "restart" in given.only:
            results["restart"] = restart(folder, given.repeats)
        if "stop" in given.only:
            results["stop_pendulum"] = stop_pendulum(folder, given.repeats)
        if "stop-ant" in given.only:
            results["stop_ant_1m_rows"] = stop_ant(folder, given.ant_repeats)
        if "orphan" in given.only:
            results["orphan"] = orphan(folder, given.repeats)
        if "checkpoint" in given.only:
            results["checkpoint_ant_1m_rows"] = checkpoint_cost(folder, given.minutes, given.every, given.window)
    settings = {key: value for key, value in vars(given).items() if key != "output"}
    write_result("reliability_timings", settings, results, given.output)


if __name__ == "__main__":
    main()
