"""What Rust runs beside its twin in torch: outputs, log-probabilities, values; and what each head draws."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from rlz.acting import make_policy
from rlz.answers import Field, PolicySpec
from rlz.envs.spaces import EnvSpec
from rlz.errors import NonFiniteError
from rlz.networks.mlp import Mlp
from rlz.networks.spec import OBS_CLIP, Values, head_outputs, native_policy, normalized
from support.twin import Twin, torch_twin

EPSILON = {"start": 1.0, "end": 0.1, "over": 0.5, "spread": 0.0}
HEADS: dict[str, dict[str, Any]] = {
    "squashed_gaussian": {},
    "deterministic": {"exploration_noise": 0.1},
    "gaussian": {},
    "categorical": {"choices": [3, 2]},
    "epsilon_greedy": {"choices": [3, 2], "epsilon": EPSILON},
}
KEPT: dict[str, Field] = {"log_prob": ("log_prob", "f32", ()), "value": ("value", "f32", ())}
ROWS, OBS = 64, 5


def spaces(head: str) -> EnvSpec:
    choices = HEADS[head].get("choices")
    low, high = ((0.0, 0.0), (2.0, 1.0)) if choices else ((-1.0, -1.0), (1.0, 1.0))
    return EnvSpec("Fake-v0", (OBS,), "float32", (2,), "int64" if choices else "float32", low, high, None)


def spec_of(
    head: str, value: Values = "none", hidden: tuple[int, ...] = (64, 64), layer_norm: bool = False
) -> PolicySpec:
    outputs = head_outputs(head, 2, HEADS[head].get("choices", ())) + (value == "shared")
    network = Mlp("actor", OBS, hidden, outputs, "tanh", layer_norm)
    kept = [name for name, has in (("log_prob", has_log_prob(head)), ("value", value != "none")) if has]
    extras = tuple(KEPT[name] for name in kept)
    return native_policy(network, 2, head, value=value, extras=extras, **HEADS[head])


def has_log_prob(head: str) -> bool:
    return head not in ("deterministic", "epsilon_greedy")


def parameters_of(spec: PolicySpec, scale: float = 0.4) -> NDArray[np.uint8]:
    generator = np.random.default_rng(3)
    parts = [scale * generator.standard_normal(shape).reshape(-1) for _, _, shape in spec.manifest]
    return np.concatenate(parts).astype(np.float32).view(np.uint8)


def act(policy: Any, spec: PolicySpec, head: str, obs: Any, **more: Any) -> tuple[Any, dict[str, Any]]:
    actions = np.zeros((len(obs), 2), np.int64 if HEADS[head].get("choices") else np.float32)
    extras = {name: np.full(len(obs), np.nan, np.float32) for name, _, _ in spec.extras}
    policy.act(obs, actions, extras=extras or None, **more)
    return actions, extras


@pytest.mark.parametrize("value", ["none", "shared", "separate"])
@pytest.mark.parametrize(("hidden", "layer_norm"), [((64, 64), False), ((33,), True), ((), False)])
@pytest.mark.parametrize("head", HEADS)
def test_rust_and_torch_act_alike(head: str, hidden: tuple[int, ...], layer_norm: bool, value: Values) -> None:
    spec = spec_of(head, value, hidden, layer_norm)
    twin_spec = torch_twin(spec, spaces(head))
    native, twin = (make_policy(of, np.random.SeedSequence(0)) for of in (spec, twin_spec))
    assert (native.nbytes, native.manifest) == (twin.nbytes, list(spec.manifest))  # type: ignore[attr-defined]
    for policy in (native, twin):
        policy.load(parameters_of(spec))
    obs = np.random.default_rng(4).standard_normal((ROWS, OBS)).astype(np.float32)
    (one, of_one), (other, of_other) = (act(policy, spec, head, obs, deterministic=True) for policy in (native, twin))
    if HEADS[head].get("choices"):
        np.testing.assert_array_equal(one, other)
    else:
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-5)
    assert of_one.keys() == of_other.keys() == {name for name, _, _ in spec.extras}
    for name, values in of_one.items():
        np.testing.assert_allclose(values, of_other[name], rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("runner", ["native", "torch"])
def test_normal_observations_are_what_the_networks_see(runner: str) -> None:
    plain = spec_of("gaussian", "separate")
    spec = normalized(plain, OBS)
    statistics = np.array([[5.0, -2.0, 0.0, 100.0, 1.0], [0.1, 2.0, 1.0, 0.01, 40.0]], np.float32)
    policies = {}
    for name, one, parameters in (
        ("plain", plain, parameters_of(plain)),
        ("normal", spec, np.concatenate([parameters_of(plain), statistics.reshape(-1).view(np.uint8)])),
    ):
        policies[name] = make_policy(
            one if runner == "native" else torch_twin(one, spaces("gaussian")), np.random.SeedSequence(0)
        )
        assert policies[name].nbytes == len(parameters)
        policies[name].load(parameters)
    obs = np.random.default_rng(4).normal(3, 50, (ROWS, OBS)).astype(np.float32)
    by_hand = np.clip((obs - statistics[0]) * statistics[1], -OBS_CLIP, OBS_CLIP)
    assert (np.abs(by_hand) == OBS_CLIP).any()
    kept = obs.copy()
    one, extras = act(policies["normal"], spec, "gaussian", obs, deterministic=True)
    other, expected = act(policies["plain"], spec, "gaussian", by_hand, deterministic=True)
    np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)
    np.testing.assert_allclose(extras["value"], expected["value"], rtol=0, atol=1e-6)
    np.testing.assert_array_equal(obs, kept)


@pytest.mark.parametrize("head", [head for head in HEADS if has_log_prob(head) and head != "squashed_gaussian"])
def test_log_prob_of_drawn_actions_is_that_of_torch(head: str) -> None:
    spec = spec_of(head, "separate")
    native = make_policy(spec, np.random.SeedSequence(0))
    native.load(parameters_of(spec))
    obs = np.random.default_rng(4).standard_normal((ROWS, OBS)).astype(np.float32)
    actions, extras = act(native, spec, head, obs)
    net = Twin(spaces(head), **spec.network)
    net.flat.data[:] = torch.from_numpy(parameters_of(spec).view(np.float32))
    outputs, drawn = net(torch.from_numpy(obs))["action"].detach(), torch.from_numpy(actions)
    if head == "gaussian":
        mean, log_std = outputs.chunk(2, 1)
        expected = torch.distributions.Normal(mean, log_std.exp()).log_prob(drawn).sum(1)
    else:
        parts = zip(outputs.split([3, 2], 1), drawn.unbind(1), strict=True)
        expected = sum(torch.distributions.Categorical(logits=part).log_prob(action) for part, action in parts)
    np.testing.assert_allclose(extras["log_prob"], expected.numpy(), rtol=1e-5, atol=1e-5)


def test_choices_are_drawn_as_often_as_torch_says_they_are_likely() -> None:
    spec = spec_of("categorical")
    native = make_policy(spec, np.random.SeedSequence(0))
    native.load(parameters_of(spec))
    obs = np.repeat(np.ones((1, OBS), np.float32), 40_000, 0)
    actions, _ = act(native, spec, "categorical", obs)
    net = Twin(spaces("categorical"), **spec.network)
    net.flat.data[:] = torch.from_numpy(parameters_of(spec).view(np.float32))
    parts = net(torch.ones(1, OBS))["action"].detach()[0].split([3, 2])
    for column, part in zip(actions.T, parts, strict=True):
        found = np.bincount(column, minlength=len(part)) / len(obs)
        np.testing.assert_allclose(found, part.softmax(0).numpy(), atol=0.01)


def test_a_gaussian_is_not_clipped_and_has_its_deviation() -> None:
    spec = spec_of("gaussian", hidden=())
    native = make_policy(spec, np.random.SeedSequence(0))
    log_std, mean = np.array([0.3, -1.0]), np.array([0.9, -0.2])
    native.load(np.concatenate([log_std, np.zeros(OBS * 2), mean]).astype(np.float32).view(np.uint8))
    actions, _ = act(native, spec, "gaussian", np.zeros((100_000, OBS), np.float32))
    np.testing.assert_allclose(actions.mean(0), mean, atol=0.02)
    np.testing.assert_allclose(actions.std(0), np.exp(log_std), rtol=0.01)
    assert actions.max() > 2.0


@pytest.mark.parametrize("runner", ["native", "torch"])
def test_epsilon_falls_over_the_run_and_differs_between_ranks(runner: str) -> None:
    """A third of the first component's uniform choices, and half of the second's, are the greedy ones."""
    n = 30_000
    obs = np.repeat(np.ones((1, OBS), np.float32), n, 0)
    ladder = {"start": 0.4, "end": 0.4, "over": 0.0, "spread": 7.0}
    for epsilon, progress, rank, expected in [
        (EPSILON, 0.0, 0.5, 1.0),
        (EPSILON, 0.25, 0.5, 0.55),
        (EPSILON, 1.0, 0.5, 0.1),
        (ladder, 0.2, 0.0, 0.4),
        (ladder, 0.2, 0.25, 0.4 ** (1 + 7 / 4)),
    ]:
        spec = native_policy(
            Mlp("actor", OBS, (8,), 5), 2, "epsilon_greedy", choices=[3, 2], epsilon=epsilon, value="none"
        )
        spec = spec if runner == "native" else torch_twin(spec, spaces("epsilon_greedy"))
        policy = make_policy(spec, np.random.SeedSequence(0))
        policy.load(parameters_of(spec))
        greedy, _ = act(policy, spec, "epsilon_greedy", obs[:1], deterministic=True)
        ranks = np.full(n, rank, np.float32)
        actions, _ = act(policy, spec, "epsilon_greedy", obs, progress=progress, ranks=ranks)
        others = (actions != greedy).any(1).mean()
        assert others == pytest.approx(expected * 5 / 6, abs=0.01), (epsilon, progress, rank)


@pytest.mark.parametrize("head", ["categorical", "epsilon_greedy"])
def test_outputs_that_are_not_finite_choose_nothing(head: str) -> None:
    spec = spec_of(head, hidden=())
    native = make_policy(spec, np.random.SeedSequence(0))
    values = np.zeros(OBS * 5 + 5, np.float32)
    values[0] = np.nan
    native.load(values.view(np.uint8))
    with pytest.raises(NonFiniteError, match="outputs for observation 0 are not finite"):
        act(native, spec, head, np.ones((2, OBS), np.float32))


def test_extras_that_a_policy_has_not() -> None:
    obs, value = np.zeros((1, OBS), np.float32), {"value": np.zeros(1, np.float32)}
    for head in ("categorical", "gaussian"):
        spec = spec_of(head)
        dtype = spaces(head).row_action_dtype
        with pytest.raises(ValueError, match="value: this policy values nothing"):
            make_policy(spec, np.random.SeedSequence(0)).act(obs, np.zeros((1, 2), dtype), extras=value)
    spec = spec_of("categorical", "shared")
    policy = make_policy(spec, np.random.SeedSequence(0))
    both = np.zeros(1, np.float32)
    with pytest.raises(ValueError, match="share memory"):
        policy.act(obs, np.zeros((1, 2), np.int64), extras={"value": both, "log_prob": both})
    with pytest.raises(TypeError, match=r"actions: expected .* int64 .* got a float32"):
        policy.act(obs, np.zeros((1, 2), np.float32))
