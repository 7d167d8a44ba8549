"""What rlz needs to know of an environment's spaces: checked once, then passed to every worker as JSON."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from rlz.dtypes import NATIVE
from rlz.errors import EnvError

if TYPE_CHECKING:
    import gymnasium

Field = tuple[str, str, tuple[int, ...]]
"""(name, dtype, shape) of a replay row's field, as `rlz._native` takes it."""


LARGEST_BOUND = 1e15
"""Half of an action's range from which on its bounds stand for none."""


@dataclass(frozen=True)
class EnvSpec:
    """Spaces of an environment.

    Attributes
    ----------
    env_id
        The id as it was given.
    obs_shape, obs_dtype
        Shape of an observation, and numpy name of the dtype that it is stored with.
    action_shape, action_dtype
        Shape and numpy dtype name of an action as the environment takes it. An integer dtype means discrete actions.
    action_low, action_high
        Bounds, flattened in C order, finite. Of discrete actions the first and the last choice.
    max_episode_steps
        Limit after which an episode is truncated, None where the environment states none.
    """

    env_id: str
    obs_shape: tuple[int, ...]
    obs_dtype: str
    action_shape: tuple[int, ...]
    action_dtype: str
    action_low: tuple[float, ...]
    action_high: tuple[float, ...]
    max_episode_steps: int | None

    @classmethod
    def of(cls, env_id: str, env: "gymnasium.Env[Any, Any]", obs_dtype: str = "float32") -> Self:
        """Read and check the spaces of an environment.

        Parameters
        ----------
        env_id, env
            The environment and how to call it in messages.
        obs_dtype
            "float32": float64 observations are stored as float32; "native": as they are.

        Raises
        ------
        EnvError
            A space is not supported; the message names it and says what is.
        """
        observation = _observation(env_id, env.observation_space)
        low, high, dtype = _bounds(env_id, env.action_space)
        stored = np.dtype(observation.dtype)
        if stored.kind == "f" and stored.itemsize > 4 and obs_dtype != "native":
            stored = np.dtype(np.float32)
        if stored.name not in NATIVE:
            raise EnvError(f"{env_id} has the observation_space {observation}: the dtype {stored} cannot be stored.")
        limit = env.spec.max_episode_steps if env.spec is not None else None
        return cls(
            env_id=env_id,
            obs_shape=tuple(int(size) for size in observation.shape or ()),
            obs_dtype=stored.name,
            action_shape=tuple(int(size) for size in low.shape),
            action_dtype=dtype.name,
            action_low=tuple(low.reshape(-1).tolist()),
            action_high=tuple(high.reshape(-1).tolist()),
            max_episode_steps=None if limit is None else int(limit),
        )

    @classmethod
    def of_sizes(cls, obs: int, action: int = 1, choices: tuple[int, ...] = ()) -> Self:
        """Flat float32 observations, and actions in [-1, 1] or choices, for programs without an environment."""
        if choices:
            shape = () if len(choices) == 1 else (len(choices),)
            low, high = (0.0,) * len(choices), tuple(float(count - 1) for count in choices)
            return cls("sizes", (obs,), "float32", shape, "int64", low, high, None)
        ones = (1.0,) * action
        return cls("sizes", (obs,), "float32", (action,), "float32", tuple(-one for one in ones), ones, None)

    @property
    def obs_dim(self) -> int:
        """Numbers in an observation."""
        return math.prod(self.obs_shape)

    @property
    def action_dim(self) -> int:
        """Numbers in an action."""
        return math.prod(self.action_shape)

    @property
    def discrete(self) -> bool:
        """Whether actions are choices: Discrete, MultiDiscrete or MultiBinary."""
        return np.dtype(self.action_dtype).kind != "f"

    @property
    def action_choices(self) -> tuple[int, ...]:
        """Choices of each component of a discrete action; empty for Box actions."""
        if not self.discrete:
            return ()
        return tuple(int(last - first) + 1 for first, last in zip(self.action_low, self.action_high, strict=True))

    @property
    def action_field(self) -> Field:
        """An action as rlz holds it, always flat: float32 in [-1, 1], or the index of each choice, from 0, as int64."""
        return ("action", "i64" if self.discrete else "f32", (self.action_dim,))

    def require_box_actions(self, who: str) -> None:
        """Raise EnvError unless actions are a Box. `who`: the algorithm that needs that, for the message."""
        if self.discrete:
            raise EnvError(
                f"{self.env_id} has the action_space {self._action_space}; {who} needs continuous actions (a Box). A "
                "wrapper of your own (--wrapper) may state a Box and choose by it."
            )

    def require_one_choice(self, who: str) -> None:
        """Raise EnvError unless an action is one choice. `who`: the algorithm that needs that, for the message."""
        if len(self.action_choices) != 1:
            raise EnvError(
                f"{self.env_id} has the action_space {self._action_space}; {who} needs one choice (Discrete). A "
                "wrapper of your own (--wrapper) may state a Discrete space."
            )

    @property
    def _action_space(self) -> str:
        if not self.discrete:
            return f"Box of shape {self.action_shape}"
        choices = ", ".join(map(str, self.action_choices))
        return f"MultiDiscrete([{choices}])" if self.action_shape else f"Discrete({choices})"

    @property
    def row_action_dtype(self) -> "np.dtype[Any]":
        """The numpy dtype of `action_field`."""
        return np.dtype(np.int64 if self.discrete else np.float32)

    def fields(self) -> list[Field]:
        """Fields of a replay row: obs, action (see `action_field`), next_obs, reward, discount."""
        obs = NATIVE[self.obs_dtype]
        return [
            ("obs", obs, self.obs_shape),
            self.action_field,
            ("next_obs", obs, self.obs_shape),
            ("reward", "f32", ()),
            ("discount", "f32", ()),
        ]

    def segment_fields(self) -> list[Field]:
        """Fields of one step of a segment: obs, action, next_obs, reward, terminated, truncated.

        Every step has its true next observation: a truncated one bootstraps from it, wherever in the segment it is.
        Leaving it out of the steps that need none would take a bound on the truncations of a segment, which no
        environment states.
        """
        obs, action, next_obs, reward, _ = self.fields()
        return [obs, action, next_obs, reward, ("terminated", "bool", ()), ("truncated", "bool", ())]

    def to_json(self) -> dict[str, Any]:
        """Return a dict of JSON values; floats survive exactly."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Inverse of `to_json`."""
        plain: dict[str, Any] = {name: tuple(item) if isinstance(item, list) else item for name, item in values.items()}
        return cls(**plain)


def _observation(env_id: str, space: object) -> "gymnasium.spaces.Box":
    from gymnasium import spaces

    if not isinstance(space, spaces.Box):
        vectors = (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary, spaces.Dict, spaces.Tuple)
        advice = (
            "--wrapper gymnasium.wrappers:FlattenObservation makes one vector of it (of a choice: one-hot)."
            if isinstance(space, vectors)
            else "A wrapper of your own (--wrapper) can make a Box of it."
        )
        raise EnvError(f"{env_id} has the observation_space {space}; rlz supports Box. {advice}")
    if math.prod(space.shape) == 0:
        raise EnvError(f"{env_id} has the observation_space {space}, which holds no number.")
    return space


def _check_size(has: str, low: NDArray[Any], high: NDArray[Any], dtype: "np.dtype[Any]") -> None:
    """Refuse bounds that stand for none: rlz spreads its actions over all of a range."""
    with np.errstate(over="ignore"):
        half = high / 2 - low / 2
    none = np.flatnonzero(half >= min(LARGEST_BOUND, float(np.finfo(dtype).max) / 2))
    if none.size:
        at = int(none[0])
        raise EnvError(
            f"{has}: component {at} goes from {low[at]:g} to {high[at]:g}, which is as good as no bound, and rlz "
            "spreads its actions over the whole range. A wrapper of your own (--wrapper) can state the range that is "
            "meant."
        )


def _bounds(env_id: str, space: object) -> tuple[NDArray[Any], NDArray[Any], "np.dtype[Any]"]:
    """First and last value of each component of an action, in the action's shape, and the dtype of an action."""
    from gymnasium import spaces

    has = f"{env_id} has the action_space {space}"
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        if isinstance(space, spaces.MultiBinary):
            first, count = np.zeros(space.shape, np.int64), np.full(space.shape, 2, np.int64)
        else:
            first = np.asarray(space.start, np.int64)
            count = np.asarray(space.n if isinstance(space, spaces.Discrete) else space.nvec, np.int64)
        if count.size == 0:
            raise EnvError(f"{has}, which holds no number.")
        return first, first + count - 1, np.dtype(space.dtype)
    if not isinstance(space, spaces.Box):
        raise EnvError(
            f"{has}; rlz supports Box, Discrete, MultiDiscrete and MultiBinary. A wrapper of your own (--wrapper) "
            "whose action() takes one of these and makes the environment's action of it helps."
        )
    if math.prod(space.shape) == 0:
        raise EnvError(f"{has}, which holds no number.")
    dtype = np.dtype(space.dtype)
    if dtype.kind != "f":
        raise EnvError(
            f"{has} of {dtype}; rlz supports Box actions of float16, float32 or float64. For choices, a wrapper of "
            "your own (--wrapper) can state MultiDiscrete."
        )
    low, high = np.asarray(space.low, np.float64), np.asarray(space.high, np.float64)
    bad = np.flatnonzero(~(np.isfinite(low) & np.isfinite(high)).reshape(-1))
    if bad.size:
        raise EnvError(
            f"{has}: component {bad[0]} goes from {low.reshape(-1)[bad[0]]} to {high.reshape(-1)[bad[0]]}. Finite "
            "bounds are needed; a wrapper of your own (--wrapper) can give some."
        )
    _check_size(has, low.reshape(-1), high.reshape(-1), dtype)
    return low, high, dtype
