"""The level at which a single-file algorithm fits: modules and optimisers as attributes, one `learn(batch, update)`.

It runs eagerly, at once. What is an attribute is saved, restored, moved to the device and published by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from rlz.acting.rules import Rule, as_rule
from rlz.algorithms.base import Algorithm, Batch, Segments
from rlz.algorithms.settings import LearningSettings, ReplaySettings
from rlz.answers import Answers, PolicySpec, Replay, Rollout
from rlz.errors import CheckpointError, ConfigError
from rlz.lazy import Lazy

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from torch import Tensor, nn

    from rlz.envs.spaces import EnvSpec
else:
    torch = Lazy("torch")

S = TypeVar("S", bound=LearningSettings)

TD_ERRORS = "td_errors"
"""What `learn` gives under this name are |TD errors| [batch], for prioritised replay; they are no metric."""


class TorchAlgorithm(Algorithm[S]):
    """An algorithm as modules and optimisers.

    A class of a user's own gives `acting`, `setup` and `learn`:

    - `acting`: the class of the module that acts (called with the spaces), or a rule such as `rlz.EpsilonGreedy(Net)`.
    - `setup()`: makes modules and optimisers, as attributes. The first attribute that is such a module acts, unless
      `actor()` names another.
    - `learn(batch, update)`: one update, numbered from 1; gives its metrics by name, any names, each a number or a
      0-d tensor. With `--prioritized` it also gives "td_errors" [batch].
    - `prepare(state, segments, done)`, where `Settings` are `rlz.RolloutSettings`: the rows of a rollout, made once of
      its `Segments`, without gradients; `learn` gets batches of them. `state` is None.

    Saved and restored are attributes that are modules, optimisers, schedulers (anything with a `state_dict`), tensors
    and numbers. `settings.learning_rate` may be text such as lin_3e-4: make optimisers with `self.learning_rate`, where
    the schedule begins; it is followed in every optimiser.

    `metrics` may list names beforehand: those that the first update does not give.

    Attributes
    ----------
    settings, spaces
        As for every algorithm.
    learning_rate
        Of the first update.
    device
        Of the modules and of every batch.
    """

    Settings: ClassVar[type[LearningSettings]] = ReplaySettings
    acting: ClassVar[Rule | Callable[[EnvSpec], nn.Module]]

    def __init__(self, settings: S, spaces: EnvSpec) -> None:
        super().__init__(settings, spaces)
        self.learning_rate = settings.learning_rate_at(0.0)
        self.device: torch.device | str = "cpu"
        self._own = frozenset(vars(self)) | {"_own"}

    def setup(self) -> None:
        """Make modules and optimisers, as attributes."""
        raise NotImplementedError(f"{type(self).__name__} has no setup()")

    def learn(self, batch: Any, update: int) -> Mapping[str, Any]:
        """One update, numbered from 1; gives its metrics by name."""
        raise NotImplementedError(f"{type(self).__name__} has no learn(batch, update)")

    def actor(self) -> nn.Module:
        """The module that acts; its tensors are published."""
        made = as_rule(type(self).acting).network
        kind = getattr(made, "func", made)
        for value in vars(self).values():
            if isinstance(value, torch.nn.Module) and (not isinstance(kind, type) or isinstance(value, kind)):
                return value
        raise ConfigError(
            f"{type(self).__name__}: no attribute is a {getattr(kind, '__name__', kind)} after setup(). "
            "`acting` names the class of the module that acts; make one there, or give it in actor()."
        )

    # -- what rlz asks ---------------------------------------------------------------------------------------------

    def policy(self) -> PolicySpec:
        """What acts: its rule, the module's class, and the names of its tensors."""
        acting = getattr(type(self), "acting", None)
        if acting is None:
            raise ConfigError(f"{type(self).__name__} does not say what acts: give `acting = Net`, a class of modules")
        return as_rule(acting).policy(self.spaces)

    def answers(self) -> Answers:
        """What a run asks before it starts. `learn` runs once, on rows of zeros, for the names of its metrics."""
        data = self.data()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.setup()
            found = self.learn(self._zeros(data), 1)
        if not isinstance(found, Mapping):
            given = type(found).__name__
            raise ConfigError(f"{type(self).__name__}.learn gave a {given}, expected metrics by name: {{'loss': ...}}")
        measured = (name for name in found if name != TD_ERRORS)
        return Answers(data, self.policy(), tuple(dict.fromkeys((*self.metrics, *measured))))

    def _zeros(self, data: Replay | Rollout) -> Any:
        spaces, rows = self.spaces, data.batch
        obs = torch.zeros(rows, *spaces.obs_shape)
        action = torch.zeros(rows, spaces.action_dim, dtype=torch.int64 if spaces.discrete else torch.float32)
        if isinstance(data, Replay):
            weight = torch.ones(rows) if data.priority is not None else None
            return Batch(obs, action, obs.clone(), torch.zeros(rows), torch.ones(rows), weight)
        obs, ends = obs.view(rows, 1, -1), torch.zeros(rows, 1, dtype=torch.bool)
        extras = {name: torch.zeros(rows, 1, *shape) for name, _, shape in self.policy().extras}
        steps = Segments(obs, action.unsqueeze(1), obs.clone(), torch.zeros(rows, 1), ends, ends.clone(), extras)
        with torch.no_grad():
            return self.prepare(None, steps, 0.0)

    def in_precision(self, precision: str) -> TorchAlgorithm[S]:
        """Itself; what its modules compute in is their own business."""
        return self

    # -- what is saved ---------------------------------------------------------------------------------------------

    def parts(self) -> Iterator[tuple[str, Any]]:
        """Attributes that have a state, by name."""
        for name, value in vars(self).items():
            if name not in self._own and (hasattr(value, "state_dict") or isinstance(value, torch.Tensor)):
                yield name, value

    def numbers(self) -> dict[str, float]:
        """Attributes that are plain numbers, by name."""
        return {
            name: value
            for name, value in vars(self).items()
            if name not in self._own and isinstance(value, bool | int | float)
        }

    def state_dict(self, state: Any = None) -> dict[str, Tensor]:
        """Tensors of every part by name, for instance `net.body.0.weight`, `optimizer.state.0.exp_avg`."""
        named: dict[str, Tensor] = {}
        for name, part in self.parts():
            if isinstance(part, torch.Tensor):
                named[name] = part
            else:
                named |= {f"{name}.{path}": _tensor(value) for path, value in _flat(part.state_dict())}
        return named | {name: _tensor(value) for name, value in self.numbers().items()}

    def load_state_dict(self, state: Any, tensors: Mapping[str, Tensor]) -> None:
        """Take what `state_dict` gave. Raises CheckpointError where names or shapes differ."""
        left = dict(tensors)
        for name, part in self.parts():
            if isinstance(part, torch.Tensor):
                part.data.copy_(_taken(left, name))
                continue
            own = {path: left.pop(f"{name}.{path}") for path in _below(left, name)}
            try:
                part.load_state_dict(_nested(part.state_dict(), own))
            except (KeyError, RuntimeError, ValueError) as error:
                raise CheckpointError(f"{name} does not fit the checkpoint: {error}") from error
        for name, value in self.numbers().items():
            setattr(self, name, type(value)(_taken(left, name).item()))
        if left:
            raise CheckpointError(
                f"the checkpoint has {', '.join(sorted(left)[:3])}, which {type(self).__name__} lacks"
            )


def _tensor(value: Any) -> Tensor:
    """A tensor as it is; a number as a tensor without dimensions that holds it exactly."""
    if isinstance(value, torch.Tensor):
        return value
    return torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else torch.int64)


def _flat(state: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Tensors and numbers of a nested state, with their paths. What else there is (names, None) is left out."""
    if isinstance(state, Mapping):
        for key, value in state.items():
            yield from _flat(value, f"{prefix}{key}.")
    elif isinstance(state, list | tuple):
        for key, value in enumerate(state):
            yield from _flat(value, f"{prefix}{key}.")
    elif isinstance(state, bool | int | float | torch.Tensor):
        yield prefix[:-1], state


def _nested(like: Any, tensors: Mapping[str, Tensor]) -> Any:
    """A state such as `like` with these values. An optimizer's own part is empty before its first step."""
    left = dict(tensors)
    filled = _filled(like, left, "")
    for path, tensor in left.items():
        group, _, rest = path.partition(".")
        index, _, field = rest.partition(".")
        if group != "state" or not index.isdigit() or not isinstance(filled, dict):
            raise KeyError(f"{path} is not known here")
        filled["state"].setdefault(int(index), {})[field] = tensor
    return filled


def _filled(like: Any, left: dict[str, Tensor], prefix: str) -> Any:
    if isinstance(like, Mapping):
        return {key: _filled(value, left, f"{prefix}{key}.") for key, value in like.items()}
    if isinstance(like, list | tuple):
        return type(like)(_filled(value, left, f"{prefix}{index}.") for index, value in enumerate(like))
    if isinstance(like, torch.Tensor):
        return _taken(left, prefix[:-1])
    if isinstance(like, bool | int | float):
        return type(like)(_taken(left, prefix[:-1]).item())
    return like


def _taken(left: dict[str, Tensor], name: str) -> Tensor:
    if name not in left:
        raise CheckpointError(f"the checkpoint lacks {name}; was it made by another version of the algorithm?")
    return left.pop(name)


def _below(tensors: Mapping[str, Tensor], name: str) -> list[str]:
    return [path.removeprefix(f"{name}.") for path in tensors if path.startswith(f"{name}.")]
