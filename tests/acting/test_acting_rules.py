"""How outputs of a module become actions, and what a user is told when they cannot."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import rlz
from rlz.acting import Rule, make_policy, policy_of
from rlz.acting.rules import Moment
from rlz.answers import Field
from rlz.envs.spaces import EnvSpec
from rlz.errors import ConfigError, NonFiniteError, PolicyError
from rlz.networks.own import OwnNetwork
from rlz.networks.spec import actor_manifest, head_outputs
from rlz.workers.base import Report


def spaces(choices: tuple[int, ...] = (), shape: tuple[int, ...] = (3,)) -> EnvSpec:
    dim = choices or (1, 1)
    return EnvSpec(
        env_id="Fake-v0",
        obs_shape=shape,
        obs_dtype="float32",
        action_shape=(len(dim),) if len(dim) > 1 else (),
        action_dtype="int64" if choices else "float32",
        action_low=tuple(0.0 if choices else -1.0 for _ in dim),
        action_high=tuple(n - 1.0 if choices else 1.0 for n in dim),
        max_episode_steps=None,
    )


class Net(nn.Module):
    """A linear layer to as many outputs as an option says."""

    def __init__(self, env_spec: EnvSpec, outputs: int = 4) -> None:
        super().__init__()
        self.linear = nn.Linear(env_spec.obs_dim, outputs)

    def forward(self, obs: torch.Tensor) -> Any:
        return self.linear(obs)


class Broken(Net):
    def forward(self, obs: torch.Tensor) -> Any:
        return self.linear(obs[:, :2])


class Wrong(Net):
    """Gives what the test puts here."""

    gives: Any = None

    def forward(self, obs: torch.Tensor) -> Any:
        return Wrong.gives


def act(rule: Rule, env_spec: EnvSpec, obs: Any = None, **more: Any) -> Any:
    policy = make_policy(rule.policy(env_spec), np.random.SeedSequence(0))
    obs = np.ones((2, env_spec.obs_dim), np.float32) if obs is None else obs
    actions = np.zeros((len(obs), env_spec.action_dim), env_spec.row_action_dtype)
    policy.act(obs, actions, **more)
    return actions


def test_epsilon_falls_with_the_env_steps_and_evaluation_is_greedy() -> None:
    rule = rlz.EpsilonGreedy(Net, start=1.0, end=0.1, over=0.5)
    assert [round(rule.epsilon(progress), 6) for progress in (0, 0.25, 0.5, 1)] == [1.0, 0.55, 0.1, 0.1]
    assert rlz.EpsilonGreedy(Net, over=0.0).epsilon(0.0) == 0.05
    env_spec = spaces((4,))
    obs = np.random.default_rng(0).standard_normal((20_000, 3)).astype(np.float32)
    module = rule.build(env_spec)
    greedy = module(torch.from_numpy(obs)).argmax(1, keepdim=True)
    for progress in (0.0, 0.25, 1.0):
        moment = Moment(progress, deterministic=False, random=np.random.default_rng(1))
        chosen, _ = rule.act(module, torch.from_numpy(obs), env_spec, moment)
        other = float((chosen != greedy).float().mean())
        assert abs(other - 0.75 * rule.epsilon(progress)) < 0.01  # a quarter of uniform choices is the greedy one
    moment = Moment(0.0, deterministic=True, random=np.random.default_rng(1))
    assert bool((rule.act(module, torch.from_numpy(obs), env_spec, moment)[0] == greedy).all())
    with pytest.raises(ConfigError, match=r"EpsilonGreedy: start is 2.0, expected 0 to 1"):
        rlz.EpsilonGreedy(Net, start=2.0)


def test_several_choices_are_made_side_by_side() -> None:
    env_spec = spaces((2, 3))
    obs = np.random.default_rng(0).standard_normal((50, 3)).astype(np.float32)
    rule = rlz.EpsilonGreedy(FiveOutputs)
    policy = make_policy(rule.policy(env_spec), np.random.SeedSequence(0))
    weights = np.random.default_rng(1).standard_normal(5 * 3 + 5).astype(np.float32)
    policy.load(weights.view(np.uint8))
    actions = np.zeros((50, 2), np.int64)
    policy.act(obs, actions, deterministic=True)
    values = obs @ weights[:15].reshape(5, 3).T + weights[15:]
    assert actions[:, 0].tolist() == values[:, :2].argmax(1).tolist()
    assert actions[:, 1].tolist() == values[:, 2:].argmax(1).tolist()


class FiveOutputs(Net):
    def __init__(self, env_spec: EnvSpec) -> None:
        super().__init__(env_spec, 5)


class Mlp(nn.Module):
    """The network that Rust runs, as a user would write it."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(inputs, 8), nn.Tanh(), nn.Linear(8, outputs))

    def forward(self, obs: torch.Tensor) -> Any:
        return self.net(obs)


@pytest.mark.parametrize("head", ["squashed_gaussian", "deterministic"])
def test_an_own_network_acts_as_the_one_that_rust_runs(head: str) -> None:
    env_spec = spaces()
    arguments = {"obs_dim": 3, "action_dim": 2, "hidden": [8], "activation": "tanh", "layer_norm": False, "head": head}
    manifest = actor_manifest(arguments)
    native = make_policy(rlz_spec(arguments, manifest), np.random.SeedSequence(0))
    generator = np.random.default_rng(2)
    tensors = [generator.standard_normal(shape).astype(np.float32) for _, _, shape in manifest]
    native.load(np.concatenate([tensor.reshape(-1) for tensor in tensors]).view(np.uint8))
    network = OwnNetwork.of(f"{__file__}:Mlp", "actor", 3, head_outputs(head, 2))
    own = make_policy(policy_of(network, env_spec, head), np.random.SeedSequence(0))
    own.load(np.concatenate([tensor.T.reshape(-1) for tensor in tensors]).view(np.uint8))  # torch has [out, in]
    obs = generator.standard_normal((40, 3)).astype(np.float32)
    actions = np.zeros((2, 40, 2), np.float32)
    for policy, into in zip((native, own), actions, strict=True):
        policy.act(obs, into, deterministic=True)
    np.testing.assert_allclose(actions[0], actions[1], atol=1e-5)


def rlz_spec(arguments: dict[str, Any], manifest: list[Field]) -> Any:
    from rlz.answers import PolicySpec

    return PolicySpec("native", arguments, tuple(manifest))


def test_a_distribution_with_transforms_acts_with_its_transformed_mode() -> None:
    normal = torch.distributions.Normal(torch.tensor([[0.5, -2.0]]), 1.0)
    Wrong.gives = torch.distributions.TransformedDistribution(normal, [torch.distributions.TanhTransform()])
    obs = np.ones((1, 3), np.float32)
    np.testing.assert_allclose(act(Rule(Wrong), spaces(), obs, deterministic=True), np.tanh([[0.5, -2.0]]), rtol=1e-6)


def test_an_error_of_the_module_shows_the_users_lines() -> None:
    with pytest.raises(PolicyError, match=r"Broken raised RuntimeError: .*mat1 and mat2 shapes") as caught:
        act(rlz.EpsilonGreedy(Broken), spaces((4,)))
    lines = Report.of(caught.value).traceback.splitlines()
    assert __file__ in lines[1]
    assert "return self.linear(obs[:, :2])" in lines[2]


@pytest.mark.parametrize(
    ("gives", "choices", "error", "words"),
    [
        (torch.zeros(2, 4), (4,), PolicyError, r"float32 \[2, 4\] for choices.*rlz.EpsilonGreedy.*Categorical"),
        (torch.zeros(2, 3), (), PolicyError, r"actions \[2, 3\], expected \[2, 2\]"),
        (torch.tensor([4, 0]), (4,), PolicyError, r"\[\[4\], \[0\]\]; choices are counted from 0 to below \[4\]"),
        (torch.full((2, 2), torch.nan), (), NonFiniteError, "an action that is not finite"),
        ([1.0, 2.0], (), PolicyError, "raised AttributeError"),
    ],
)
def test_what_is_no_action_is_said(gives: Any, choices: tuple[int, ...], error: type[Exception], words: str) -> None:
    Wrong.gives = gives
    with pytest.raises(error, match=words):
        act(Rule(Wrong), spaces(choices))


def test_rules_and_spaces_that_do_not_fit() -> None:
    with pytest.raises(PolicyError, match="EpsilonGreedy needs choices; the actions of Fake-v0 are a Box"):
        act(rlz.EpsilonGreedy(Net), spaces())
    with pytest.raises(PolicyError, match=r"\[2, 4\] for 2 observations.*\[2, 5\]"):
        act(rlz.EpsilonGreedy(Net), spaces((5,)))
    with pytest.raises(PolicyError, match=r"gave a int, expected a torch\.nn\.Module"):
        Rule(lambda _: 3).policy(spaces())  # type: ignore[arg-type, return-value]
    Wrong.gives = {"action": torch.zeros(2, 2), "values": torch.zeros(2)}
    with pytest.raises(PolicyError, match=r"gave no 'value', which the data keeps; it gave \['values'\]"):
        act(Rule(Wrong, (("value", "f32", ()),)), spaces(), extras={"value": np.zeros(2, np.float32)})


def test_a_module_that_changed_since_the_run_is_named() -> None:
    spec = rlz.EpsilonGreedy(Net).policy(spaces((4,)))
    changed = rlz.EpsilonGreedy(FiveOutputs).policy(spaces((4,)))
    mixed = type(spec)("torch", changed.network, spec.manifest)
    with pytest.raises(PolicyError, match=r"other tensors than the policy: linear.weight f32\[5, 3\] instead of"):
        make_policy(mixed, np.random.SeedSequence(0))


def test_acting_uses_one_thread_and_gives_the_others_back() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        seen = []
        Seeing.seen = seen
        act(rlz.EpsilonGreedy(Seeing), spaces((4,)))
        assert (seen, torch.get_num_threads()) == ([1], 2)
    finally:
        torch.set_num_threads(before)


class Seeing(Net):
    seen: list[int] = []  # noqa: RUF012

    def forward(self, obs: torch.Tensor) -> Any:
        Seeing.seen.append(torch.get_num_threads())
        return super().forward(obs)


def test_the_rule_of_the_document_acts() -> None:
    text = (Path(__file__).parents[2] / "docs" / "acting.md").read_text()
    scope: dict[str, Any] = {"__name__": "document"}
    exec(text.split("```python\n")[1].split("```")[0], scope)
    rule = scope["Softmax"](Net)
    chosen = act(rule, spaces((4,)), np.ones((300, 3), np.float32))
    assert set(np.unique(chosen)) == {0, 1, 2, 3}
    assert len(np.unique(act(rule, spaces((4,)), np.ones((300, 3), np.float32), deterministic=True))) == 1
