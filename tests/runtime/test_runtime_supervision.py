"""Runs with real worker processes and a fake learner: supervision, stopping, and what is left behind."""

import gc
import os
import signal
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from rlz._native import RUNNING, STOPPING
from rlz.config import RunConfig, run_config
from rlz.errors import EnvError, NotServedError, SharedMemoryError
from rlz.records.checkpoint import newest_checkpoint
from rlz.records.run_directory import RunDirectory
from rlz.runtime import controller
from rlz.runtime.controller import Controller
from rlz.runtime.live import Live
from rlz.runtime.resume import resume
from rlz.runtime.train import train
from rlz.transport.stats import Stat
from rlz.workers.process import Ending
from support.harness import SAMPLER, Run, config
from support.training import Training, wait_for

Start = Callable[..., Training]
ENDLESS = {"total_timesteps": 10_000_000}


def test_killed_workers_are_replaced_a_stopped_one_is_not_and_the_count_is_exact(start: Start) -> None:
    training = start(
        samplers=2,
        total_timesteps=6000,
        eval_every=1000,
        eval_episodes=3,
        env_kwargs={"truncate_after": 20, "sleep": 0.0005},
    )
    training.wait_for_steps(200)
    training.worker("evaluator").send_signal(signal.SIGSEGV)
    sampler = training.worker("sampler")
    sampler.suspend()
    time.sleep(1.0)
    assert training.process.poll() is None
    sampler.resume()
    training.wait_for_steps(500)
    sampler.kill()
    assert training.wait() == 0, training.text()
    summary = training.summary()
    assert summary["status"] == "completed"
    assert summary["env_steps"] == 6000
    assert summary["updates"] == 5950
    assert summary["restarts"] == 2
    assert summary["last_evaluation_return"] == 210
    text = training.text()
    assert "evaluator was killed by SIGSEGV" in text
    assert "was killed by SIGKILL" in text
    assert "lack of memory" in text
    assert text.count("restarted (death 1 of 3 in a row)") == 2
    logged = {tag for line in training.metrics() for tag in line}
    for name, tags in {
        "learner": ("updates_per_s", "wait_limiter"),
        "evaluator": ("episodes_per_s", "wait_parameters"),
        "sampler-0": ("env_steps_per_s", "policy_lag", "rows_lost", "resets"),
        "sampler-1": ("env_steps_per_s", "policy_lag", "rows_lost", "resets"),
    }.items():
        for tag in (*tags, "restarts", "private_bytes", "shared_bytes", "cpu_percent", "threads", "quiet_s"):
            assert f"workers/{name}/{tag}" in logged
    # One of them may be the slower one on a busy machine, and never wait.
    assert logged & {"workers/sampler-0/wait_limiter", "workers/sampler-1/wait_limiter"}
    training.assert_nothing_is_left()


def test_a_sampler_that_always_dies_ends_the_run(start: Start) -> None:
    training = start(**ENDLESS, env_kwargs={"sleep": 0.01}, learning_starts=1000)
    killed: set[int] = set()

    def kill() -> bool:
        worker = next((p for p in training.descendants() if is_sampler(p) and p.pid not in killed), None)
        if worker is not None:
            killed.add(worker.pid)
            worker.kill()
        return training.process.poll() is not None

    wait_for(kill)
    assert training.wait() == 1
    assert "its death number 3 in a row without 1,000 env steps between: the run is given up" in training.text()
    assert training.summary()["status"] == "failed"
    assert len(killed) == 3
    training.assert_nothing_is_left()


def test_an_evaluator_that_always_dies_ends_the_run(start: Start) -> None:
    # No episode ever ends, so however far each one comes there is no progress.
    training = start(**ENDLESS, env_kwargs={}, eval_every=100, eval_episodes=1)
    for death in (1, 2, 3):
        evaluator = training.worker("evaluator")
        evaluator.kill()
        if death < 3:
            wait_for(lambda death=death: f"It is restarted (death {death} of 3 in a row)" in training.text())
    assert training.wait() == 1
    assert "its death number 3 in a row without an episode between: the run is given up" in training.text()
    assert training.summary()["status"] == "failed"
    training.assert_nothing_is_left()


class Deaths:
    """A controller whose workers die when a test says so; none is ever started."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.run = Run(config(num_envs=2, eval_every=100, total_timesteps=100_000, replay_ratio="free"), folder)
        self.folder = RunDirectory(folder, (folder / ".lock").open("ab"))
        self.controller = Controller(self.run.job, self.folder, self.run.streams)
        monkeypatch.setattr(self.controller, "_start", lambda slot: None)
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def tick(self, now: float) -> None:
        raise AssertionError

    def die(self, role: str) -> str:
        (slot,) = (slot for slot in self.controller.slots if slot.place.role == role)
        self.controller._restart(slot, Ending(slot.place.name, -9, None, Path("log")), self)
        return self.notes[-1]

    def steps(self, count: int) -> None:
        """Env steps, over both lanes."""
        tickets = np.zeros(2, np.int64)
        for step in range(count):
            if step % 2 == 0:
                assert self.run.limiter.acquire_steps([0, 1], tickets, worker=SAMPLER, timeout=0.0) >= 1
            self.run.limiter.complete_step(step % 2)

    def episode(self) -> None:
        self.run.streams.stats.add(1, Stat.EPISODES, 1.0)


@pytest.fixture
def deaths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Deaths]:
    found = Deaths(tmp_path, monkeypatch)
    yield found
    found.controller.close()
    found.folder.close()
    found.run.streams.close()


def test_deaths_with_a_thousand_env_steps_between_are_not_in_a_row(deaths: Deaths) -> None:
    for _ in range(3):
        assert "It is restarted (death 1 of 3 in a row)" in deaths.die("sampler")
        deaths.steps(100)
        assert "It is restarted (death 2 of 3 in a row)" in deaths.die("sampler")
        deaths.steps(1000)
    assert "(death 1 of 3 in a row)" in deaths.die("sampler")
    deaths.steps(998)
    assert "(death 2 of 3 in a row)" in deaths.die("sampler")
    deaths.steps(998)
    assert deaths.run.limiter.state == RUNNING
    assert "death number 3 in a row without 1,000 env steps between" in deaths.die("sampler")
    assert deaths.run.limiter.state == STOPPING
    assert deaths.run.stat("sampler", Stat.RESTARTS) == 8


def test_deaths_of_an_evaluator_with_an_episode_between_are_not_in_a_row(deaths: Deaths) -> None:
    for _ in range(3):
        assert "(death 1 of 3 in a row)" in deaths.die("evaluator")
        deaths.steps(2000)  # progress of the others is none of its own
        assert "(death 2 of 3 in a row)" in deaths.die("evaluator")
        deaths.episode()
    for _ in range(2):
        assert deaths.run.limiter.state == RUNNING
        deaths.die("evaluator")
    assert "death number 3 in a row without an episode between" in deaths.die("evaluator")
    assert deaths.run.limiter.state == STOPPING


def test_each_worker_has_its_own_count_of_deaths(deaths: Deaths) -> None:
    for death in (1, 2):
        for role in ("sampler", "evaluator"):
            assert f"(death {death} of 3 in a row)" in deaths.die(role)


def test_a_slow_environment_holds_nobody_else(start: Start, tmp_path: Path) -> None:
    training = start(
        samplers=2, num_envs=2, total_timesteps=2000, env_kwargs={"truncate_after": 20, "slow": str(tmp_path / "slow")}
    )
    assert training.wait() == 0, training.text()
    summary = training.summary()
    assert (summary["env_steps"], summary["updates"]) == (2000, 1950), "the replay ratio is exact"
    totals = newest_checkpoint(training.run_dir).totals.workers
    slow, fast = sorted(int(totals[name].counters["env_steps"]) for name in ("sampler-0", "sampler-1"))
    assert 5 <= slow < 300  # 150 s
    assert slow + fast == 2000
    assert summary["restarts"] == summary["rows_lost"] == 0


@pytest.mark.parametrize(
    ("role", "seconds"),
    [
        ("sampler", 1.5),
        *(pytest.param(role, 10.0, marks=pytest.mark.kill) for role in ("sampler", "evaluator", "learner")),
    ],
)
def test_a_stopped_worker_is_not_dead(start: Start, role: str, seconds: float) -> None:
    training = start(
        **ENDLESS, samplers=2, num_envs=2, eval_every=1000, eval_episodes=2,
        env_kwargs={"truncate_after": 20, "sleep": 0.002},
    )  # fmt: skip
    training.wait_for_steps(200)
    worker = training.worker(role)
    pids = {process.pid for process in training.descendants()}
    worker.suspend()
    before = training.metrics()[-1]["env_steps"]
    time.sleep(seconds)
    assert training.process.poll() is None
    assert worker.status() == psutil.STATUS_STOPPED
    assert {process.pid for process in training.descendants()} == pids, "nobody was killed or restarted"
    if role != "learner":  # without it the replay ratio holds everybody, and nobody ends
        training.wait_for_steps(before + 100)
    worker.resume()
    stopped_at = training.metrics()[-1]["env_steps"]
    training.wait_for_steps(stopped_at + 100)
    assert {process.pid for process in training.descendants()} == pids
    training.process.send_signal(signal.SIGINT)
    assert training.wait() == 130, training.text()
    summary = training.summary()
    assert summary["restarts"] == summary["rows_lost"] == 0
    assert "killed" not in training.text()
    training.assert_nothing_is_left()


def is_sampler(process: psutil.Process) -> bool:
    try:
        return "rlz.workers.sampler:Sampler" in process.cmdline()
    except psutil.NoSuchProcess:
        return False


def test_an_exception_in_an_environment_ends_the_run_with_its_traceback(start: Start) -> None:
    training = start(**ENDLESS, env_kwargs={"fail_at": 300})
    assert training.wait() == 1
    text = training.text()
    assert "error: sampler-0: environment support.fake_envs:Counting-v0" in text
    assert "step 300" in text
    assert 'raise ValueError("a bug in the environment")' in text
    assert "controller.py" not in text
    assert training.summary()["status"] == "failed"
    assert newest_checkpoint(training.run_dir).env_steps == 299, "the learner could still save its work"
    training.assert_nothing_is_left()


def test_nobody_waits_for_workers_that_still_start_when_an_environment_fails_at_once(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLZ_FAKE_LEARNER", "late")
    training = start(**ENDLESS, env_kwargs={"fail_at": 5}, learning_starts=100)
    assert training.wait() == 1
    text = training.text()
    assert "error: sampler-0: environment support.fake_envs:Counting-v0" in text
    assert "learner was still starting and was ended" in text
    assert "did not end in time" not in text
    training.assert_nothing_is_left()


@pytest.mark.parametrize(
    ("mode", "expected", "hidden"),
    [
        ("bug", "ZeroDivisionError: a bug in the learner", "controller.py"),
        ("exit", "learner exited with status 0 before its work was done", "controller.py"),
        ("kill", "learner was killed by SIGKILL", "controller.py"),
        ("early", "learner was killed by SIGKILL", "controller.py"),
    ],
)
def test_the_death_of_the_learner_ends_the_run(
    start: Start, monkeypatch: pytest.MonkeyPatch, mode: str, expected: str, hidden: str
) -> None:
    monkeypatch.setenv("RLZ_FAKE_LEARNER", mode)
    training = start(**ENDLESS)
    assert training.wait() == 1
    assert expected in training.text()
    assert hidden not in training.text()
    assert "sampler-0 was killed" not in training.text(), "the controller did it, and knows"
    assert "sampler-0 was ended: nothing goes on without the learner" in training.text()
    training.assert_nothing_is_left()
    assert "rows of the replay buffer are saved for a resumed run" in training.text()
    if mode in ("kill", "early"):
        # Its last checkpoint is old, but the rows outlived it: the run can go on without losing one.
        assert newest_checkpoint(training.run_dir).updates == (10 if mode == "kill" else 0)
        monkeypatch.delenv("RLZ_FAKE_LEARNER")
        workers = {"learner": "support.fake_learner:Learner"}
        assert resume(training.run_dir, {"total_timesteps": 200}, quiet=True, workers=workers) == 0
        resumed = newest_checkpoint(training.run_dir)
        assert (resumed.env_steps, resumed.updates) == (200, 150)
        assert resumed.replay is not None
        assert sum(resumed.replay.committed) == 200
        summary = training.summary()
        assert summary["episodes"] in (9, 10), "those of the rows that outlived it count; one was cut"
        assert summary["rows_lost"] == 0
        for name in ("env_steps", "updates", "wall_s"):
            values = [line[name] for line in training.metrics()]
            assert values == sorted(values), name


def test_nothing_is_promised_where_no_checkpoint_could_be_written(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLZ_FAKE_LEARNER", "diskless")
    training = start(**ENDLESS)
    assert training.wait() == 1
    assert "saved for a resumed run" not in training.text()
    assert "the replay buffer is not saved, because the run cannot be resumed: " in training.text()
    assert "has no checkpoint" in training.text()


def test_one_signal_writes_a_checkpoint_and_stops(start: Start) -> None:
    training = start(**ENDLESS, samplers=2, eval_every=100, eval_episodes=1000)
    training.wait_for_steps(1000)
    began = time.monotonic()
    training.process.send_signal(signal.SIGINT)
    assert training.wait() == 130, training.text()
    assert time.monotonic() - began < 5
    assert training.summary()["status"] == "stopped"
    checkpoint = newest_checkpoint(training.run_dir)
    assert checkpoint.env_steps >= 1000
    assert checkpoint.replay is not None
    assert sum(checkpoint.replay.committed) >= checkpoint.env_steps
    training.assert_nothing_is_left()


def test_two_signals_stop_at_once(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLZ_FAKE_LEARNER", "deaf")
    training = start(**ENDLESS)
    training.wait_for_steps(200)
    training.process.send_signal(signal.SIGTERM)
    time.sleep(0.5)
    assert training.process.poll() is None
    began = time.monotonic()
    training.process.send_signal(signal.SIGTERM)
    assert training.wait() == 143
    assert time.monotonic() - began < 1
    training.assert_nothing_is_left()


def test_a_learner_that_does_not_stop_is_killed_within_five_seconds(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLZ_FAKE_LEARNER", "deaf")
    training = start(**ENDLESS)
    training.wait_for_steps(200)
    began = time.monotonic()
    training.process.send_signal(signal.SIGHUP)
    assert training.wait() == 129
    assert 4 < time.monotonic() - began < 5.5
    assert "learner did not end in time" in training.text()


def test_nothing_outlives_a_killed_controller(start: Start, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    training = start(**ENDLESS, eval_every=500, env_kwargs={"truncate_after": 20, "spawn": str(pids)})
    training.wait_for_steps(200)
    training.descendants()
    assert len(training.seen) >= 3
    assert {int(line) for line in pids.read_text().split()} & training.seen
    with Live(training.run_dir) as live:
        assert live.policy().version >= 1
        training.process.kill()
        training.process.wait()
        training.assert_no_process_is_left(within=2.0)
        assert live.limiter.env_steps >= 200  # who looks in keeps the memory for as long as he looks
        with pytest.raises(NotServedError):
            live.refresh()
    with pytest.raises(NotServedError, match="is not alive"):
        Live(training.run_dir)


def test_nothing_outlives_a_controller_that_is_killed_while_workers_start(start: Start) -> None:
    training = start(**ENDLESS, samplers=2)
    wait_for(lambda: len(training.descendants()) >= 3)
    training.process.kill()
    training.process.wait()
    training.assert_no_process_is_left(within=2.0)


def small(folder: Path, **values: Any) -> RunConfig:
    defaults: dict[str, Any] = {
        "env": "support.fake_envs:Counting-v0",
        "total_timesteps": 200,
        "learning_starts": 10,
        "hidden": (8,),
        "buffer_size": 500,
        "eval_every": 0,
        "runs_dir": str(folder),
        "name": "run",
    }
    return run_config(**{**defaults, **values})


@pytest.mark.parametrize(
    ("values", "error"), [({"env": "Nothing-v0"}, EnvError), ({"buffer_size": 10**11}, SharedMemoryError)]
)
def test_what_cannot_work_is_an_error_before_anything_starts(
    tmp_path: Path, values: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        train(small(tmp_path, **values), quiet=True)
    assert not list(tmp_path.iterdir())


def test_no_descriptor_is_left_in_a_process_that_trains_twice(tmp_path: Path) -> None:
    workers = {"learner": "support.fake_learner:Learner"}
    counts = []
    for name in ("a", "b"):
        assert train(small(tmp_path, name=name), quiet=True, workers=workers) == 0
        counts.append(len(os.listdir("/proc/self/fd")))  # noqa: PTH208
    assert counts[0] == counts[1]


class Cycle:
    """Garbage that only a collection finds."""

    def __init__(self) -> None:
        self.itself = self


def test_garbage_is_collected_while_a_run_lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller, "COLLECT_S", 0.0)
    gc.disable()  # the interpreter's own collections, at numbers of objects
    try:
        left = weakref.ref(Cycle())
        assert train(small(tmp_path), quiet=True, workers={"learner": "support.fake_learner:Learner"}) == 0
        assert left() is None
    finally:
        gc.enable()
