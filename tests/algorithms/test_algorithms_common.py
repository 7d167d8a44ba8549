"""What holds for every algorithm: values of a chain, names of the state, networks of a run."""

from typing import Any

import pytest
import torch

from rlz.algorithms.actor_critic import ActorCritic
from rlz.algorithms.base import CRITIC, WHOLE, Batch
from rlz.algorithms.registry import BUILT_IN
from rlz.errors import CheckpointError
from rlz.networks.spec import actor_manifest
from support.updates import FLOAT, RATE, SIZE, generator, kinds, make, make_batch, noises

CRITICS = ("sac", "td3", "ddpg")
"""Algorithms with critics Q(obs, action)."""


def test_the_registry_has_every_algorithm_that_can_be_chosen() -> None:
    for algo in BUILT_IN:
        found = make(algo)
        assert isinstance(found, ActorCritic) == (algo in (*CRITICS, "sac-discrete"))
        assert found.checks
        assert set(found.cycle) <= {WHOLE, CRITIC}
        assert found.cycle[-1] == WHOLE


def chain_q(algo: str, discount_at_end: float) -> float:
    """Q of the first state of a ring of 10 states, reward 1, gamma 0.9, learned from episodes of 10 steps."""
    options: dict[str, Any] = {"n_critics": 2} | {"sac": {"ent_coef": 0.0}}.get(algo, {})
    algorithm = make(algo, 10, 1, hidden=(64,), tau=0.5, **options)
    state = algorithm.init(generator(1))
    obs = torch.eye(10).repeat(10, 1)
    discount = torch.full((100,), 0.9)
    discount[9::10] = discount_at_end
    next_obs = obs.roll(1, 1)  # the true final observation of the last step is one of the ring
    batch = Batch(obs, torch.zeros(100, 1), next_obs, torch.ones(100), discount)
    draw, rate = generator(2), torch.tensor(1e-2, dtype=torch.float64)
    with torch.no_grad():
        for kind in kinds(algorithm, 400):
            batch = batch._replace(action=torch.rand(100, 1, generator=draw) * 2 - 1)
            noise = torch.randn(algorithm.noise_shape(100), generator=draw)
            state = algorithm.update(state, batch, noise, rate, kind).state
        assert isinstance(algorithm, ActorCritic)
        return algorithm.q_values(state.critic, obs[:1], torch.zeros(1, 1)).mean().item()


@pytest.mark.parametrize("algo", CRITICS)
def test_truncated_chain_has_the_value_of_an_endless_one(algo: str) -> None:
    assert chain_q(algo, 0.9) == pytest.approx(10.0, abs=0.3)
    # Control: with truncation taken for termination it is the return of ten steps.
    assert chain_q(algo, 0.0) == pytest.approx((1 - 0.9**10) / 0.1, abs=0.3)


@pytest.mark.parametrize("algo", CRITICS)
@pytest.mark.parametrize("n_critics", [1, 2, 5])
@pytest.mark.parametrize(("hidden", "activation", "layer_norm"), [((), "relu", False), ((5, 3, 7), "silu", True)])
def test_networks_of_any_form_learn(
    algo: str, n_critics: int, hidden: tuple[int, ...], activation: str, layer_norm: bool
) -> None:
    """Every parameter moves, the counters count, everything is finite; the actor has the layout of the export."""
    options: dict[str, Any] = {"hidden": hidden, "activation": activation, "layer_norm": layer_norm}
    options |= {"n_critics": n_critics, "algo": algo, "env": "Test-v0"}
    algorithm = make(**{name: value for name, value in options.items() if name != "env"})
    first = state = algorithm.init(generator(3), FLOAT)
    with torch.no_grad():
        for kind, noise in zip(kinds(algorithm, 4), noises(algorithm, 4), strict=True):
            state, _, checks, _ = algorithm.update(state, make_batch(), noise, RATE, kind)
            assert torch.isfinite(checks).all()
    old = algorithm.state_dict(first)
    for name, tensor in algorithm.state_dict(state).items():
        assert torch.isfinite(tensor).all()
        assert not torch.equal(tensor, old[name]), name
    assert state.updates == 4
    policy = algorithm.policy()
    manifest = policy.manifest
    assert list(manifest) == actor_manifest(policy.network)
    assert [(name, shape) for name, _, shape in manifest] == [
        (name, tuple(tensor.shape)) for name, tensor in algorithm.state_dict(state).items() if name.startswith("actor.")
    ]
    assert len(algorithm.published(state)) == sum(torch.Size(shape).numel() for _, _, shape in manifest)


@pytest.mark.parametrize("algo", CRITICS)
def test_td_errors_are_given_for_a_batch_with_weights_alone(algo: str) -> None:
    algorithm = make(algo)
    state = algorithm.init(generator(3), FLOAT)
    (noise,) = noises(algorithm, 1)
    assert algorithm.update(state, make_batch(), noise, RATE).td_errors is None
    errors = algorithm.update(state, make_batch(weights=True), noise, RATE).td_errors
    assert errors is not None
    assert errors.shape == (SIZE,)
    assert (errors > 0).all()


@pytest.mark.parametrize("algo", CRITICS)
def test_state_dict_names_every_tensor_and_loads_back(algo: str) -> None:
    algorithm = make(algo)
    state = algorithm.init(generator(7), FLOAT)
    with torch.no_grad():
        state = algorithm.update(state, make_batch(), noises(algorithm, 1)[0], RATE).state
    names = algorithm.state_dict(state)
    assert {"actor.0.weight", "critic.head.bias", "target.critic.0.weight", "adam.square.actor.0.bias"} <= names.keys()
    assert {"sac": "adam.mean.log_alpha"}.get(algo, "target.actor.0.weight") in names
    assert sum(t.numel() for t in names.values()) == sum(t.numel() for t in state)
    other = algorithm.init(generator(8), FLOAT)
    algorithm.load_state_dict(other, {name: tensor.clone() for name, tensor in names.items()})
    for a, b in zip(state, other, strict=True):
        assert torch.equal(a, b)


def test_loading_other_networks_is_refused_before_anything_changes() -> None:
    sac = make("sac")
    state = sac.init(generator(7))
    names = {name: torch.zeros_like(tensor) for name, tensor in sac.state_dict(state).items()}
    before = state.actor.clone()
    with pytest.raises(CheckpointError, match=r"log_alpha: the checkpoint has \(2,\)"):
        sac.load_state_dict(state, names | {"log_alpha": torch.zeros(2)})
    with pytest.raises(CheckpointError, match="unknown extra"):
        sac.load_state_dict(state, names | {"extra": torch.zeros(2)})
    del names["actor.0.bias"]
    with pytest.raises(CheckpointError, match=r"lacks actor\.0\.bias"):
        sac.load_state_dict(state, names)
    assert torch.equal(before, state.actor)
