"""The learner on in-process streams."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from rlz._native import PrioritizedSampler
from rlz.errors import NonFiniteError
from rlz.records.checkpoint import load_checkpoint, newest_checkpoint
from rlz.transport.stats import Stat, metric
from rlz.workers import learner as module
from support.learner import OBS, Run, config


@pytest.mark.parametrize("mode", ["serial", "async"])
def test_a_run_from_first_publication_to_last_checkpoint(tmp_path: Path, mode: str) -> None:
    run = Run(tmp_path, config(mode=mode, learning_rate="lin_1e-2", publish_every=4))
    learner = run.learner()
    learner.start()
    parameters, limiter = run.streams.parameters, run.streams.limiter
    assert parameters.version() == 1
    learner._saving.wait()
    first = newest_checkpoint(tmp_path)
    assert (first.env_steps, first.updates, first.version) == (0, 0, 1), "whenever it dies it can be resumed"
    assert learner.step(0.0), "nothing to do yet is not the end"
    assert limiter.updates == 0
    run.sample(40)
    while learner.step(0.0):
        assert limiter.updates <= 30
    learner.close()
    assert limiter.updates == 30
    assert parameters.version() == 1 + 30 // 4 + 1, "every 4 updates, and the last ones"

    board = run.streams.stats.read()[0]
    assert board[Stat.UPDATES] == 30
    assert board[Stat.CHECKPOINTS] == 2
    assert board[metric(0)] > 0
    assert board[Stat.THREADS] == 1
    assert board[Stat.READY_S] > 0
    assert board[Stat.LEARNING_RATE] == 0.0, "linear to zero"

    checkpoint = newest_checkpoint(tmp_path)
    assert checkpoint.updates == 30
    assert checkpoint.learner["updates"] == 30
    assert checkpoint.env_steps == 40
    assert {"replay", "learner"} <= checkpoint.rng.keys()
    published = np.zeros(parameters.nbytes, np.uint8)
    parameters.subscriber(worker=5).read(published)
    actor = [checkpoint.learner[name].ravel() for name, _, _ in parameters.manifest]
    np.testing.assert_array_equal(np.concatenate(actor), published.view(np.float32))


def test_what_an_algorithm_does_not_measure_has_no_number(tmp_path: Path) -> None:
    run = Run(tmp_path, config(algo="td3", policy_delay=4))
    learner = run.learner()
    learner.start()
    run.sample(20)
    for _ in range(3):
        learner.step(None)
    learner._flush(0.0)
    board = run.streams.stats.read()[0]
    critic_loss, actor_loss = metric(0), metric(1)
    assert run.streams.stats.names[critic_loss:] == ["critic_loss", "actor_loss", "q_value"]
    assert board[critic_loss] > 0
    assert np.isnan(board[actor_loss])
    learner.step(None)  # the actor's turn
    learner._flush(0.0)
    newest = run.streams.stats.read()[0][actor_loss]
    assert np.isfinite(newest)
    learner.step(None)
    learner._flush(0.0)
    assert run.streams.stats.read()[0][actor_loss] == newest, "the newest there is"
    learner.close()


def test_serial_learners_with_one_seed_agree_bit_for_bit(tmp_path: Path) -> None:
    states = []
    for index, seed in enumerate((1, 1, 2)):
        folder = tmp_path / str(index)
        folder.mkdir()
        run = Run(folder, config(mode="serial", seed=seed))
        learner = run.learner()
        learner.start()
        run.sample(40)
        while learner.step(0.0):
            pass
        states.append({name: tensor.clone() for name, tensor in learner.state_dict().items()})
        learner.close()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert not torch.equal(states[0]["actor.0.weight"], states[2]["actor.0.weight"])


@pytest.mark.parametrize("mode", ["serial", "async"])
def test_priorities_follow_the_td_errors(tmp_path: Path, mode: str) -> None:
    found = []
    for index in range(2):
        folder = tmp_path / str(index)
        folder.mkdir()
        run = Run(folder, config(mode=mode, prioritized=True, priority_beta=0.5, buffer_size=30))
        learner = run.learner()
        learner.start()
        run.sample(40)
        while learner.step(0.0):
            pass
        learner.close()
        sampler = learner._updates.rows  # type: ignore[attr-defined]
        assert isinstance(sampler, PrioritizedSampler)
        assert sampler.beta == 1.0, "env steps are at the total"
        assert run.streams.stats.read()[0][Stat.PRIORITY_BETA] == 1.0
        assert run.streams.stats.read()[0][Stat.PRIORITIES_STALE] == sampler.stale == 0
        saved = newest_checkpoint(folder).priorities
        assert saved is not None
        first, _, weights = sampler.weights(0)
        np.testing.assert_array_equal(saved["weights"], weights)
        assert (first, len(weights)) == (11, 30)
        assert len(set(weights.tolist())) > 20, "nearly every row has been drawn"
        found.append({name: tensor.clone() for name, tensor in learner.state_dict().items()})
    if mode == "serial":
        assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


def test_resume_goes_on_where_it_was(tmp_path: Path) -> None:
    run = Run(tmp_path, config())
    learner = run.learner()
    learner.start()
    run.sample(40)
    while learner.step(None):
        pass
    learner.close()
    saved = newest_checkpoint(tmp_path)
    other = Run(tmp_path, config()).learner(resume=str(saved.path), incarnation=1)
    for name, tensor in learner.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name]), name
    assert other._updates.trainer.noise_state.hex() == saved.rng["learner"]


def test_periodic_checkpoint_is_one_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(tmp_path, config(checkpoint_every=1e-6))
    learner = run.learner()
    learner.start()
    run.sample(20)
    for _ in range(6):
        learner.step(None)
    learner._saving.wait()
    saved = newest_checkpoint(tmp_path)
    assert saved.learner["updates"] == saved.updates > 0
    run.streams.limiter.stop()
    assert not learner.step(None)
    learner.close()
    assert newest_checkpoint(tmp_path).updates == run.streams.limiter.updates


def test_a_checkpoint_is_written_when_it_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "METRICS_S", 0.0)
    run = Run(tmp_path, config(checkpoint_every=0))
    learner = run.learner()
    learner.start()
    run.sample(20)
    for _ in range(3):
        learner.step(None)
    learner._saving.wait()
    assert newest_checkpoint(tmp_path).updates == 0
    run.streams.ask_for_checkpoint()
    for _ in range(3):
        learner.step(None)
    learner._saving.wait()
    assert newest_checkpoint(tmp_path).updates == 4
    learner.close()


@pytest.mark.parametrize("prioritized", [False, True])
def test_updates_are_granted_in_launches_and_counted_exactly(tmp_path: Path, prioritized: bool) -> None:
    launch = {"updates_per_launch": 8, "ratio_slack": None}
    run = Run(tmp_path, config(prioritized=prioritized, **launch))
    learner, limiter = run.learner(), run.streams.limiter
    learner.start()
    granted = []
    while True:
        run.sample(1000)  # as far as the ratio allows
        before = learner._granted
        going = learner.step(None)
        granted.append(learner._granted + 1 if before == 0 and going else 0)
        line = max(0, limiter.env_steps - 10)
        assert abs(limiter.updates - line) <= 8
        if not going:
            break
    assert max(granted) == 8, "a whole launch at once"
    assert limiter.updates == 30
    learner.close()
    saved = newest_checkpoint(tmp_path)
    assert saved.updates == saved.learner["updates"] == 30
    if prioritized:
        assert run.streams.stats.read()[0][Stat.PRIORITIES_STALE] == 0
        assert saved.priorities is not None
        assert len(set(saved.priorities["weights"].tolist())) > 20, "each update writes the priorities of its rows"


def test_no_checkpoint_within_a_launch(tmp_path: Path) -> None:
    run = Run(tmp_path, config(checkpoint_every=1e-6, updates_per_launch=4))
    learner = run.learner()
    learner.start()
    run.sample(18)
    for _ in range(8):
        learner.step(None)
        learner._saving.wait()
        folders = list((tmp_path / "checkpoints").glob("step-*"))
        if folders:
            assert newest_checkpoint(tmp_path).updates % 4 == 0
    assert newest_checkpoint(tmp_path).updates == 8
    learner.close()


def test_stop_ends_with_a_checkpoint(tmp_path: Path) -> None:
    run = Run(tmp_path, config())
    learner = run.learner()
    learner.start()
    run.sample(15)
    learner.step(None)
    run.streams.limiter.stop()
    assert not learner.step(None)
    learner.close()
    assert load_checkpoint(tmp_path / "checkpoints" / "latest").updates == 1


def test_a_number_that_is_not_finite_stops_the_run_and_is_dumped(tmp_path: Path) -> None:
    run = Run(tmp_path, config())
    learner = run.learner()
    learner.start()
    run.sample(10)
    run.sample(1, reward=float("inf"))
    before = {name: tensor.clone() for name, tensor in learner.state_dict().items()}

    def train() -> None:
        for _ in range(200):
            learner.step(None)
            before.update({name: tensor.clone() for name, tensor in learner.state_dict().items()})
            run.sample(1)

    with pytest.raises(NonFiniteError, match=r"update \d+: critic_loss is not finite.*nonfinite\.safetensors"):
        train()
    learner.close()
    assert all(torch.equal(before[name], tensor) for name, tensor in learner.state_dict().items())
    dump = load_file(tmp_path / module.NONFINITE_FILE)
    assert np.isinf(dump["batch.reward"]).any()
    np.testing.assert_array_equal(dump["state.actor.0.weight"], before["actor.0.weight"].numpy())
    assert newest_checkpoint(tmp_path).updates == 0, "the one from before all updates"


@pytest.mark.parametrize("dtype", ["uint8", "float64", "int16", "float16"])
def test_observations_of_other_types_are_cast_on_the_device(tmp_path: Path, dtype: str) -> None:
    run = Run(tmp_path, config(), obs_dtype=dtype)
    learner = run.learner()
    learner.start()
    run.sample(11)
    batch = learner._updates.batches.next(5.0)  # type: ignore[attr-defined]
    assert batch is not None
    assert batch.obs.dtype == torch.float32
    assert batch.obs.shape == (8, OBS)
    rows, meta = np.zeros((11, run.streams.replay.stride), np.uint8), np.zeros(11, np.uint64)
    run.streams.replay.read_rows(0, 1, rows, meta)
    (_, _, _, offset) = next(field for field in run.streams.replay.fields if field[0] == "next_obs")
    size = np.dtype(dtype).itemsize * OBS
    stored = np.ascontiguousarray(rows[:, offset : offset + size]).view(dtype).astype(np.float32)
    for row in batch.next_obs.numpy():
        assert (stored == row).all(1).any()
    learner.step(None)
    assert run.streams.limiter.updates == 1
    learner.close()
