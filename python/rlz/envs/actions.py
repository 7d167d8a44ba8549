"""The maps between rlz's actions and an environment's: [-1, 1] to bounds, indices to choices. Applied nowhere else."""

from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

if TYPE_CHECKING:
    from rlz.envs.spaces import EnvSpec


class Actions(Protocol):
    """Between actions as rlz holds them (`EnvSpec.action_field`) and as an environment takes them."""

    def to_env(self, action: NDArray[Any]) -> Any:
        """One action [dim] for the environment: of its shape and dtype, never an array that somebody else holds."""

    def uniform(self, random: np.random.Generator, actions: NDArray[Any]) -> None:
        """Fill actions [m, dim] with uniform random ones."""


def actions_of(spec: "EnvSpec") -> Actions:
    """Return the map of an environment's action space."""
    return ChoiceMap.of(spec) if spec.discrete else ActionMap.of(spec)


class ActionMap:
    """Map [-1, 1] to [low, high] and back, each component on its own.

    Exact at both bounds, never outside of them after rounding, and computed in float64. A component whose bounds are
    equal is constant (0 on rlz's side).

    Parameters
    ----------
    low, high
        Finite bounds of any equal shape, low <= high.
    shape
        Shape of an environment's action; default: that of `low`.
    dtype
        Floating dtype of an environment's action; default: that of `low` (float64 if it has none).
    """

    def __init__(
        self, low: ArrayLike, high: ArrayLike, *, shape: tuple[int, ...] | None = None, dtype: DTypeLike | None = None
    ) -> None:
        bounds = np.asarray(low), np.asarray(high)
        self._shape = bounds[0].shape if shape is None else tuple(shape)
        self._dtype = np.dtype(bounds[0].dtype if dtype is None else dtype)
        if self._dtype.kind != "f":
            self._dtype = np.dtype(np.float64)
        self._low, self._high = (bound.astype(np.float64).reshape(-1) for bound in bounds)
        if self._low.shape != self._high.shape or self._low.size != int(np.prod(self._shape)):
            raise ValueError(f"bounds of shapes {bounds[0].shape} and {bounds[1].shape} for actions of {self._shape}")
        if not (np.isfinite(self._low).all() and np.isfinite(self._high).all() and (self._low <= self._high).all()):
            raise ValueError("bounds must be finite and low at most high")
        self._half_low, self._half_high = 0.5 * self._low, 0.5 * self._high
        self._unit = bool((self._low == -1.0).all() and (self._high == 1.0).all())
        # Arrays, because a ufunc takes three times as long with a Python number.
        self._one: NDArray[Any] = np.ones(self._low.size, np.float32 if self._unit else np.float64)
        self._minus_one: NDArray[Any] = -1 * self._one
        self._plain = self._dtype == np.float32 and len(self._shape) == 1

    @classmethod
    def of(cls, spec: "EnvSpec") -> Self:
        """Return the map of an environment's action space."""
        return cls(spec.action_low, spec.action_high, shape=spec.action_shape, dtype=spec.action_dtype)

    @property
    def dim(self) -> int:
        """Components of an action."""
        return self._low.size

    def to_env(self, action: NDArray[np.float32]) -> NDArray[Any]:
        """Scale one action.

        Parameters
        ----------
        action
            [dim], in [-1, 1]; values outside are clipped, NaN stays NaN.

        Returns
        -------
        A new array of the environment's shape and dtype (an environment may keep it).
        """
        if self._unit:
            unit: NDArray[Any] = np.minimum(np.maximum(action, self._minus_one), self._one)
            return unit if self._plain else unit.astype(self._dtype).reshape(self._shape)
        # Each end is weighted by exactly 0 or 1 at the bounds, and no difference high - low can overflow. The clip only
        # removes rounding in between; casting afterwards is monotone, so it cannot leave bounds of the same dtype.
        unit = np.minimum(np.maximum(action, self._minus_one), self._one)
        scaled: NDArray[Any] = (self._one - unit) * self._half_low + (self._one + unit) * self._half_high
        clipped: NDArray[Any] = np.minimum(np.maximum(scaled, self._low), self._high)
        return clipped.astype(self._dtype).reshape(self._shape)

    def uniform(self, random: np.random.Generator, actions: NDArray[np.float32]) -> None:
        """Fill actions [m, dim] with numbers from [-1, 1)."""
        actions[:] = random.uniform(-1.0, 1.0, actions.shape)


class ChoiceMap:
    """Map indices 0, 1, ... to the choices of Discrete (a scalar), MultiDiscrete and MultiBinary actions, and back.

    Parameters
    ----------
    first, last
        The first and the last choice of each component, flat.
    shape, dtype
        Of an environment's action; shape () is a scalar.
    """

    def __init__(self, first: ArrayLike, last: ArrayLike, *, shape: tuple[int, ...], dtype: DTypeLike) -> None:
        self._first = np.asarray(first, np.int64).reshape(-1)
        self._count = np.asarray(last, np.int64).reshape(-1) - self._first + 1
        self._shape, self._dtype = tuple(shape), np.dtype(dtype)
        self._only = int(self._first[0])  # of a scalar: Python's numbers are faster than numpy's for one

    @classmethod
    def of(cls, spec: "EnvSpec") -> Self:
        """Return the map of an environment's action space."""
        return cls(spec.action_low, spec.action_high, shape=spec.action_shape, dtype=spec.action_dtype)

    def to_env(self, action: NDArray[np.int64]) -> Any:
        """One action [dim], each index below its choices, for the environment; a Discrete one is a numpy integer."""
        if not self._shape:
            return self._dtype.type(self._only + int(action[0]))
        return (action + self._first).astype(self._dtype).reshape(self._shape)

    def uniform(self, random: np.random.Generator, actions: NDArray[np.int64]) -> None:
        """Fill actions [m, dim] with indices, each as likely as any other."""
        actions[:] = random.integers(self._count, size=actions.shape)
