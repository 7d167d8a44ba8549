"""The native policy against torch, and its random numbers against their distribution."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from rlz._native import ParameterStore, Policy

SEED = [1, 2, 3, 4]
ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh, "silu": nn.SiLU, "elu": nn.ELU}


def make(obs_dim: int = 3, action_dim: int = 2, hidden: tuple[int, ...] = (16,), **options: Any) -> Policy:
    defaults: dict[str, Any] = {
        "activation": "relu",
        "layer_norm": False,
        "head": "squashed_gaussian",
        "seed": SEED,
    }
    return Policy(obs_dim=obs_dim, action_dim=action_dim, hidden=hidden, **{**defaults, **options})


class TorchActor(nn.Module):
    """The same network in torch, loaded from the policy's flat parameters by name."""

    def __init__(self, policy: Policy, parameters: np.ndarray, activation: str) -> None:
        super().__init__()
        tensors, at = {}, 0
        for name, dtype, shape in policy.manifest:
            assert dtype == "f32"
            size = math.prod(shape)
            tensors[name] = torch.from_numpy(parameters[at : at + size].reshape(shape).copy())
            at += size
        assert at == parameters.size
        modules: list[nn.Module] = []
        layers = sorted({name.split(".")[1] for name in tensors} - {"head"}, key=int)
        for layer in [*layers, "head"]:
            weight = tensors.pop(f"actor.{layer}.weight")
            linear = nn.Linear(*weight.shape)
            linear.weight.data[:] = weight.T
            linear.bias.data[:] = tensors.pop(f"actor.{layer}.bias")
            modules.append(linear)
            if f"actor.{layer}.norm.weight" in tensors:
                norm = nn.LayerNorm(weight.shape[1])
                norm.weight.data[:] = tensors.pop(f"actor.{layer}.norm.weight")
                norm.bias.data[:] = tensors.pop(f"actor.{layer}.norm.bias")
                modules.append(norm)
            if layer != "head":
                modules.append(ACTIVATIONS[activation]())
        assert not tensors
        self.body = nn.Sequential(*modules)

    def head(self, obs: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.no_grad():
            mean, log_std = self.body(torch.from_numpy(obs)).chunk(2, dim=-1)
        return mean, log_std.clamp(-20, 2)


def pair(policy: Policy, activation: str, rng: np.random.Generator) -> TorchActor:
    """Give the policy parameters of a trained network's size; returns the torch twin."""
    chunks = []
    for name, _, shape in policy.manifest:
        values = rng.uniform(-1, 1, shape).astype(np.float32)
        if name.endswith("norm.weight"):
            values += 1.0
        elif len(shape) == 2:
            values *= math.sqrt(3.0 / shape[0])
        else:
            values *= 0.3
        chunks.append(values.reshape(-1))
    parameters = np.concatenate(chunks)
    policy.load(parameters.view(np.uint8))
    return TorchActor(policy, parameters, activation)


SHAPES = [(1, 1, ()), (3, 1, (7,)), (27, 8, (256, 256)), (17, 6, (64, 33, 100)), (376, 17, (400, 300))]


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(("obs_dim", "action_dim", "hidden"), SHAPES)
def test_actions_agree_with_torch(
    obs_dim: int, action_dim: int, hidden: tuple[int, ...], activation: str, layer_norm: bool
) -> None:
    rng = np.random.default_rng(5)
    policy = make(obs_dim, action_dim, hidden, activation=activation, layer_norm=layer_norm)
    actor = pair(policy, activation, rng)
    for rows in (1, 2, 5, 16, 64):
        obs = rng.standard_normal((rows, obs_dim)).astype(np.float32)
        mean, _ = actor.head(obs)
        actions = np.full((rows, action_dim), np.nan, np.float32)
        policy.act(obs, actions, deterministic=True)
        np.testing.assert_allclose(actions, torch.tanh(mean).numpy(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_samples_and_log_prob_agree_with_torch(activation: str) -> None:
    """With the same noise: a policy whose mean and log_std are 0 shows the noise that its seed gives."""
    rng = np.random.default_rng(6)
    rows, action_dim = 40, 4
    policy = make(11, action_dim, (64, 64), activation=activation)
    actor = pair(policy, activation, rng)
    obs = rng.standard_normal((rows, 11)).astype(np.float32)

    bare = make(1, action_dim, (), activation=activation)
    bare.state = policy.state
    raw = np.zeros((rows, action_dim), np.float32)
    bare.act(np.zeros((rows, 1), np.float32), raw)
    noise = torch.from_numpy(np.arctanh(raw.astype(np.float64)))

    actions = np.zeros((rows, action_dim), np.float32)
    log_prob = np.zeros(rows, np.float32)
    policy.act(obs, actions, extras={"log_prob": log_prob})
    mean, log_std = actor.head(obs)
    gaussian = torch.distributions.Normal(mean.double(), log_std.double().exp())
    pre_tanh = gaussian.mean + gaussian.stddev * noise
    np.testing.assert_allclose(actions, torch.tanh(pre_tanh).numpy(), rtol=0, atol=2e-5)
    # arctanh of a float32 near 1 knows the noise less well.
    known = (np.abs(raw) < 0.995).all(axis=1)
    assert known.sum() > rows // 2
    squash = 2 * (math.log(2) - pre_tanh - nn.functional.softplus(-2 * pre_tanh))
    expected = (gaussian.log_prob(pre_tanh) - squash).sum(-1)
    np.testing.assert_allclose(log_prob[known], expected.numpy()[known], rtol=2e-5, atol=2e-4)


def test_log_prob_is_finite_at_the_bounds() -> None:
    policy = make(1, 1, ())
    for mean, log_std in [(40.0, 2.0), (-40.0, 9.0), (5.0, -50.0)]:
        policy.load(np.array([0, 0, mean, log_std], np.float32).view(np.uint8))
        action, log_prob = np.zeros((1, 1), np.float32), np.zeros(1, np.float32)
        for deterministic in (True, False):
            policy.act(np.zeros((1, 1)), action, deterministic=deterministic, extras={"log_prob": log_prob})
            assert abs(action[0, 0]) <= 1
            assert np.isfinite(log_prob[0])


def test_moments_of_the_samples() -> None:
    policy = make(1, 3, ())
    mean, log_std = np.array([0.0, 0.5, -1.0]), np.array([0.0, -1.0, -2.0])
    head = np.concatenate([np.zeros(6), mean, log_std]).astype(np.float32)
    policy.load(head.view(np.uint8))
    n = 200_000
    actions = np.zeros((n, 3), np.float32)
    policy.act(np.zeros((n, 1), np.float32), actions)
    pre_tanh = np.arctanh(actions[(np.abs(actions) < 1).all(axis=1)].astype(np.float64))
    np.testing.assert_allclose(pre_tanh.mean(0), mean, atol=0.01)
    np.testing.assert_allclose(pre_tanh.std(0), np.exp(log_std), rtol=0.01)
    assert np.abs(np.corrcoef(pre_tanh.T) - np.eye(3)).max() < 0.01


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_deterministic_head_agrees_with_torch_and_explores_around_it(activation: str) -> None:
    rng = np.random.default_rng(6)
    policy = make(11, 3, (64, 33), activation=activation, head="deterministic", exploration_noise=0.1)
    actor = pair(policy, activation, rng)
    obs = rng.standard_normal((2000, 11)).astype(np.float32)
    actions, explored = np.zeros((2000, 3), np.float32), np.zeros((2000, 3), np.float32)
    policy.act(obs, actions, deterministic=True)
    with torch.no_grad():
        expected = torch.tanh(actor.body(torch.from_numpy(obs))).numpy()
    np.testing.assert_allclose(actions, expected, rtol=0, atol=1e-5)
    policy.act(obs, explored)
    assert np.abs(explored).max() == 1.0, "clipped to the bounds"
    inner = (explored - actions)[np.abs(actions) < 0.5]
    assert len(inner) > 500
    assert abs(inner.mean()) < 0.015
    assert inner.std() == pytest.approx(0.1, rel=0.08)


def test_exploration_noise_is_of_the_deterministic_head() -> None:
    quiet = make(head="deterministic", hidden=())
    obs, actions, again = np.ones((4, 3)), np.zeros((4, 2), np.float32), np.zeros((4, 2), np.float32)
    quiet.act(obs, actions)
    quiet.act(obs, again, deterministic=True)
    np.testing.assert_array_equal(actions, again)
    assert [(name, shape) for name, _, shape in quiet.manifest] == [
        ("actor.head.weight", (3, 2)),
        ("actor.head.bias", (2,)),
    ]
    with pytest.raises(ValueError, match=r"log_prob: the actions of this head .* have no density"):
        quiet.act(obs, actions, extras={"log_prob": np.zeros(4, np.float32)})
    for head, noise, message in [
        ("squashed_gaussian", 0.1, "expected 0 for the head squashed_gaussian"),
        ("deterministic", -0.1, "given -0.1, expected at least 0"),
        ("deterministic", math.nan, "expected at least 0"),
    ]:
        with pytest.raises(ValueError, match=f"exploration_noise.*{message}"):
            make(head=head, exploration_noise=noise)


def test_warm_up_is_uniform() -> None:
    policy = make(1, 2, ())
    actions = np.zeros((100_000, 2), np.float32)
    policy.uniform(actions)
    assert actions.min() >= -1
    assert actions.max() <= 1
    counts, _ = np.histogram(actions, bins=20, range=(-1, 1))
    np.testing.assert_allclose(counts, actions.size / 20, rtol=0.05)


def test_state_restores_the_stream() -> None:
    policy = make(1, 2, ())
    obs, first, second = np.zeros((5, 1)), np.zeros((5, 2), np.float32), np.zeros((5, 2), np.float32)
    policy.act(obs, first)
    state = policy.state
    assert len(state) == 32
    policy.act(obs, first)
    policy.state = state
    policy.act(obs, second)
    np.testing.assert_array_equal(first, second)
    other = make(1, 2, (), seed=np.random.SeedSequence(1).generate_state(4, np.uint64))
    other.act(obs, second)
    assert (first != second).all()
    for bad in (b"", bytes(32), b"x" * 33):
        with pytest.raises(ValueError, match="32"):
            policy.state = bad


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "?"])
def test_observation_dtypes(dtype: str) -> None:
    rng = np.random.default_rng(7)
    policy = make(6, 3, (16,))
    pair(policy, "relu", rng)
    obs = rng.integers(0, 100, (4, 6)).astype(dtype)
    actions, expected = np.zeros((4, 3), np.float32), np.zeros((4, 3), np.float32)
    policy.act(obs, actions, deterministic=True)
    policy.act(obs.astype(np.float32), expected, deterministic=True)
    np.testing.assert_array_equal(actions, expected)


def test_not_a_number_is_passed_on() -> None:
    for activation in ACTIVATIONS:
        policy = make(2, 1, (8,), activation=activation)
        pair(policy, activation, np.random.default_rng(8))
        actions = np.zeros((1, 1), np.float32)
        policy.act(np.array([[0.0, np.nan]]), actions)
        assert np.isnan(actions[0, 0])


def test_refresh_reads_only_newer_versions() -> None:
    policy = make(2, 1, (4,))
    store = ParameterStore.create(policy.manifest, leases=2, run_id=1)
    publisher, subscriber = store.publisher(worker=1), store.subscriber(worker=2)
    assert policy.refresh(subscriber) == 0
    assert policy.version == 0
    actions = np.zeros((1, 1), np.float32)
    for version in (1, 2):
        parameters = np.zeros(policy.nbytes // 4, np.float32)
        parameters[-2] = version  # bias of the mean
        publisher.publish(parameters.view(np.uint8), env_steps=0, updates=0)
        assert policy.refresh(subscriber) == version
        policy.act(np.zeros((1, 2)), actions, deterministic=True)
        assert actions[0, 0] == pytest.approx(math.tanh(version), abs=1e-6)
    before = policy.refresh(subscriber)
    assert (before, policy.version) == (2, 2)
    other = ParameterStore.create([("w", "f32", (3,))], leases=1, run_id=1)
    other.publisher(worker=1).publish(np.zeros(12, np.uint8), env_steps=0, updates=0)
    with pytest.raises(ValueError, match="bytes"):
        make(2, 1, (4,)).refresh(other.subscriber(worker=2))


def test_wrong_arguments_are_named() -> None:
    policy = make(3, 2)
    obs, actions = np.zeros((4, 3), np.float32), np.zeros((4, 2), np.float32)
    wrong: list[tuple[Any, Any, str]] = [
        (np.zeros((4, 2), np.float32), actions, r"obs: expected .* \(m, 3\)"),
        (np.zeros(3, np.float32), actions, "obs"),
        (obs[:, ::-1], actions, "not C-contiguous"),
        ([[0.0, 0.0, 0.0]], actions, "a list"),
        (obs.astype("U4"), actions, "<U4"),
        (obs.astype(">f4"), actions, ">f4"),
        (obs, actions.astype(np.float64), r"actions: expected .* float32 .* got a float64 array of shape \(4, 2\)"),
        (obs, np.zeros((3, 2), np.float32), r"actions: expected .* \(4, 2\), got .* \(3, 2\)"),
    ]
    for bad_obs, bad_actions, message in wrong:
        with pytest.raises((TypeError, ValueError), match=message):
            policy.act(bad_obs, bad_actions)
    frozen = actions.copy()
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        policy.act(obs, frozen)
    with pytest.raises(ValueError, match=r"log_prob: expected .* \(4,\)"):
        policy.act(obs, actions, extras={"log_prob": np.zeros(3, np.float32)})
    with pytest.raises(ValueError, match="share memory"):
        policy.act(obs, actions, extras={"log_prob": actions.reshape(-1)[:4]})
    with pytest.raises(ValueError, match=f"given 3 bytes, expected {policy.nbytes}"):
        policy.load(np.zeros(3, np.uint8))
    for options, message in [
        ({"activation": "gelu"}, "relu, tanh, silu, elu"),
        ({"head": "beta"}, "squashed_gaussian, deterministic, gaussian, categorical, epsilon_greedy"),
        ({"head": "categorical"}, r"choices: given \[\], expected the number of choices"),
        ({"head": "categorical", "choices": [2, 3, 4]}, "each of the 2 components"),
        ({"head": "epsilon_greedy", "choices": [2, 3]}, "epsilon: given nothing, expected start, end, over and spread"),
        ({"value": "some"}, "none, shared, separate"),
        ({"seed": [1, 2]}, "4"),
        ({"hidden": (0,)}, "hidden: given 0"),
        ({"action_dim": 0}, "action_dim: given 0"),
    ]:
        with pytest.raises(ValueError, match=message):
            make(**options)


def test_empty_batch() -> None:
    policy = make(3, 2)
    policy.act(np.zeros((0, 3), np.float32), np.zeros((0, 2), np.float32))
