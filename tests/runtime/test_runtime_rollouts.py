"""Whole runs of on-policy algorithms: serial mode repeats itself, goes on exactly, and equals one sampler process."""

from pathlib import Path
from typing import Any

import pytest

from rlz.config import run_config
from rlz.records.checkpoint import Checkpoint, newest_checkpoint
from rlz.runtime.resume import resume
from rlz.runtime.train import train


def run(folder: Path, name: str, steps: int, **values: Any) -> Path:
    given: dict[str, Any] = {"env": "CartPole-v1", "num_envs": 2, "n_steps": 16, "batch_size": 8, "n_epochs": 2}
    given |= {"hidden": (8,), "device": "cpu", "compile": False, "threads": 1, "eval_every": 0, "mode": "serial"}
    given |= {"algo": "ppo", "total_timesteps": steps, "runs_dir": str(folder), "name": name}
    assert train(run_config(**{**given, **values}), quiet=True) == 0
    return folder / name


def check_equal(one: Checkpoint, other: Checkpoint) -> None:
    assert one.learner.keys() == other.learner.keys()
    for name, tensor in one.learner.items():
        assert tensor.tobytes() == other.learner[name].tobytes(), name


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"samplers": 2},
        {"env": "Pendulum-v1", "target_kl": 0.01},
        {"algo": "appo", "env": "Pendulum-v1", "shared_network": True},
        {"env": "Pendulum-v1", "normalize_obs": True, "normalize_reward": True},
        {"algo": "appo", "normalize_obs": True, "normalize_reward": True, "env_groups": 2},
    ],
)
def test_n_and_n_steps_are_two_n_steps_bit_for_bit(tmp_path: Path, options: dict[str, Any]) -> None:
    """120 env steps are three rollouts and a part of the fourth."""
    whole = newest_checkpoint(run(tmp_path, "whole", 240, **options))
    parts = run(tmp_path, "parts", 120, **options)
    assert resume(parts, {"total_timesteps": 240}, quiet=True) == 0
    resumed = newest_checkpoint(parts)
    assert (resumed.env_steps, resumed.updates) == (whole.env_steps, whole.updates) == (240, 7 * 8)
    check_equal(whole, resumed)
    assert resumed.rng == whole.rng
    assert resumed.workers == whole.workers
    assert resumed.version == whole.version == 8


def test_groups_that_are_not_equally_far_go_on_exactly(tmp_path: Path) -> None:
    """Two of two environments each: after 122 steps the first has one more in its open segments than the second."""
    options = {"num_envs": 4, "env_groups": 2}
    whole = newest_checkpoint(run(tmp_path, "whole", 244, **options))
    parts = run(tmp_path, "parts", 122, **options)
    assert resume(parts, {"total_timesteps": 244}, quiet=True) == 0
    resumed = newest_checkpoint(parts)
    check_equal(whole, resumed)
    assert resumed.workers == whole.workers


def test_environments_that_are_not_equally_far_do_not_wait_for_each_other(tmp_path: Path) -> None:
    """After 121 steps the first of two has an open segment with a step more; both begin another one."""
    parts = run(tmp_path, "parts", 121)
    assert resume(parts, {"total_timesteps": 240}, quiet=True) == 0
    assert newest_checkpoint(parts).updates == 6 * 8  # 119 steps are three rollouts and a part


def test_one_sampler_process_learns_what_serial_mode_learns(tmp_path: Path) -> None:
    serial = newest_checkpoint(run(tmp_path, "serial", 160))
    process = newest_checkpoint(run(tmp_path, "process", 160, mode="async"))
    assert serial.updates == process.updates == 5 * 8
    check_equal(serial, process)
