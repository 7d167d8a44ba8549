"""`rlz runs show`: a run is explained while it works, while it hangs, and when it is over."""

import json
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlz.errors import CheckpointError
from rlz.runtime.live import SOCKET
from rlz.runtime.show import Process, doing, show, verdict
from rlz.tracking.snapshot import WorkerSnapshot
from support.training import Training, wait_for

ENDLESS = {"total_timesteps": 10_000_000}
Start = Callable[..., Training]


def worker(role: str = "sampler", **values: Any) -> WorkerSnapshot:
    defaults: dict[str, Any] = {
        "name": "sampler-0" if role == "sampler" else role,
        "role": role,
        "progress": {"sampler": "env_steps", "learner": "updates", "evaluator": "episodes"}[role],
        "pid": 5,
        "restarts": 0,
        "private": 2**20,
        "shared": 2**20,
        "threads": 1,
        "cpu_percent": 1.0,
        "env_steps_per_s": 0.0,
        "updates_per_s": 0.0,
        "episodes_per_s": 0.0,
        "policy_lag": None,
        "rows_lost": 0,
        "waits": {},
        "waiting_for": "",
        "waiting_s": 0.0,
        "quiet_s": 0.1,
    }
    return WorkerSnapshot(**{**defaults, **values})


@pytest.mark.parametrize(
    ("seen", "process", "expected"),
    [
        (worker(), Process("R"), "works"),
        (worker(pid=0), Process(""), "does not run"),
        (worker(quiet_s=12.0), Process("S"), "in an environment step or reset since 12.0 s"),
        (worker(quiet_s=12.0), Process("D"), "since 12.0 s (in the kernel"),
        (worker(quiet_s=None), Process("R", 3.0), "starts since 3.0 s"),
        (worker(quiet_s=120.0), Process("T"), "is stopped by a signal"),
        (worker(), Process("Z"), "is dead"),
        (worker(waiting_for="limiter", waiting_s=4.0), Process(), "waits for updates (replay ratio) since 4.0 s"),
        (worker(waiting_for="parameters", waiting_s=4.0), Process(), "waits for the learner's first parameters"),
        (
            worker("learner", waiting_for="limiter", waiting_s=400.0),
            Process(),
            "waits for env steps (replay ratio) since 0",
        ),
        (worker("learner", waiting_for="batch"), Process(), "waits for a batch"),
        (worker("learner", quiet_s=9.0), Process(), "in an update since 9.0 s"),
        (worker("evaluator", waiting_for="parameters"), Process(), "waits for a policy to evaluate"),
        (worker("evaluator", quiet_s=9.0), Process(), "in an environment step or reset since 9.0 s"),
    ],
)
def test_what_a_worker_does(seen: WorkerSnapshot, process: Process, expected: str) -> None:
    assert expected in doing(seen, process)


def test_a_checkpoint_that_takes_long_is_named() -> None:
    assert "checkpoint" in doing(worker("learner", quiet_s=9.0), Process(), saving=True)


def serving(training: Training) -> str:
    wait_for(lambda: (training.run_dir / SOCKET).exists())
    return "\n".join(show(training.run_dir, window=0.5))


def test_a_stopped_sampler_and_a_stopped_controller_are_named(start: Start) -> None:
    training = start(**ENDLESS, eval_every=10**6)
    training.wait_for_steps(200)
    text = serving(training)
    assert "run: running (controller: process " in text
    assert "sampler-0 works" in text or "sampler-0 waits for updates" in text
    assert "Nothing has moved" not in text
    assert re.search(r"[\d,]+ of 10,000,000 env steps", text)
    assert "rows lost 0, restarts 0" in text
    sampler = training.worker("sampler")
    sampler.suspend()
    time.sleep(1.5)
    text = serving(training)
    assert f"sampler-0 is stopped by a signal or a debugger (`kill -CONT {sampler.pid}`" in text
    assert re.search(r"learner waits for env steps \(replay ratio\) since [1-9]", text)
    assert "the run waits for sampler-0." in text
    assert re.search(r"evaluator waits for a policy to evaluate since", text)
    sampler.resume()
    training.process.send_signal(signal.SIGSTOP)
    try:
        text = serving(training)
    finally:
        training.process.send_signal(signal.SIGCONT)
    assert f"the controller (process {training.process.pid}) does not answer within 2 s: it is stopped" in text
    assert "env_steps_per_s" in text
    training.process.send_signal(signal.SIGINT)
    assert training.wait() == 130
    text = "\n".join(show(training.run_dir))
    assert "run: stopped" in text
    assert "SIGINT: writing a checkpoint and stopping" in text
    assert not (training.run_dir / SOCKET).exists()


def test_an_environment_that_hangs_is_named(start: Start) -> None:
    training = start(**ENDLESS, samplers=2, env_kwargs={"hang_at": 300})
    training.wait_for_steps(599 - 1)
    time.sleep(1.2)
    text = serving(training)
    assert re.search(r"sampler-0 in an environment step or reset since [1-9]", text)
    assert "the run waits for sampler-0 and sampler-1." in text
    training.process.send_signal(signal.SIGINT)
    assert training.wait() == 130
    assert "sampler-0 did not end in time" in training.text()


def test_a_run_that_was_killed_and_what_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is no run"):
        list(show(tmp_path))
    (tmp_path / "config.toml").write_text('algo = "sac"\nenv = "X-v0"\n')
    (tmp_path / SOCKET).touch()  # left by a killed controller
    text = "\n".join(show(tmp_path))
    assert "died" in text
    assert "it has written no numbers yet" in text
    (tmp_path / "config.toml").write_text("algo = [")
    with pytest.raises(CheckpointError, match="is broken"):
        list(show(tmp_path))


def test_shares_of_a_logged_worker_have_units(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('algo = "sac"\nenv = "Ant-v4"\n')
    tags = {"phase_draw": 0.001199, "wait_limiter": 0.6983, "private_bytes": 2**20, "restarts": 1}
    line = {"env_steps": 5, **{f"workers/learner/{tag}": value for tag, value in tags.items()}}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    assert "learner: phase_draw 0.1%, wait_limiter 69.8%, private 1 MiB, restarts 1" in list(show(tmp_path))


def test_the_verdict_is_silent_while_anything_moves() -> None:
    class Moving:
        env_steps_per_s, updates_per_s, workers = 1.0, 0.0, (worker(),)

    assert not list(verdict(Moving, {}, 1.0))  # type: ignore[arg-type]
