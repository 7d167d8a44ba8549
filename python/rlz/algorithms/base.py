"""What an algorithm is to the rest of rlz: answers before a run, then a pure update on a tuple of tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, Self, TypeVar

from rlz.algorithms.settings import RolloutSettings, Settings
from rlz.answers import Answers, PolicySpec, Replay, Rollout
from rlz.errors import CheckpointError, ConfigError
from rlz.lazy import Lazy
from rlz.networks.layout import FlatNetwork

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from rlz.envs.spaces import EnvSpec
else:
    torch = Lazy("torch")

S = TypeVar("S", bound=Settings)

WHOLE = "whole"
"""Kind of an update of everything that an algorithm learns."""

CRITIC = "critic"
"""Kind of an update of the critics alone."""

CRITIC_TARGET = "critic_target"
"""Kind of an update of the critics and their target networks."""

ACTOR = "actor"
"""Kind of an update of all that CRITIC_TARGET leaves: after it, on the same batch and noise, it makes it WHOLE."""


class Batch(NamedTuple):
    """Transitions, one per row, on the learner's device. All floating point, but for choices.

    `discount` is gamma (gamma^k for a k-step reward), and 0 where the episode terminated: the only place where
    termination enters a target. A truncated transition bootstraps from its true final `next_obs`.

    With a `weight` (prioritised replay) the critic's loss is a weighted mean, and the update gives TD errors back.
    """

    obs: Tensor  # [batch, obs_dim]
    action: Tensor  # [batch, action_dim] in [-1, 1]; choices: indices, int64
    next_obs: Tensor  # [batch, obs_dim]
    reward: Tensor  # [batch]
    discount: Tensor  # [batch]
    weight: Tensor | None = None  # [batch], importance weights

    def tensors(self) -> tuple[Tensor, ...]:
        """Every field that is there."""
        return tuple(tensor for tensor in self if tensor is not None)


class Segments(NamedTuple):
    """Segments of consecutive steps, one of each environment, on the learner's device.

    An episode that ends within a segment is followed by the first step of the next one. `next_obs` is the true next
    observation of every step, also where the episode was truncated.
    """

    obs: Tensor  # [segments, length, obs_dim]
    action: Tensor  # [segments, length, action_dim]: as it was drawn, which may be outside of [-1, 1]; or choices
    next_obs: Tensor  # [segments, length, obs_dim]
    reward: Tensor  # [segments, length]
    terminated: Tensor  # [segments, length], bool
    truncated: Tensor  # [segments, length], bool
    extras: Mapping[str, Tensor]  # what the policy gave beside the action, [segments, length, ...]


class Side(NamedTuple):
    """What one of two devices does and owns when critics and actor are updated apart (Spreeze, arXiv 2312.06126)."""

    name: str  # "critic" or "actor"
    cycle: tuple[str | None, ...]  # kinds of its updates in their order; None: nothing to do in this one
    fields: tuple[str, ...]  # of the state: what its updates change
    gives: tuple[str, ...]  # of these: what the updates of the other side read


class Outcome(NamedTuple):
    """What one update gives."""

    state: Any  # the new state, same type and shapes as the old; what did not change is the very tensor of the old one
    metrics: Tensor  # [len(metrics)]; NaN: not measured by this kind of update
    checks: Tensor  # [len(checks)]: finite as long as the update is sound; 0: not checked by this kind
    td_errors: Tensor | None = None  # [batch], |TD error| as a mean over the critics; only for a batch with weights


class Algorithm(Generic[S]):
    """What an algorithm says of itself, and nothing of where or how fast it runs.

    A class of a user's own derives from this, states its `Settings` and `metrics`, and gives `policy`, `init`,
    `noise_shape`, `update` and `published`. What is asked before a run (settings, data, policy) needs no torch.

    `update` is pure and has no data-dependent control flow, so that an executor may run it eagerly, compile it whole,
    or capture it in a CUDA graph. Work that is not done in every update is another *kind* of update: a name that is
    known before the update runs, so each kind is compiled or captured once and costs only what it does.

    A state is a NamedTuple of tensors, everything that an update reads and writes; `updates` among them ([], int64)
    counts the updates. Its fields follow one rule: a field with the name of one of the algorithm's networks holds its
    flat parameters, `target_X` is a slow copy of X, `X_mean` and `X_square` are Adam's moments of it, all else is a
    plain tensor. So the tensors of a checkpoint have names by themselves.

    Attributes
    ----------
    Settings
        What it can be told: command line, TOML keys, checks and help are made from it.
    metrics
        Names of what an update measures: `train/<name>` in the logs.
    checks
        Names of what has to be finite in every update.
    batch_type
        A NamedTuple with `tensors()`: what an update gets.
    """

    Settings: ClassVar[type[Settings]] = Settings
    metrics: ClassVar[tuple[str, ...]] = ()
    checks: ClassVar[tuple[str, ...]] = ()
    batch_type: ClassVar[type[Any]] = Batch

    def __init__(self, settings: S, spaces: EnvSpec) -> None:
        self.settings = settings
        self.spaces = spaces

    def __repr__(self) -> str:
        """All that its updates depend on; compiled code is found again by it."""
        parts = ", ".join(f"{name}={value!r}" for name, value in sorted(vars(self).items()))
        return f"{type(self).__qualname__}({parts})"

    # -- asked before a run, without torch -------------------------------------------------------------------------

    def data(self) -> Replay | Rollout:
        """What it learns from; by default what its settings say: transitions, or segments with the policy's extras."""
        if isinstance(self.settings, RolloutSettings):
            return self.settings.data((*self.spaces.segment_fields(), *self.policy().extras))
        return self.settings.data(tuple(self.spaces.fields()))

    def policy(self) -> PolicySpec:
        """What acts."""
        raise NotImplementedError

    def memory(self, rows: int) -> int:
        """Bytes that a learner needs beside its process: the state, and an update of so many rows. 0: not known."""
        return 0

    def answers(self) -> Answers:
        """All of this as values."""
        fixed = self.memory(0)
        sides = tuple(side.name for side in self.sides)
        return Answers(self.data(), self.policy(), self.metrics, sides, (fixed, self.memory(1) - fixed))

    # -- asked by the learner --------------------------------------------------------------------------------------

    @property
    def cycle(self) -> tuple[str, ...]:
        """Kinds of the updates in their order: update n (from 0) is of kind `cycle[n % len(cycle)]`."""
        return (WHOLE,)

    @property
    def sides(self) -> tuple[Side, ...]:
        """The critics' and the actor's half of each update, every field of the state in one of them; or none."""
        return ()

    def in_precision(self, precision: str) -> Self:
        """The same algorithm with its matrix products in "fp32" or "bf16"."""
        if precision != "bf16":
            return self
        raise ConfigError(f"--precision bf16: {type(self).__name__} has no form in bf16. Use fp32, tf32 or auto.")

    def init(self, generator: torch.Generator, dtype: torch.dtype | None = None) -> Any:
        """Fresh state on the CPU; `dtype` None is float32."""
        raise NotImplementedError

    def noise_shape(self, batch_size: int) -> tuple[int, ...]:
        """Shape of the standard normal noise that one update consumes."""
        raise NotImplementedError

    def prepare(self, state: Any, segments: Segments, done: float) -> Any:
        """Rows to learn from, made once of the segments of a rollout: a `batch_type` of tensors [rows, ...].

        Every row counts alike: updates get the rows in any order. For an algorithm whose data are a `Rollout`.

        Parameters
        ----------
        state : before the first update on these rows; None for a `TorchAlgorithm`, which is its own.
        segments : of one rollout.
        done : part of the run that is over, 0 to 1.
        """
        raise NotImplementedError

    def update(self, state: Any, batch: Any, noise: Tensor, learning_rate: Tensor, kind: str = WHOLE) -> Outcome:
        """One update of a kind in `cycle` or in the cycle of a side. `learning_rate` is a 0-d tensor."""
        raise NotImplementedError

    def published(self, state: Any) -> Tensor:
        """Flat parameters of what acts, in the order of the policy's manifest."""
        raise NotImplementedError

    # -- helpers for whoever writes one ----------------------------------------------------------------------------

    def outcome(
        self,
        state: Any,
        metrics: Mapping[str, Tensor],
        checks: Mapping[str, Tensor],
        td_errors: Tensor | None = None,
    ) -> Outcome:
        """What an update gives, from the metrics and checks that its kind has, by name."""
        return Outcome(state, _stacked(metrics, self.metrics, math.nan), _stacked(checks, self.checks, 0.0), td_errors)

    def networks(self) -> dict[str, FlatNetwork]:
        """Its networks by name."""
        return {network.name: network for network in vars(self).values() if isinstance(network, FlatNetwork)}

    def state_dict(self, state: Any) -> dict[str, Tensor]:
        """Views by name, for instance `actor.0.weight`, `target.critic.head.bias`, `adam.square.actor.0.weight`."""
        networks = self.networks()
        named: dict[str, Tensor] = {}
        for field, tensor in state._asdict().items():
            prefix, of = _place(field)
            views = networks[of].named(tensor) if of in networks else {of: tensor}
            named |= {prefix + name: view for name, view in views.items()}
        return named

    def load_state_dict(self, state: Any, tensors: Mapping[str, Tensor]) -> None:
        """Copy tensors into the state, in place. Raises CheckpointError where names, shapes or dtypes differ."""
        load_tensors(self.state_dict(state), tensors)


def _stacked(values: Mapping[str, Tensor], names: tuple[str, ...], missing: float) -> Tensor:
    """0-d tensors in the order of `names`, `missing` where there is none: [len(names)]."""
    if unknown := values.keys() - set(names):
        raise KeyError(f"an update gave {', '.join(sorted(unknown))}, which the algorithm does not list")
    blank = torch.full_like(next(iter(values.values())), missing)
    return torch.stack([values.get(name, blank) for name in names])


def _place(field: str) -> tuple[str, str]:
    """Field of a state -> (prefix of its names, what it is or belongs to)."""
    for kind in ("mean", "square"):
        if field.endswith(f"_{kind}"):
            return f"adam.{kind}.", field.removesuffix(f"_{kind}")
    if field.startswith("target_"):
        return "target.", field.removeprefix("target_")
    return "", field


def load_tensors(into: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
    """Copy tensors by name. Raises CheckpointError, before anything is copied, where names, shapes or dtypes differ."""
    if missing := sorted(into.keys() - tensors.keys()):
        raise CheckpointError(f"the checkpoint lacks {', '.join(missing[:3])}; was it made with other networks?")
    if surplus := sorted(tensors.keys() - into.keys()):
        raise CheckpointError(f"the checkpoint has unknown {', '.join(surplus[:3])}; was it made with other networks?")
    for name, tensor in into.items():
        given = tensors[name]
        if given.shape != tensor.shape or given.dtype != tensor.dtype:
            raise CheckpointError(
                f"{name}: the checkpoint has {tuple(given.shape)} {given.dtype}, "
                f"this run {tuple(tensor.shape)} {tensor.dtype}; resume with the networks of the checkpoint"
            )
    for name, tensor in into.items():
        tensor.copy_(tensors[name])
