"""What acts: the contract of every policy, and making one from a `PolicySpec`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rlz._native import Policy as NativePolicy

if TYPE_CHECKING:
    from rlz._native import Subscriber
    from rlz.answers import PolicySpec


class Policy(Protocol):
    """In a sampler, in the evaluator, behind `rlz.load`. `rlz._native.Policy` and `TorchPolicy` are such."""

    state: bytes
    """Of its random streams: with it, a resumed run draws on exactly."""

    @property
    def version(self) -> int:
        """Version of the parameters in use, 0 before the first `refresh`."""

    @property
    def nbytes(self) -> int:
        """Bytes of its parameters."""

    def load(self, parameters: NDArray[np.uint8]) -> None:
        """Take parameters [nbytes], the tensors of its manifest back to back. ValueError for another size."""

    def refresh(self, subscriber: Subscriber) -> int:
        """Read the newest published version when it moved; returns the version in use (0: none yet)."""

    def act(
        self,
        obs: NDArray[Any],
        actions: NDArray[Any],
        *,
        progress: float = 1.0,
        deterministic: bool = False,
        ranks: NDArray[np.float32] | None = None,
        extras: dict[str, NDArray[Any]] | None = None,
    ) -> None:
        """Choose actions.

        Parameters
        ----------
        obs : [m, obs_dim], any real dtype.
        actions : [m, action_dim] as `EnvSpec.action_field` says; written.
        progress : share of the run's env steps that were taken before, for schedules of exploration.
        deterministic : no exploration, and no state of a random stream matters.
        ranks : float32 [m], of each row's environment among all of the run, 0 to 1, for exploration that differs
            between them; None: all 0.
        extras : arrays [m, ...] to fill, by name, with what else the data keeps ("log_prob", "value").
        """

    def uniform(self, actions: NDArray[Any]) -> None:
        """Warm-up: fill actions [m, action_dim] with uniform ones, from the policy's own random stream."""


def ranks(lanes: ArrayLike, envs: int) -> NDArray[np.float32]:
    """Ranks of environments among all `envs` of a run, 0 to 1, by their lanes."""
    return (np.asarray(lanes) / max(envs - 1, 1)).astype(np.float32)


def make_policy(spec: PolicySpec, seed: np.random.SeedSequence, device: str = "cpu") -> Policy:
    """Make what acts. torch is imported for a torch module alone.

    `device`: where a torch module runs.

    Raises
    ------
    ConfigError, PolicyError
        A user's own module cannot be found or made.
    """
    if spec.runner == "native":
        return NativePolicy(**spec.network, seed=seed.generate_state(4, np.uint64).tolist())
    from rlz.acting.torch_policy import TorchPolicy

    if device == "cpu":
        return TorchPolicy(spec, seed)
    import torch

    return TorchPolicy(spec, seed, torch.device(device))
