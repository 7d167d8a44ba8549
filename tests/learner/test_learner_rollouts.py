"""The learner of an on-policy algorithm on in-process streams: what it takes, drops, orders and keeps."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from rlz.config import run_config
from rlz.envs.spaces import EnvSpec
from rlz.learning.rollout_rows import RolloutRows
from rlz.records.checkpoint import newest_checkpoint
from rlz.transport.stats import Stat
from rlz.transport.streams import Origin
from rlz.workers.job import Job
from rlz.workers.learner import Learner
from support.rollouts import made as made_ppo
from support.rollouts import make_rows

ENVS, LENGTH, EPOCHS, BATCH = 2, 8, 3, 4
PER_EPOCH = ENVS * LENGTH // BATCH


def spaces() -> EnvSpec:
    return EnvSpec("Test-v0", (2, 2), "uint8", (), "int64", (0.0,), (2.0,), None)


class Run:
    """A run whose samplers are the test."""

    def __init__(self, run_dir: Path, **values: Any) -> None:
        given: dict[str, Any] = {
            "algo": "ppo",
            "env": "Test-v0",
            "num_envs": ENVS,
            "n_steps": LENGTH,
            "n_epochs": EPOCHS,
        }
        given |= {"batch_size": BATCH, "hidden": (8,), "device": "cpu", "compile": False, "eval_every": 0}
        given |= {"total_timesteps": 1000, "checkpoint_every": 0.0, "mode": "serial", "learning_rate": "lin_1e-3"}
        self.config = run_config(**{**given, **values})
        self.run_dir = run_dir
        (run_dir / "checkpoints").mkdir(exist_ok=True)
        self.job = Job.of(self.config, spaces())
        self.streams = self.job.streams(Origin(run_id=7))
        self.producer = self.streams.queue.producer(worker=9)
        self.tickets = np.zeros(ENVS, np.int64)

    def learner(self, **values: Any) -> Learner:
        given: dict[str, Any] = {"worker_id": 2, "run_dir": str(self.run_dir), "parent_pid": 0}
        return Learner(self.job.spec(self.job.places[0], **{**given, **values}), self.streams)

    def put(self, lane: int, version: int = 1, seed: int | None = None) -> None:
        """A segment whose numbers follow from its lane, or the seed."""
        draw = np.random.default_rng(lane if seed is None else seed)
        ends = draw.random(LENGTH) < 0.2
        self.producer.put(
            note=version << 32 | lane,
            timeout=0.0,
            obs=draw.integers(0, 9, (LENGTH, 2, 2), np.uint8),
            next_obs=draw.integers(0, 9, (LENGTH, 2, 2), np.uint8),
            action=draw.integers(0, 3, (LENGTH, 1)),
            reward=draw.standard_normal(LENGTH, np.float32),
            terminated=ends,
            truncated=~ends & (draw.random(LENGTH) < 0.2),
            log_prob=-draw.random(LENGTH, np.float32),
        )

    def step(self, steps: int) -> None:
        """Env steps, as the limiter counts them."""
        for _ in range(steps // ENVS):
            self.streams.limiter.acquire_steps([0, 1], self.tickets, worker=9, timeout=0.0)
            for lane in (0, 1):
                self.streams.limiter.complete_step(lane)

    def stat(self, stat: int) -> float:
        return float(self.streams.stats.read()[0][stat])


def rollout(learner: Learner, limiter: Any) -> None:
    for _ in range(EPOCHS):
        before = limiter.updates
        assert learner.step(0.0)
        assert limiter.updates == before + PER_EPOCH


def test_a_rollout_is_learned_from_in_epochs_and_then_published(tmp_path: Path) -> None:
    run = Run(tmp_path)
    learner, limiter = run.learner(), run.streams.limiter
    learner.start()
    first = learner.state_dict()["actor.0.weight"].clone()
    run.put(0)
    for _ in range(3):
        assert learner.step(0.0), "half a rollout is not the end"
    assert limiter.updates == 0
    run.put(1)
    rollout(learner, limiter)
    assert not torch.equal(first, learner.state_dict()["actor.0.weight"])
    assert run.streams.parameters.version() == 2, "once for the whole rollout"
    assert learner.step(0.0)
    assert limiter.updates == EPOCHS * PER_EPOCH == int(learner.state_dict()["updates"])
    learner._flush(0.0)
    assert run.stat(Stat.FRAMES) == EPOCHS * ENVS * LENGTH
    assert run.stat(Stat.SEGMENT_LAG) == 0.0
    assert np.isnan(run.stat(Stat.ROW_USES)), "of others"
    learner.close()


def test_the_order_in_which_segments_come_does_not_matter(tmp_path: Path) -> None:
    found = []
    for index, order in enumerate(((0, 1), (1, 0))):
        folder = tmp_path / str(index)
        folder.mkdir()
        run = Run(folder)
        learner = run.learner()
        learner.start()
        for lane in order:
            run.put(lane)
        rollout(learner, run.streams.limiter)
        found.append({name: tensor.clone() for name, tensor in learner.state_dict().items()})
        learner.close()
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


def test_segments_that_are_too_old_are_dropped_and_counted(tmp_path: Path) -> None:
    run = Run(tmp_path, max_policy_lag=1)
    learner, limiter = run.learner(), run.streams.limiter
    learner.start()
    for version in (1, 2):
        for lane in (0, 1):
            run.put(lane, version)
        rollout(learner, limiter)
    assert run.streams.parameters.version() == 3
    run.put(0, 1)
    run.put(1, 2)
    learner.step(0.0)
    run.put(0, 1)
    learner.step(0.0)
    run.put(0, 3)
    rollout(learner, limiter)
    learner._flush(0.0)
    assert run.stat(Stat.SEGMENTS_DROPPED) == 2
    assert run.stat(Stat.SEGMENT_LAG) == 0.5, "one is of the newest version, one of that before"
    learner.close()


def test_segments_of_any_age_are_used_where_nothing_bounds_it(tmp_path: Path) -> None:
    run = Run(tmp_path, algo="appo", gamma=0.9)
    learner = run.learner()
    learner.start()
    for _ in range(3):
        for lane in (0, 1):
            run.put(lane, 1)
        rollout(learner, run.streams.limiter)
    learner._flush(0.0)
    assert (run.stat(Stat.SEGMENTS_DROPPED), run.stat(Stat.SEGMENT_LAG)) == (0, 2)
    learner.close()


def test_a_checkpoint_keeps_the_segments_of_half_a_rollout(tmp_path: Path) -> None:
    states, noise = [], b""
    for index in range(2):
        folder = tmp_path / str(index)
        folder.mkdir()
        run = Run(folder)
        learner = run.learner()
        learner.start()
        run.put(1)
        run.step(ENVS * LENGTH)
        learner.step(0.0)
        if index:
            run.streams.limiter.stop()
            assert not learner.step(0.0)
            learner.close()
            saved = newest_checkpoint(folder)
            assert saved.learner["rollout.obs"].shape == (1, LENGTH, 2, 2)
            run = Run(folder)
            run.step(ENVS * LENGTH)
            learner = run.learner(resume=str(saved.path), incarnation=1)
            learner.start()
        run.put(0)
        if index:  # a resumed run draws on; here with another incarnation's numbers
            learner._updates.trainer.noise_state = noise
        else:
            noise = learner._updates.trainer.noise_state
        rollout(learner, run.streams.limiter)
        states.append({name: tensor.clone() for name, tensor in learner.state_dict().items()})
        learner.close()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_the_last_whole_rollout_is_learned_from_and_the_rest_is_left(tmp_path: Path) -> None:
    run = Run(tmp_path, total_timesteps=3 * ENVS * LENGTH - 2, mode="async", threads=1)
    learner, limiter = run.learner(), run.streams.limiter
    learner.start()
    for _ in range(2):
        run.step(ENVS * LENGTH)
        for lane in (0, 1):
            run.put(lane, run.streams.parameters.version())
        rollout(learner, limiter)
    run.step(ENVS * LENGTH - 2)
    run.put(0, 3)
    assert not learner.step(None)
    learner.close()
    assert limiter.updates == 2 * EPOCHS * PER_EPOCH
    saved = newest_checkpoint(tmp_path)
    assert (saved.updates, saved.env_steps) == (limiter.updates, limiter.total_timesteps)


def test_rows_are_drawn_once_in_an_epoch_and_keep_their_bits() -> None:
    algorithm = made_ppo(choices=(3, 5))
    prepared = make_rows(algorithm, 24)
    prepared = prepared._replace(**{
        name: tensor.float() for name, tensor in prepared._asdict().items() if tensor.is_floating_point()
    }, rollout=torch.arange(24) + 2**40)  # fmt: skip
    rows = RolloutRows(prepared, 24, torch.device("cpu"))
    rows.take(prepared)
    indices = torch.zeros(4, 6, dtype=torch.int64)
    draw = torch.Generator().manual_seed(1)
    seen = []
    for _ in range(2):
        rows.draw(indices, draw)
        assert sorted(indices.flatten().tolist()) == list(range(24))
        seen.append(indices.clone())
        for batch in map(rows.gather, indices):  # each is valid until the next
            at = batch.rollout - 2**40
            for name, tensor in batch._asdict().items():
                assert torch.equal(tensor, getattr(prepared, name)[at]), name
    assert not torch.equal(*seen), "another order in the next epoch"
    drawn, given = (
        [(tuple(t.shape), t.stride(), t.dtype, t.storage_offset()) for t in rows.gather(indices[0])],
        list(rows.layout(6)),
    )
    assert drawn == given
