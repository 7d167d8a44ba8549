"""A sampler of an algorithm that learns from segments: what arrives in the trajectory queue."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlz import envs
from rlz.answers import Answers, Rollout
from rlz.config.model import ask
from rlz.errors import ConfigError
from rlz.standard import standard
from rlz.transport.stats import Stat
from rlz.transport.streams import Origin
from rlz.workers.job import Job, place
from rlz.workers.sampler import Sampler
from support import fake_envs  # noqa: F401  (registers its environments)
from support.harness import SAMPLER, config

LENGTH, ENVS = 5, 2


class Run:
    """Streams of a run on segments that keep log_prob, and its sampler."""

    def __init__(self, run_dir: Path, starts: int = 0, **env: Any) -> None:
        values = config(total_timesteps=60, num_envs=ENVS, env_kwargs=env)
        env_spec = envs.inspect_env(values)
        policy = replace(ask(values, env_spec).policy, extras=(("log_prob", "f32", ()),))
        data = Rollout((*env_spec.segment_fields(), *policy.extras), LENGTH, batch=2, starts=starts)
        answers = Answers(data, policy, ("loss",))
        graph = standard(answers, values.total_timesteps, envs=ENVS, evaluates=False)
        self.job = Job(values, env_spec, answers, graph, place(values, graph))
        self.streams = self.job.streams(Origin(run_id=1))
        self.consumer = self.streams.queue.consumer(worker=9)
        self.publisher = self.streams.parameters.publisher(worker=2)
        at = next(one for one in self.job.places if one.role == "sampler")
        self.slot = at.slot
        self.sampler = Sampler(
            self.job.spec(replace(at, lanes=(0, 1)), worker_id=SAMPLER, run_dir=str(run_dir)), self.streams
        )
        self.publish()
        self.sampler.start()

    def publish(self) -> None:
        numbers = np.random.default_rng(0).standard_normal(self.streams.parameters.nbytes // 4, np.float32)
        self.publisher.publish(numbers.view(np.uint8), env_steps=0, updates=0)

    def pop(self) -> tuple[dict[str, Any], int, int]:
        with self.consumer.pop(timeout=0.0) as segment:
            names = segment.keys()
            return {name: segment[name].copy() for name in names}, segment.note >> 32, segment.note & 0xFFFF


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    made = Run(tmp_path, truncate_after=3)
    yield made
    made.sampler.close()
    made.streams.close()


def test_segments_of_each_lane_are_consecutive_and_carry_what_the_policy_gave(run: Run) -> None:
    steps: dict[int, list[float]] = {0: [], 1: []}
    for _ in range(4):
        for _ in range(LENGTH):
            assert run.sampler.step(0.0)
        for _ in range(ENVS):
            fields, version, lane = run.pop()
            assert version == 1
            steps[lane] += fields["reward"].tolist()
            assert (fields["obs"][1:, 1] == np.where(fields["truncated"][:-1], 0, fields["next_obs"][:-1, 1])).all()
            assert (fields["next_obs"][fields["truncated"]][:, 1] == 3).all()  # the true final observation
            assert not fields["terminated"].any()
            assert np.isfinite(fields["log_prob"]).all()
            assert len(np.unique(fields["log_prob"])) == LENGTH
    expected = [1.0, 2.0, 3.0] * 7
    assert steps == {0: expected[:20], 1: expected[:20]}
    assert run.streams.limiter.env_steps == 40


def test_a_full_queue_holds_the_sampler_which_says_so_and_ends_with_the_run(run: Run) -> None:
    slots = run.streams.queue.slots
    for _ in range(LENGTH * (slots // ENVS + 1)):
        assert run.sampler.step(0.0)
    before = run.streams.limiter.env_steps
    assert run.sampler.step(0.02)  # waited in vain
    stats = run.streams.stats.read()[run.slot]
    assert run.streams.limiter.env_steps == before
    assert stats[Stat.WAIT_LIMITER_S] > 0.01
    run.pop()
    run.pop()
    assert run.sampler.step(0.0)
    assert run.streams.limiter.env_steps == before + ENVS
    run.streams.limiter.stop()
    assert not run.sampler.step(None)


def test_segments_that_keep_log_prob_cannot_begin_with_uniform_actions(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="segments keep log_prob, which uniform actions have not: starts is 7"):
        Run(tmp_path, starts=7)
