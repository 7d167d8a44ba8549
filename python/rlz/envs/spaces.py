"""What rlz needs to know of an environment's spaces: checked once, then passed to every worker as JSON."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from rlz.errors import EnvError

if TYPE_CHECKING:
    import gymnasium

Field = tuple[str, str, tuple[int, ...]]
"""(name, dtype, shape) of a replay row's field, as `rlz._native` takes it."""

_NATIVE = {
    "float16": "f16",
    "float32": "f32",
    "float64": "f64",
    "uint8": "u8",
    "int8": "i8",
    "uint16": "u16",
    "int16": "i16",
    "uint32": "u32",
    "int32": "i32",
    "uint64": "u64",
    "int64": "i64",
    "bool": "bool",
}


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
        Shape and numpy dtype name of an action as the environment takes it.
    action_low, action_high
        Bounds, flattened in C order, finite.
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
        observation = _box(
            env_id, "observation_space", env.observation_space, "A flattening wrapper (--wrapper) may make a Box of it."
        )
        action = _box(env_id, "action_space", env.action_space, "The algorithms of rlz need continuous actions.")
        if np.dtype(action.dtype).kind != "f":
            raise EnvError(
                f"{env_id} has the action_space {action} of {action.dtype}; rlz supports Box actions of float16, "
                "float32 or float64."
            )
        low, high = np.asarray(action.low, np.float64), np.asarray(action.high, np.float64)
        bad = np.flatnonzero(~(np.isfinite(low) & np.isfinite(high)).reshape(-1))
        if bad.size:
            raise EnvError(
                f"{env_id} has the action_space {action}: component {bad[0]} goes from {low.reshape(-1)[bad[0]]} to "
                f"{high.reshape(-1)[bad[0]]}. Finite bounds are needed; a wrapper of your own (--wrapper) can "
                "give some."
            )
        stored = np.dtype(observation.dtype)
        if stored.kind == "f" and stored.itemsize > 4 and obs_dtype != "native":
            stored = np.dtype(np.float32)
        if stored.name not in _NATIVE:
            raise EnvError(f"{env_id} has the observation_space {observation}: the dtype {stored} cannot be stored.")
        limit = env.spec.max_episode_steps if env.spec is not None else None
        return cls(
            env_id=env_id,
            obs_shape=tuple(int(size) for size in observation.shape or ()),
            obs_dtype=stored.name,
            action_shape=tuple(int(size) for size in action.shape or ()),
            action_dtype=np.dtype(action.dtype).name,
            action_low=tuple(low.reshape(-1).tolist()),
            action_high=tuple(high.reshape(-1).tolist()),
            max_episode_steps=None if limit is None else int(limit),
        )

    @property
    def obs_dim(self) -> int:
        """Numbers in an observation."""
        return math.prod(self.obs_shape)

    @property
    def action_dim(self) -> int:
        """Numbers in an action."""
        return math.prod(self.action_shape)

    def fields(self) -> list[Field]:
        """Fields of a replay row: obs, action (flat, float32, in [-1, 1]), next_obs, reward, discount."""
        obs = _NATIVE[self.obs_dtype]
        return [
            ("obs", obs, self.obs_shape),
            ("action", "f32", (self.action_dim,)),
            ("next_obs", obs, self.obs_shape),
            ("reward", "f32", ()),
            ("discount", "f32", ()),
        ]

    def to_json(self) -> dict[str, Any]:
        """Return a dict of JSON values; floats survive exactly."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Inverse of `to_json`."""
        plain: dict[str, Any] = {name: tuple(item) if isinstance(item, list) else item for name, item in values.items()}
        return cls(**plain)


def _box(env_id: str, which: str, space: object, advice: str) -> "gymnasium.spaces.Box":
    from gymnasium.spaces import Box

    if not isinstance(space, Box):
        raise EnvError(f"{env_id} has the {which} {space}; rlz supports Box. {advice}")
    if math.prod(space.shape) == 0:
        raise EnvError(f"{env_id} has the {which} {space}, which holds no number.")
    return space
