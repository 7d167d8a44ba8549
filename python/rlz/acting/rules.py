"""How a torch module acts: from what it returns to actions. Stated in an algorithm's file; importing it needs no torch.

A rule is a value: its class, the user's class of modules and numbers. So it travels in a `PolicySpec`, and
`policy.json` holds it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlz.answers import Field, PolicySpec
from rlz.envs.spaces import EnvSpec
from rlz.errors import ConfigError, PolicyError
from rlz.networks.own import OwnNetwork
from rlz.networks.spec import (
    CATEGORICAL,
    DETERMINISTIC,
    EPSILON_GREEDY,
    GAUSSIAN,
    SQUASHED_GAUSSIAN,
    Values,
    head_outputs,
    native_policy,
)
from rlz.references import load, reference_to

if TYPE_CHECKING:
    from torch import Tensor, nn

    from rlz.networks.mlp import Mlp


class Moment(NamedTuple):
    """Where in a run an action is chosen.

    Attributes
    ----------
    progress : share of the run's env steps that were taken before it, 0 to 1.
    deterministic : no exploration: evaluation, and `predict`.
    random : for draws with numpy. torch's own generator is the policy's too while it acts.
    ranks : of the row's environments among all of the run, float32 [m] from 0 to 1; None: all 0.
    """

    progress: float
    deterministic: bool
    random: np.random.Generator
    ranks: NDArray[np.float32] | None = None


@dataclass(frozen=True)
class Rule:
    """Acts with what the module returns; the base of every rule.

    The module gets observations [m, *obs_shape] in float32. It returns one of

    - actions: floats [m, action_dim] in [-1, 1] for a Box, indices [m] or [m, action_dim] for choices;
    - a `torch.distributions.Distribution` over them: drawn from in training, its mode or mean in evaluation;
    - a mapping with one of these as "action", and what else the data keeps by name, such as "value".

    Attributes
    ----------
    network : called with the spaces (`EnvSpec`), gives the module: a class, a function, or a `functools.partial`
        of one with plain values.
    extras : what the data keeps beside the action; "log_prob" is that of the drawn action.
    outputs : where it is given, the network is that of `--network`, called as `Net(obs_dim, outputs)`.
    """

    head: ClassVar[str]
    """The head in Rust of that meaning (`rlz.networks.spec`), where there is one."""

    network: Callable[..., nn.Module]
    extras: tuple[Field, ...] = ()
    outputs: int | None = None

    def act(self, module: nn.Module, obs: Tensor, spaces: EnvSpec, moment: Moment) -> tuple[Tensor, dict[str, Tensor]]:
        """Actions [m, action_dim] (see the class), and the extras by name, each [m, ...]."""
        given, extras = outputs_of(module, obs)
        if hasattr(given, "log_prob"):
            action = _mode(given) if moment.deterministic else given.sample()
            if self.keeps("log_prob"):
                extras["log_prob"] = given.log_prob(action).reshape(len(obs), -1).sum(-1)
            return action.reshape(len(obs), -1), extras
        if spaces.discrete and given.is_floating_point():
            raise PolicyError(
                f"the module gave {given.dtype} {list(given.shape)} for choices. Values of the choices act through "
                "rlz.EpsilonGreedy(Net, ...); logits are returned as torch.distributions.Categorical(logits=...)"
            )
        return given.reshape(len(obs), -1), extras

    def keeps(self, name: str) -> bool:
        """Whether the data keeps what this name says beside the action."""
        return any(name == kept for kept, _, _ in self.extras)

    def build(self, spaces: EnvSpec) -> nn.Module:
        """A fresh module, ready to act. Leaves torch's own generator as it was."""
        import torch

        with torch.random.fork_rng(devices=[]):
            if self.outputs is None:
                module = self.network(spaces)
            else:
                from rlz.acting.own_actor import OwnActor

                used = head_outputs(self.head, spaces.action_dim, spaces.action_choices)
                log_std = spaces.action_dim if self.head == GAUSSIAN else 0
                module = OwnActor(self.network(spaces.obs_dim, self.outputs), used, log_std)
        if not isinstance(module, torch.nn.Module):
            raise PolicyError(f"{self.network!r} gave a {type(module).__name__}, expected a torch.nn.Module")
        return module.eval()

    def policy(self, spaces: EnvSpec) -> PolicySpec:
        """The value that workers and `policy.json` get. Makes the module once, for the names of its tensors."""
        from rlz.acting.flat import manifest

        keywords: dict[str, Any] = {}
        network: Any = self.network
        if isinstance(network, partial) and not network.args:
            network, keywords = network.func, dict(network.keywords)
        own = {field.name: getattr(self, field.name) for field in fields(self)}
        return PolicySpec(
            runner="torch",
            network={
                "rule": reference_to(type(self)),
                "module": reference_to(network),
                "arguments": keywords,
                "settings": {name: value for name, value in own.items() if name not in ("network", "extras")},
                "spaces": spaces.to_json(),
            },
            manifest=manifest(self.build(spaces)),
            extras=self.extras,
        )


@dataclass(frozen=True)
class EpsilonGreedy(Rule):
    """The choice of highest value, or with probability epsilon a uniform one (Watkins 1989; Mnih et al. 2015).

    The module gives a value for each choice: [m, n], for MultiDiscrete those of all components side by side. Epsilon
    falls linearly with the env steps. Evaluation is greedy.

    Attributes
    ----------
    start, end : epsilon at the beginning, and when it has fallen.
    over : part of the run's env steps during which it falls, 0 to 1.
    spread : environment i of n uses epsilon ** (1 + spread * i / (n - 1)); 0: all use epsilon. With start = end = 0.4
        and spread = 7 that of Ape-X (Horgan et al. 2018, arXiv 1803.00933, section 4.1).
    """

    head = EPSILON_GREEDY
    start: float = 1.0
    end: float = 0.05
    over: float = 0.1
    spread: float = 0.0

    def __post_init__(self) -> None:
        """Check the numbers."""
        for name in ("start", "end", "over"):
            value = getattr(self, name)
            if not 0.0 <= value <= 1.0:
                raise ConfigError(f"EpsilonGreedy: {name} is {value}, expected 0 to 1")
        if not 0.0 <= self.spread < np.inf:
            raise ConfigError(f"EpsilonGreedy: spread is {self.spread}, expected at least 0")

    def epsilon(self, progress: float, ranks: NDArray[np.float32] | None = None) -> Any:
        """Probability of a uniform choice; with ranks [m] one for each: [m]."""
        done = 1.0 if self.over == 0.0 else min(progress / self.over, 1.0)
        linear = (1.0 - done) * self.start + done * self.end
        return linear if ranks is None or self.spread == 0.0 else linear ** (1.0 + self.spread * ranks)

    def act(self, module: nn.Module, obs: Tensor, spaces: EnvSpec, moment: Moment) -> tuple[Tensor, dict[str, Tensor]]:
        """See `Rule.act`."""
        import torch

        choices = _choices(self, spaces)
        outputs, extras = outputs_of(module, obs)
        values = _checked(outputs, len(obs), sum(choices), "the values of all choices")
        # With numpy: for a few rows each call of it takes a fraction of torch's.
        known = values.detach().cpu().numpy()
        parts = np.split(known, np.cumsum(choices)[:-1], 1) if len(choices) > 1 else [known]
        chosen = np.stack([part.argmax(1) for part in parts], 1)
        if not moment.deterministic:
            explore = moment.random.random(len(obs)) < self.epsilon(moment.progress, moment.ranks)
            if explore.any():
                chosen[explore] = moment.random.integers(choices, size=(int(explore.sum()), len(choices)))
        return torch.from_numpy(chosen), extras


@dataclass(frozen=True)
class Categorical(Rule):
    """The module gives logits of all choices [m, n], for MultiDiscrete those of all components side by side.

    Evaluation takes the most likely choice, the first of equals.
    """

    head = CATEGORICAL

    def act(self, module: nn.Module, obs: Tensor, spaces: EnvSpec, moment: Moment) -> tuple[Tensor, dict[str, Tensor]]:
        """See `Rule.act`."""
        import torch

        choices = _choices(self, spaces)
        outputs, extras = outputs_of(module, obs)
        logits = _checked(outputs, len(obs), sum(choices), "the logits of all choices")
        parts = torch.split(logits, list(choices), 1)
        drawn: list[Any] = [torch.distributions.Categorical(logits=part, validate_args=False) for part in parts]
        if moment.deterministic:
            action = torch.stack([part.argmax(1) for part in parts], 1)
        else:
            action = torch.stack([one.sample() for one in drawn], 1)
        if self.keeps("log_prob"):
            chosen = zip(drawn, action.unbind(1), strict=True)
            extras["log_prob"] = torch.stack([one.log_prob(column) for one, column in chosen]).sum(0)
        return action, extras


@dataclass(frozen=True)
class Gaussian(Rule):
    """The module gives the mean, then the log standard deviation [m, 2 * action_dim] of a Gaussian.

    Actions are not bounded: the environment gets them clipped to [-1, 1], and "log_prob" is that of the drawn one.
    Evaluation takes the mean.
    """

    head = GAUSSIAN

    def act(self, module: nn.Module, obs: Tensor, spaces: EnvSpec, moment: Moment) -> tuple[Tensor, dict[str, Tensor]]:
        """See `Rule.act`."""
        import torch

        outputs, extras = outputs_of(module, obs)
        mean, log_std = _checked(outputs, len(obs), 2 * spaces.action_dim).chunk(2, dim=1)
        normal: Any = torch.distributions.Normal(mean, log_std.exp(), validate_args=False)
        action = mean if moment.deterministic else normal.sample()
        if self.keeps("log_prob"):
            extras["log_prob"] = normal.log_prob(action).sum(1)
        return action, extras


@dataclass(frozen=True)
class SquashedGaussian(Rule):
    """The module gives the mean, then the log standard deviation [m, 2 * action_dim] of a Gaussian squashed by tanh.

    As the head of that name of the networks in Rust; evaluation takes tanh of the mean.
    """

    head = SQUASHED_GAUSSIAN

    def act(self, module: nn.Module, obs: Tensor, spaces: EnvSpec, moment: Moment) -> tuple[Tensor, dict[str, Tensor]]:
        """See `Rule.act`."""
        import torch

        from rlz.networks.distributions import squashed_gaussian

        outputs, extras = outputs_of(module, obs)
        head = _checked(outputs, len(obs), 2 * spaces.action_dim)
        noise = torch.zeros(len(obs), spaces.action_dim)
        if not moment.deterministic:
            noise.normal_()
        action, log_prob = squashed_gaussian(head, noise.to(head.device))
        return action, {**extras, "log_prob": log_prob} if self.keeps("log_prob") else extras


@dataclass(frozen=True)
class Deterministic(Rule):
    """The module gives actions before tanh [m, action_dim]; training adds Gaussian noise behind it.

    Attributes
    ----------
    exploration_noise : standard deviation of the noise, in units of the action in [-1, 1].
    """

    head = DETERMINISTIC
    exploration_noise: float = 0.0

    def act(self, module: nn.Module, obs: Tensor, spaces: EnvSpec, moment: Moment) -> tuple[Tensor, dict[str, Tensor]]:
        """See `Rule.act`."""
        import torch

        outputs, extras = outputs_of(module, obs)
        action = torch.tanh(_checked(outputs, len(obs), spaces.action_dim))
        if not moment.deterministic and self.exploration_noise > 0.0:
            noise = torch.randn(action.shape).to(action.device)
            action = (action + self.exploration_noise * noise).clamp(-1.0, 1.0)
        return action, extras


HEADS: Mapping[str, type[Rule]] = {
    rule.head: rule for rule in (SquashedGaussian, Deterministic, Gaussian, Categorical, EpsilonGreedy)
}
"""The rule of each head that Rust knows."""


def policy_of(
    network: Mlp | OwnNetwork,
    spaces: EnvSpec,
    head: str,
    exploration: Mapping[str, float] | None = None,
    *,
    value: Values = "none",
    extras: tuple[Field, ...] = (),
) -> PolicySpec:
    """The policy of an algorithm's network: Rust runs perceptrons, torch a user's own.

    Parameters
    ----------
    head, value, extras : as for `native_policy`.
    exploration : further arguments of the head's rule, such as `exploration_noise`.
    """
    more: dict[str, Any] = dict(exploration or {})
    if isinstance(network, OwnNetwork):
        return HEADS[head](load(network.source), extras, network.outputs, **more).policy(spaces)
    if head == EPSILON_GREEDY:
        more = {"epsilon": more}
    if spaces.action_choices:
        more["choices"] = list(spaces.action_choices)
    return native_policy(network, spaces.action_dim, head, value=value, extras=extras, **more)


def as_rule(acting: Rule | Callable[[EnvSpec], nn.Module]) -> Rule:
    """A rule as it is; a class of modules acts with what they return."""
    return acting if isinstance(acting, Rule) else Rule(acting)


def rule_of(network: Mapping[str, Any], extras: tuple[Field, ...] = ()) -> tuple[Rule, EnvSpec]:
    """Inverse of `Rule.policy`: the rule and the spaces. Imports the user's file."""
    module = load(network["module"])
    if network["arguments"]:
        module = partial(module, **network["arguments"])
    kind: type[Rule] = load(network["rule"])
    return kind(network=module, extras=extras, **network["settings"]), EnvSpec.from_json(network["spaces"])


def _mode(distribution: Any) -> Tensor:
    """The deterministic action of a distribution: its mode; through its transforms where it has some; else its mean."""
    if hasattr(distribution, "base_dist") and hasattr(distribution, "transforms"):
        action = _mode(distribution.base_dist)
        for transform in distribution.transforms:
            action = transform(action)
        return action
    try:
        mode: Tensor = distribution.mode
    except NotImplementedError:
        mode = distribution.mean
    return mode


def outputs_of(module: nn.Module, obs: Tensor) -> tuple[Any, dict[str, Tensor]]:
    """What a module gives for its action, and what else by name."""
    given = module(obs)
    if not isinstance(given, Mapping):
        return given, {}
    return given["action"], {name: value for name, value in given.items() if name != "action"}


def _choices(rule: Rule, spaces: EnvSpec) -> tuple[int, ...]:
    if not spaces.action_choices:
        raise ConfigError(f"{type(rule).__name__} needs choices; the actions of {spaces.env_id} are a Box")
    return spaces.action_choices


def _checked(outputs: Tensor, rows: int, width: int, what: str = "") -> Tensor:
    if outputs.shape != (rows, width):
        raise PolicyError(
            f"the module gave {list(outputs.shape)} for {rows} observations; expected "
            f"{what}{', ' if what else ''}[{rows}, {width}]{'' if what else ' for this head'}"
        )
    return outputs
