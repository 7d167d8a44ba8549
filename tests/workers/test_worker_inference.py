"""Samplers that ask an inference server: the same rows, exact counts, deaths on either side."""

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from rlz.config import run_config
from rlz.graph import upstream
from rlz.transport.stats import Stat
from rlz.workers.grouped import GroupedSampler
from rlz.workers.inference import InferenceServer
from rlz.workers.sampler import Sampler
from rlz.workers.serving_learner import ServingLearner
from support.harness import SAMPLER, Run, config

SERVER = 4
Make = Callable[..., Run]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    runs: list[Run] = []

    def build(**values: Any) -> Run:
        runs.append(Run(config(**{"inference": "central", **values}), tmp_path))
        return runs[-1]

    yield build
    for run in runs:
        run.streams.close()


def server(run: Run, worker: int = SERVER, incarnation: int = 0) -> InferenceServer:
    return InferenceServer(run.spec("inference", worker_id=worker, incarnation=incarnation), run.streams)


def sampler(run: Run, worker: int = SAMPLER, incarnation: int = 0) -> GroupedSampler:
    made = GroupedSampler(run.spec("sampler", worker_id=worker, incarnation=incarnation), run.streams)
    made.start()
    return made


def take_turns(asking: GroupedSampler, answering: InferenceServer) -> None:
    for turn in count():
        answering.step(0.0)
        if not asking.step(0.0):
            asking.close()
            return
        assert turn < 1000, "it stands still"


def rows(run: Run) -> list[dict[str, Any]]:
    return [run.rows(lane)[0] for lane in range(run.config.num_envs)]


def versions(run: Run) -> list[int]:
    return [int(word) >> 32 for lane in range(run.config.num_envs) for word in run.rows(lane)[1]]


def test_in_turns_the_rows_are_those_of_inline_inference(make: Make) -> None:
    options = {"total_timesteps": 60, "learning_starts": 0, "num_envs": 3}
    inline, central = make(inference="inline", **options), make(**options)
    for run in (inline, central):
        run.publish(scale=1.0)
    alone = Sampler(inline.spec("sampler"), inline.streams)
    alone.start()
    while alone.step(0.0):
        pass
    take_turns(sampler(central), server(central))
    for one, other in zip(rows(inline), rows(central), strict=True):
        assert len(one["obs"]) == 20
        for name, values in one.items():
            np.testing.assert_array_equal(values, other[name])


def test_a_learner_that_answers_makes_a_whole_run_with_its_samplers(make: Make) -> None:
    options = {"replay_ratio": 0.5, "batch_size": 8, "compile": False, "threads": 1, "checkpoint_every": 0.0}
    run = make(inference="learner", num_envs=3, **options)
    (run.run_dir / "checkpoints").mkdir()
    assert [node.role for node in run.job.graph.nodes if node.role == "inference"] == []
    learner = ServingLearner(run.spec("learner", worker_id=SERVER), run.streams.of(run.job.graph.sink))
    learner.start()
    asking = sampler(run)
    for turn in count():
        over = not asking.step(0.05)
        if not learner.step(0.0) and over:
            break
        assert turn < 10_000, "it stands still"
    for worker in (asking, learner):
        worker.close()
    assert (run.limiter.env_steps, run.limiter.updates) == (100, 45)
    assert sum(len(one["obs"]) for one in rows(run)) == 100
    assert max(versions(run)) > 1, "it answers with newer and newer parameters"


def test_what_ends_the_thread_of_a_learner_that_answers_ends_the_learner(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make(inference="learner", num_envs=2, compile=False, learning_starts=0)

    def broken(self: InferenceServer, count: int) -> None:
        raise ValueError("no such action")

    monkeypatch.setattr(InferenceServer, "_act", broken)
    learner = ServingLearner(run.spec("learner", worker_id=SERVER), run.streams.of(run.job.graph.sink))
    learner.start()
    asking = sampler(run)
    asking.step(0.0)
    learner._thread.join(20.0)
    with pytest.raises(ValueError, match="no such action"):
        learner.step(0.0)
    learner.close()
    asking.close()


@pytest.mark.parametrize("inference", ["central", "inline"])
def test_groups_make_exactly_the_steps_of_the_run(make: Make, inference: str) -> None:
    run = make(total_timesteps=40, learning_starts=17, num_envs=5, env_groups=3, inference=inference)
    run.publish(scale=1.0)
    if inference == "central":
        take_turns(sampler(run), server(run))
    else:
        alone = sampler(run)
        while alone.step(0.0):
            pass
    assert run.limiter.env_steps == sum(run.replay.committed()) == 40
    assert versions(run).count(0) == 17  # uniform: no parameters were used
    assert versions(run).count(1) == 23
    assert run.stat("sampler", Stat.POLICY_LAG_COUNT) == 23
    if inference == "central":
        assert run.stat("inference", Stat.ROWS_WRITTEN) == 23
        assert 0 < run.stat("inference", Stat.BATCHES) < 23


def test_rows_have_the_version_that_answered(make: Make) -> None:
    run = make(total_timesteps=20, learning_starts=0, num_envs=2)
    asking, answering = sampler(run), server(run)
    assert asking.step(0.0)
    assert answering.step(0.0)  # no parameters yet
    assert run.streams.inference.occupancy()["asked"] == 2
    run.publish()
    answering.step(0.0)
    run.publish()
    asking.step(0.0)
    assert versions(run) == [1, 1]
    asking.step(0.0)
    answering.step(0.0)
    asking.step(0.0)
    assert versions(run) == [1, 2, 1, 2]


def test_requests_of_a_dead_server_are_answered_by_the_next(make: Make) -> None:
    run = make(total_timesteps=30, learning_starts=0, num_envs=2, env_groups=2)
    run.publish(scale=1.0)
    asking, dead = sampler(run), server(run)
    asking.step(0.0)
    dead._server.take(dead._request, timeout=0.0)  # killed with the batch
    run.streams.reap(SERVER)
    take_turns(asking, server(run, worker=5, incarnation=1))
    assert run.limiter.env_steps == sum(run.replay.committed()) == 30


def test_a_dead_sampler_has_a_successor_that_makes_its_steps(make: Make) -> None:
    run = make(total_timesteps=30, learning_starts=0, num_envs=2)
    run.publish(scale=1.0)
    dead, answering = sampler(run), server(run)
    dead.step(0.0)  # killed while it waits for its answer
    answering.step(0.0)
    run.streams.reap(SAMPLER)
    take_turns(sampler(run, worker=6, incarnation=1), answering)
    assert run.limiter.env_steps == sum(run.replay.committed()) == 30


def test_a_stop_ends_both_while_they_wait(make: Make) -> None:
    run = make(total_timesteps=30, learning_starts=0)
    asking, answering = sampler(run), server(run)
    asking.step(0.0)
    run.limiter.stop()
    assert not asking.step(None)
    assert not answering.step(None)


def test_the_graph_has_the_server_before_the_samplers(make: Make) -> None:
    run = make(num_envs=2)
    assert [node.role for node in upstream(run.job.graph)] == ["inference", "sampler"]
    assert [field[0] for field in run.streams.inference.request] == ["obs"]
    assert [field[0] for field in run.streams.inference.answer] == ["action"]


def test_every_group_has_an_environment_unless_said_otherwise() -> None:
    assert run_config(env="Counting-v0", samplers=2, env_groups=3).num_envs == 6


def test_more_groups_than_environments_are_refused() -> None:
    with pytest.raises(
        ValidationError, match=r"--env-groups 3 is more than the 2 environments of a sampler.*num-envs 6"
    ):
        run_config(env="Counting-v0", samplers=2, num_envs=4, env_groups=3)
