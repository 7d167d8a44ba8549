"""Samplers of synchronous learning: a segment has one version, and the next one waits for another."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlz import envs
from rlz.config import run_config
from rlz.transport.streams import Origin
from rlz.workers.job import Job
from rlz.workers.sampler import Sampler

LENGTH, ENVS = 4, 2


class Run:
    """Streams of a PPO run, one sampler, and the test as its learner."""

    def __init__(self, run_dir: Path, **values: Any) -> None:
        given: dict[str, Any] = {"algo": "ppo", "env": "support.fake_envs:Counting-v0", "num_envs": ENVS}
        given |= {"n_steps": LENGTH, "batch_size": LENGTH, "hidden": (8,), "eval_every": 0, "total_timesteps": 1000}
        self.config = run_config(**{**given, **values})
        self.run_dir = run_dir
        self.job = Job.of(self.config, envs.inspect_env(self.config))
        self.streams = self.job.streams(Origin(run_id=1))
        self.consumer = self.streams.queue.consumer(worker=9)
        self.publisher = self.streams.parameters.publisher(worker=2)

    def sampler(self, worker: int = 3, incarnation: int = 0) -> Sampler:
        at = next(one for one in self.job.places if one.role == "sampler")
        spec = self.job.spec(at, worker_id=worker, run_dir=str(self.run_dir), incarnation=incarnation)
        made = Sampler(spec, self.streams)
        made.start()
        return made

    def publish(self) -> None:
        numbers = np.random.default_rng(0).standard_normal(self.streams.parameters.nbytes // 4, np.float32)
        self.publisher.publish(numbers.view(np.uint8), env_steps=0, updates=0)

    def pop(self) -> list[tuple[int, int]]:
        """Version and lane of every segment that is there."""
        found = []
        while self.streams.queue.occupancy()["full"]:
            with self.consumer.pop(timeout=0.0) as segment:
                found.append((segment.note >> 32, segment.note & 0xFFFF))
        return found


def test_an_environment_begins_a_segment_with_a_version_that_it_has_not_acted_with(tmp_path: Path) -> None:
    run = Run(tmp_path)
    sampler = run.sampler()
    for _ in range(3):
        assert sampler.step(0.0)
    assert run.streams.limiter.env_steps == 0, "there is no version yet"
    for version in (1, 2, 3):
        run.publish()
        for _ in range(2 * LENGTH):
            assert sampler.step(0.0)
        assert run.pop() == [(version, 0), (version, 1)]
        assert run.streams.limiter.env_steps == version * LENGTH * ENVS, "each made one segment, and waits"
    sampler.close()


def test_a_successor_begins_at_once_and_a_state_remembers(tmp_path: Path) -> None:
    run = Run(tmp_path)
    sampler = run.sampler()
    run.publish()
    for _ in range(LENGTH):
        sampler.step(0.0)
    state = sampler.state()
    sampler.close()
    assert run.pop() == [(1, 0), (1, 1)]
    successor = run.sampler(worker=4, incarnation=1)
    for _ in range(LENGTH):
        assert successor.step(0.0)
    assert run.pop() == [(1, 0), (1, 1)]
    successor.close()
    resumed = run.sampler(worker=5)
    resumed.restore(state)
    resumed.step(0.0)
    assert resumed._recorder.open == 0, "its segments of this version were made before"
    resumed.close()


def test_environments_that_are_not_as_far_begin_together(tmp_path: Path) -> None:
    """Else one would wait for the version that comes when the other is as far."""
    run = Run(tmp_path)
    sampler = run.sampler()
    run.publish()
    for _ in range(2):
        sampler.step(0.0)
    state = sampler.state()
    state["segments"][1]["length"] = 1
    state["segments"][1]["fields"] = {
        name: text[: len(text) // 2] for name, text in state["segments"][1]["fields"].items()
    }
    sampler.close()
    resumed = run.sampler(worker=4, incarnation=1)
    resumed.restore(state)
    assert resumed._recorder.open == 0
    run.publish()
    for _ in range(LENGTH):
        resumed.step(0.0)
    assert run.pop() == [(2, 0), (2, 1)]
    resumed.close()


@pytest.mark.parametrize(("lag", "rollouts"), [(None, 1), (1, 1), (3, 2)])
def test_others_begin_what_the_queue_has_places_for(tmp_path: Path, lag: int | None, rollouts: int) -> None:
    run = Run(tmp_path, algo="appo", max_policy_lag=lag)
    sampler = run.sampler()
    run.publish()
    for _ in range(5 * LENGTH):
        assert sampler.step(0.0)
    assert run.streams.queue.slots == rollouts * ENVS
    assert run.streams.limiter.env_steps == rollouts * LENGTH * ENVS
    assert run.pop() == [(1, 0), (1, 1)] * rollouts
    sampler.close()
