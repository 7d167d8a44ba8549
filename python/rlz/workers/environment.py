"""One environment as a sampler or an evaluator drives it: conversion, checks, and errors that say where.

Observations are written, flat and in the storage dtype, into arrays of the caller; actions come as rlz holds
them (`EnvSpec.action_field`).
"""

import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rlz.envs.actions import actions_of
from rlz.envs.folder import WATCH, Folder
from rlz.errors import EnvError, NonFiniteError
from rlz.workers.environment_state import capture, restore

if TYPE_CHECKING:
    import gymnasium

    from rlz.envs.spaces import EnvSpec

_LEARNED = np.dtype(np.float32)
"""What networks compute in, whatever an observation is stored as."""

_REWARD_LIMIT = float(np.finfo(np.float32).max)
_EVALUATION_BIT = 1 << 30


def training_seed(sequence: np.random.SeedSequence) -> int:
    """Reset seed of a training environment, below 2**30."""
    return int(sequence.generate_state(1)[0]) & (_EVALUATION_BIT - 1)


def evaluation_seed(sequence: np.random.SeedSequence) -> int:
    """Reset seed of an evaluation episode, from 2**30 to 2**31: never one of training."""
    return training_seed(sequence) | _EVALUATION_BIT


def _number(value: Any) -> float:
    array = np.asarray(math.nan if value is None else value)
    return float(array.reshape(-1)[0]) if array.size == 1 and array.dtype.kind in "fiub" else math.nan


class Environment:
    """A Gymnasium environment behind the two calls that rlz needs.

    Parameters
    ----------
    env : the environment, as `rlz.envs.make` made it.
    env_spec : its spaces, as the controller saw them.
    worker : name of the worker, for error messages.
    """

    def __init__(self, env: "gymnasium.Env[Any, Any]", env_spec: "EnvSpec", worker: str) -> None:
        self._name = env_spec.env_id
        self._worker = worker
        self._env = env
        self._step = env.step
        self._shape = tuple(env_spec.obs_shape)
        self._dtype = np.dtype(env_spec.obs_dtype)
        self._float = self._dtype.kind == "f"
        self._wide = self._dtype.itemsize > _LEARNED.itemsize
        self._flat = len(self._shape) == 1
        self._usual: np.dtype[Any] | None = None
        # 0 times a finite number is 0, times anything else NaN: one dot product finds every value that is not finite.
        self._zeros = np.zeros(env_spec.obs_dim, env_spec.obs_dtype)
        self._to_env = actions_of(env_spec).to_env
        self._steps = 0
        self._info: Any = {}
        self._home = os.getcwd()  # noqa: PTH109  (compared as it is)
        self._watch = WATCH
        self._watch.begin()

    @property
    def steps(self) -> int:
        """Calls of `step` so far."""
        return self._steps

    def room(self) -> NDArray[Any]:
        """Make an array for an observation [obs_dim]."""
        return np.zeros_like(self._zeros)

    def reset(self, obs: NDArray[Any], seed: int | None = None) -> None:
        """Reset; the first observation goes to `obs` [obs_dim].

        A seed is given to the spaces of the environment and its wrappers as well: some sample from them.

        Raises
        ------
        EnvError
            The environment raised, called exit, or gave something else than its space and Gymnasium's API say.
        NonFiniteError
            A value of the observation is not finite in the storage dtype.
        """
        try:
            if seed is not None:
                self._seed_spaces(seed)
            result: Any = self._env.reset(seed=seed)
        except (Exception, SystemExit) as error:
            raise self._raised("reset", error) from error
        finally:
            self._go_home()
        if not isinstance(result, tuple) or len(result) != 2:
            raise self._returned("reset", result, "(obs, info)")
        self._store("reset", result[0], obs)

    def step(self, action: NDArray[Any], next_obs: NDArray[Any]) -> tuple[float, bool, bool]:
        """Take one step; the (at an end: true final) observation goes to `next_obs` [obs_dim].

        Parameters
        ----------
        action : [action_dim] as rlz holds it (`EnvSpec.action_field`).
        next_obs : [obs_dim], storage dtype; written.

        Returns
        -------
        (reward, terminated, truncated)

        Raises
        ------
        EnvError, NonFiniteError
            As `reset`; also for a reward that is no number, or not finite in float32.
        """
        self._steps += 1
        try:
            result: Any = self._step(self._to_env(action))
        except (Exception, SystemExit) as error:
            self._go_home()
            raise self._raised("step", error) from error
        if self._watch.moved:
            self._go_home()
        try:
            obs, reward, terminated, truncated, self._info = result
        except (TypeError, ValueError):
            raise self._returned("step", result, "(obs, reward, terminated, truncated, info)") from None
        self._store("step", obs, next_obs)
        try:
            # An array of one number, as vector code gives it, is that number.
            value = float(reward.item() if type(reward) is np.ndarray else reward)
            ends = bool(terminated), bool(truncated)
        except (TypeError, ValueError):
            what = f"reward {reward!r}, terminated {terminated!r}, truncated {truncated!r}"
            raise EnvError(
                f"{self._where('step')} gave {what}; expected one number and two booleans (arrays of several: is it a "
                "vector environment?)"
            ) from None
        if not -_REWARD_LIMIT <= value <= _REWARD_LIMIT:
            what = f"the reward {value}"
            raise NonFiniteError(f"{self._where('step')} gave {what}, which is not a finite float32 number")
        return value, *ends

    def at_end(self, keys: Sequence[str]) -> tuple[float, ...]:
        """Numbers of the last step's info, by key; NaN for what is missing or no number."""
        info = self._info if isinstance(self._info, Mapping) else {}
        return tuple(_number(info.get(key)) for key in keys)

    def state(self) -> dict[str, Any] | None:
        """State between two steps as JSON values, None where it cannot be had (`environment_state.py`)."""
        return capture(self._env)

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a state of the same environment; after `reset`."""
        restore(self._env, state)

    def render(self) -> Any:
        """Return the current frame (with render_mode "rgb_array": uint8 [height, width, 3])."""
        try:
            return self._env.render()
        finally:
            self._go_home()

    def close(self) -> None:
        """Close the environment; an error while closing changes no result and is dropped."""
        try:
            self._env.close()
        except (Exception, SystemExit) as error:
            print(f"{self._name}: close() raised {type(error).__name__}: {error}")
        finally:
            self._go_home()

    def _go_home(self) -> None:
        """Bring the process back to its folder; what the environment has changed to is the environment's alone."""
        self._watch.moved = False
        with suppress(FileNotFoundError):  # the folder that we were in is gone
            if os.path.samestat(os.stat("."), os.stat(self._home)):  # noqa: PTH116
                return
        from rlz.envs.in_own_folder import InOwnFolder

        folder = Folder()
        folder.take(self._home)
        self._env = InOwnFolder(self._env, folder)
        self._step = self._env.step

    def _seed_spaces(self, seed: int) -> None:
        layer = self._env
        while True:
            layer.action_space.seed(seed)
            layer.observation_space.seed(seed)
            if layer is self._env.unwrapped or not hasattr(layer, "env"):
                return
            layer = layer.env

    def _store(self, call: str, obs: Any, into: NDArray[Any]) -> None:
        # The hot path of every sampler: what is as it was the last time needs no further look.
        if type(obs) is not np.ndarray or obs.shape != self._shape or obs.dtype is not self._usual:
            obs = self._look_at(call, obs)
        try:
            into[:] = obs if self._flat else obs.reshape(-1)
            if not self._float or (into.dot(self._zeros) == 0.0 and (not self._wide or self._fits(into))):
                return
        except (FloatingPointError, RuntimeWarning):
            pass  # an overflow, where a user made errors of numpy's warnings
        raise self._not_finite(call, obs.reshape(-1), into)

    def _look_at(self, call: str, obs: Any) -> NDArray[Any]:
        """Check an observation of unknown type, shape and dtype."""
        if not isinstance(obs, np.ndarray):
            try:
                obs = np.asarray(obs)
            except ValueError as error:  # rows of different lengths
                raise EnvError(f"{self._where(call)} gave an observation that is no array: {error}") from None
        if obs.shape != self._shape:
            raise EnvError(
                f"{self._where(call)} gave an observation of shape {obs.shape}, not {self._shape} as its space says"
            )
        if obs.dtype == self._dtype or (self._float and obs.dtype.kind in "fiub"):
            self._usual = obs.dtype
        else:
            self._check_cast(call, obs.reshape(-1))
        array: NDArray[Any] = obs
        return array

    def _not_finite(self, call: str, flat: NDArray[Any], stored: NDArray[Any]) -> NonFiniteError:
        narrow = min(stored.dtype, _LEARNED, key=lambda dtype: dtype.itemsize)
        with np.errstate(all="ignore"):
            bad = int(np.flatnonzero(~np.isfinite(flat.astype(narrow)))[0])
        return NonFiniteError(
            f"{self._where(call)} gave an observation whose value number {bad} is {flat[bad]}: not a finite {narrow} "
            "number. Fix the environment (where the value is only too large, with a wrapper that scales it)"
        )

    @staticmethod
    def _fits(obs: NDArray[Any]) -> bool:
        """Whether all values, known to be finite, are so in float32 too."""
        return bool(np.abs(obs).max() <= _REWARD_LIMIT)

    def _check_cast(self, call: str, flat: NDArray[Any]) -> None:
        """Find values that another dtype than the space's would lose: 300 or 0.5 in a uint8, texts, objects."""
        gave = f"{self._where(call)} gave an observation of {flat.dtype}"
        if flat.dtype.kind not in "fiub":
            raise EnvError(f"{gave}; its observation_space says {self._dtype}")
        with np.errstate(invalid="ignore"):
            lost = np.flatnonzero(flat.astype(self._dtype) != flat)
        if lost.size:
            raise EnvError(
                f"{gave} whose value number {lost[0]} is {flat[lost[0]]}: it does not fit {self._dtype}, the dtype of "
                "its observation_space. Fix the environment or its space"
            )

    def _where(self, call: str) -> str:
        when = f"step {self._steps}" if call == "step" else f"{call} after {self._steps} steps"
        return f"environment {self._name} in worker {self._worker} ({when} of this worker's environment)"

    def _raised(self, call: str, error: BaseException) -> EnvError:
        if isinstance(error, SystemExit):
            return EnvError(f"{self._where(call)} called exit({'' if error.code is None else repr(error.code)})")
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        return EnvError(f"{self._where(call)} raised {text}")

    def _returned(self, call: str, result: Any, expected: str) -> EnvError:
        what = f"{len(result)} values" if isinstance(result, tuple) else f"a {type(result).__name__}"
        old = " (the old Gym API? shimmy has wrappers for it)" if isinstance(result, tuple) and len(result) == 4 else ""
        return EnvError(f"{self._where(call)} returned {what}{old}; Gymnasium's {call} returns {expected}")
