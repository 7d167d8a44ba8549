"""Every adapter does its work in a short measurement, where its library is installed (rlz bench --setup-peers)."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlz.bench import inference, replay, score, train, transport, updates
from rlz.bench.environments import PEERS, installed_peers
from rlz.bench.result import Job
from rlz.bench.train import TrainSettings, Variant
from rlz.errors import RlzError

SETTINGS = TrainSettings(env="Pendulum-v1", seconds=0.5, hidden=(32, 32), batch_size=32, buffer_size=10_000)
CASES = [(name, workload) for name, peer in PEERS.items() for workload in peer.workloads]


@pytest.mark.oracle
@pytest.mark.timeout(400)
@pytest.mark.parametrize(("name", "workload"), CASES, ids=lambda value: str(value))
def test_an_adapter_measures(name: str, workload: str, tmp_path: Path) -> None:
    if name not in installed_peers():
        pytest.skip(f"{name} is not installed: rlz bench --setup-peers --peers {name}")
    if not {"sac"} & set(PEERS[name].algos):
        pytest.skip(f"{name} has PPO alone, which the next test is about")
    variant = Variant(1, PEERS[name].num_envs[0])
    if workload == "score":
        settings = replace(SETTINGS, seconds=15.0)
        versions = score.run_peer(name, settings, 2, tmp_path)
        points = score.play_copies(settings, score.from_peer(tmp_path))
        assert points[-1]["env_steps"] > points[0]["env_steps"]
        assert all(-2000.0 < point["mean"] < 0.0 for point in points)
        assert versions[name]
        return
    if workload in ("train", "sampling"):
        found = train.measure_peer(name, variant, SETTINGS, workload)
        assert found["env_steps_per_s"] > 1.0
        if workload == "train":
            assert 0.5 < found["ratio"] <= 1.5
            assert 0.0 < found["first_env_step_s"] <= found["first_update_s"]
        assert "missing" not in found["versions"].values()
        return
    for outcome in (job.run(0) for job in jobs(name, workload)):
        figures = {metric: value for metrics in outcome.metrics.values() for metric, value in metrics.items()}
        assert figures
        assert all(value > 0.0 for value in figures.values())


def jobs(name: str, workload: str) -> list[Job]:
    settings, made = SETTINGS, {
        "replay": lambda: replay.workload("Pendulum-v1", 0.5, [name], quick=True),
        "transport": lambda: transport.workload(0.5, [name], quick=True),
        "update": lambda: updates.workload(settings, [name], 1, quick=True),
        "inference": lambda: inference.workload(settings, [name]),
    }  # fmt: skip
    return [job for job in made[workload]().jobs if job.name.startswith(name)][:1]


@pytest.mark.oracle
@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", [name for name, peer in PEERS.items() if "ppo" in peer.algos])
def test_an_adapter_measures_ppo(name: str) -> None:
    if name not in installed_peers():
        pytest.skip(f"{name} is not installed: rlz bench --setup-peers --peers {name}")
    settings = replace(SETTINGS, env="CartPole-v1", algo="ppo")
    (variant,) = train.variants(name, 1, on_policy=True)
    assert train.measure_peer(name, variant, settings, "train")["env_steps_per_s"] > 10.0


def test_copies_of_a_peer_are_packed_as_rlz_publishes_its_own(tmp_path: Path) -> None:
    """One program plays all: what a torch module computes, rlz's policy computes from its packed copy."""
    from rlz.acting import make_policy
    from rlz.config import resolve
    from rlz.config.model import ask
    from rlz.envs import inspect_env

    rng, sizes = np.random.default_rng(1), (3, 32, 32, 2)
    layers = [
        (rng.normal(0, 0.3, (out, into)).astype(np.float32), rng.normal(0, 0.3, out).astype(np.float32))
        for into, out in pairwise(sizes)
    ]
    arrays = {f"weight_{n}": weight for n, (weight, _) in enumerate(layers)}
    arrays |= {f"bias_{n}": bias for n, (_, bias) in enumerate(layers)}
    np.savez(tmp_path / "0001.npz", seconds=2.5, env_steps=70, **arrays)
    ((point, packed),) = score.from_peer(tmp_path)
    assert point == {"seconds": 2.5, "env_steps": 70.0}
    config = resolve("sac", "Pendulum-v1", {"hidden": (32, 32)})
    spec = inspect_env(config, on_note=lambda _: None)
    policy = make_policy(ask(config, spec).policy, np.random.SeedSequence(0))
    policy.load(packed)
    obs = rng.normal(size=(5, 3)).astype(np.float32)
    out = np.zeros((5, 1), np.float32)
    policy.act(obs, out, deterministic=True)
    hidden = obs
    for weight, bias in layers[:-1]:
        hidden = np.maximum(hidden @ weight.T + bias, 0.0)
    mean = np.tanh(hidden @ layers[-1][0].T + layers[-1][1])[:, :1]
    assert np.allclose(out, mean, atol=1e-5)


def test_a_score_is_reached_when_the_next_policy_has_it_too() -> None:
    means = [-900.0, -100.0, -800.0, -150.0, -140.0, -120.0]
    points = [{"seconds": float(n), "env_steps": 100.0 * n, "mean": mean} for n, mean in enumerate(means)]
    there = score.reached(points, -180.0)
    assert there is not None
    assert there["seconds"] == 3.0
    settings = TrainSettings(env="Pendulum-v1", seconds=60.0)
    found = score.outcome("rlz", points, settings, -180.0)
    assert found.metrics["rlz"] == {
        "seconds_to_score": 3.0,
        "env_steps_to_score": 300.0,
        "score_at_end": pytest.approx(-410 / 3),
    }
    late = score.outcome("rlz", points, settings, -100.0)
    assert late.metrics["rlz"]["seconds_to_score"] == 60.0
    assert (found.facts["reached rlz"], late.facts["reached rlz"]) == (True, False)
    assert json.dumps(found.facts["curves rlz"])


def test_a_score_that_nobody_knows_is_asked_for() -> None:
    with pytest.raises(Exception, match="Give --score RETURN"):
        score.workload("FrozenLake-v1", "dqn", [], 1.0, 1)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_short_run_of_rlz_is_copied_and_played() -> None:
    """On a machine so busy that a run does not start within 25 s it has more time."""
    outcome: Any = None
    points: list[dict[str, float]] = []
    for seconds in (25.0, 150.0):
        (job,) = score.workload("Pendulum-v1", "sac", [], seconds, 1, -1e9, ["--no-compile"], quick=True).jobs
        try:
            outcome = job.run(0)
        except RlzError as error:
            if seconds > 25.0 or "no policy" not in str(error):
                raise
            continue
        points = outcome.facts["curves rlz"]
        if len(points) > 1:
            break
    assert len(points) > 1
    assert points[-1]["env_steps"] >= points[0]["env_steps"]
    assert outcome.metrics["rlz"]["seconds_to_score"] == pytest.approx(points[0]["seconds"], abs=0.01)
    assert -2000.0 < outcome.metrics["rlz"]["score_at_end"] < 0.0
