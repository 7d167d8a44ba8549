"""Kill storms on whole runs: short ones with a learner without torch, and (marked kill) the long ones with SAC.

The long ones write their results to benches/results.
"""

import mmap
import time
import uuid
from pathlib import Path

import numpy as np
import pytest
import rows
from chaos import Chaos, chaos
from job import left_since, shared_files, write_result
from rollout_storm import Storm as RolloutStorm
from rollout_storm import learners_death
from rollout_storm import storm as rollout_storm
from storm import Storm, storm

from rlz._native import FLAG_FIRST


def test_killed_samplers_leave_exact_counts_and_whole_rows(tmp_path: Path) -> None:
    result = storm(Storm("sampler", 6.0, 1.0, replay_ratio=0.1, seed=1, fake=True, total=60_000), tmp_path / "storm")
    assert result["kills"] >= 1


def test_a_killed_evaluator_is_replaced(tmp_path: Path) -> None:
    result = storm(Storm("evaluator", 4.0, 1.0, replay_ratio=0.1, seed=1, fake=True, total=40_000), tmp_path / "storm")
    assert result["kills"] >= 1


def test_nothing_hangs_and_nothing_is_left_whatever_is_killed(tmp_path: Path) -> None:
    settings = Chaos(kills=15, life_s=2.0, total=8000, resume_every=2, seed=int(time.time()), fake=True)
    result = chaos(settings, tmp_path / "chaos", until=time.monotonic() + 40.0)
    assert sum(result["kills"].values()) >= 1


def test_the_check_of_rows_sees_a_torn_one() -> None:
    generator = np.random.default_rng(1)
    angle, speed = generator.uniform(-3, 3, 100), generator.uniform(-7, 7, 100)
    action = generator.uniform(-1, 1, (100, 1))
    new_speed = np.clip(speed + (15 * np.sin(angle) + 6 * action[:, 0]) * 0.05, -8, 8)
    new_angle = angle + 0.05 * new_speed
    values = {
        "obs": np.stack([np.cos(angle), np.sin(angle), speed], axis=1),
        "action": action,
        "next_obs": np.stack([np.cos(new_angle), np.sin(new_angle), new_speed], axis=1),
        "reward": -(angle**2 + 0.1 * speed**2 + 0.004 * action[:, 0] ** 2),
        "discount": np.full(100, 0.99),
    }
    whole = {name: column.astype(np.float32) for name, column in values.items()}
    meta = np.full(100, FLAG_FIRST, np.uint64)
    assert rows.torn(whole, meta) == 0
    for name in ("next_obs", "reward", "discount"):
        broken = {key: column.copy() for key, column in whole.items()}
        broken[name][7] += 1.0
        assert rows.torn(broken, meta) == 1, name
    meta[50] = 0  # says that it goes on where row 49 ended
    assert rows.torn(whole, meta) == 1


def test_shared_memory_of_others_is_not_left_over() -> None:
    before = shared_files()
    path = Path("/dev/shm") / f"rlz-test-{uuid.uuid4().hex}"
    path.write_bytes(bytes(4096))
    try:
        with path.open("r+b") as file, mmap.mmap(file.fileno(), 4096):
            assert path.name not in left_since(before)
        assert path.name in left_since(before)
    finally:
        path.unlink()


@pytest.mark.kill
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("role", ["sampler", "evaluator"])
def test_storm_of_a_minute(tmp_path: Path, role: str) -> None:
    settings = Storm(role, 60.0, 2.0, seed=1)
    result = storm(settings, tmp_path / "storm")
    write_result(f"reliability_storm_{role}", vars(settings), result, None)
    assert result["kills"] >= 15


@pytest.mark.kill
@pytest.mark.timeout(7200)
def test_two_hundred_kills(tmp_path: Path) -> None:
    settings = Chaos(kills=200, seed=1)
    result = chaos(settings, tmp_path / "chaos")
    write_result("reliability_chaos", vars(settings), result, None)
    assert sum(result["kills"].values()) >= 200


@pytest.mark.kill
def test_samplers_and_servers_of_a_run_on_rollouts_are_killed_and_its_learner_dies(tmp_path: Path) -> None:
    settings = RolloutStorm(seconds=30.0, every=1.5, seed=int(time.time()))
    assert sum(rollout_storm(settings, tmp_path / "storm")["kills"].values()) >= 3
    learners_death(settings, tmp_path / "death")
