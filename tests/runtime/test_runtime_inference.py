"""Runs with an inference server: killed workers on both sides."""

import random
import time
from collections.abc import Callable

import psutil
import pytest

from support.training import Training

Start = Callable[..., Training]
CENTRAL = {"inference": "central", "num_envs": 4, "env_groups": 2, "samplers": 2}


def test_a_killed_server_and_a_killed_sampler_are_replaced_and_the_count_is_exact(start: Start) -> None:
    training = start(**CENTRAL, total_timesteps=6000, env_kwargs={"truncate_after": 20, "sleep": 0.001})
    training.wait_for_steps(300)
    training.worker("inference").kill()
    training.wait_for_steps(600)
    training.worker("grouped").kill()
    assert training.wait() == 0, training.text()
    summary = training.summary()
    assert (summary["status"], summary["env_steps"], summary["restarts"]) == ("completed", 6000, 2)


@pytest.mark.kill
def test_a_storm_of_kills_leaves_nothing_stuck(start: Start) -> None:
    """Each worker has time for a thousand steps between its deaths; else the run would be given up, rightly."""
    training = start(**CENTRAL, total_timesteps=10**9, env_kwargs={"truncate_after": 20})
    kills = 0
    done = 0
    until = time.monotonic() + 60
    while time.monotonic() < until:
        training.wait_for_steps(done + 5000)
        done = training.metrics()[-1]["env_steps"]
        try:
            training.worker(random.choice(["inference", "grouped"])).kill()
            kills += 1
        except psutil.NoSuchProcess:
            continue
    training.wait_for_steps(done + 5000)
    assert kills > 10
    training.process.terminate()
    training.wait()
    print(f"{kills} kills, {training.metrics()[-1]['env_steps']:,} env steps, {training.text().count('restarted')}")
