"""Acting through an inference server: the side of a sampler."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rlz.envs.actions import actions_of

if TYPE_CHECKING:
    from rlz._native import InferenceClient
    from rlz.envs.spaces import EnvSpec


class RemotePolicy:
    """Asks an inference server for actions, group by group. Only uniform ones are its own.

    Parameters
    ----------
    spaces : of the environments.
    client : whose groups are those of the sampler.
    seed : of the uniform actions.
    """

    def __init__(self, spaces: EnvSpec, client: InferenceClient, seed: np.random.SeedSequence) -> None:
        self._client = client
        self._uniform = actions_of(spaces).uniform
        self._random = np.random.Generator(np.random.PCG64(seed))
        self._version = 0

    @property
    def version(self) -> int:
        """Version that the newest answer was made with, 0 before."""
        return self._version

    @property
    def state(self) -> bytes:
        """State of its random stream, for a checkpoint; settable."""
        return json.dumps(self._random.bit_generator.state).encode()

    @state.setter
    def state(self, value: bytes) -> None:
        self._random.bit_generator.state = json.loads(value)

    def uniform(self, actions: NDArray[Any]) -> None:
        """Fill actions [m, action_dim] with uniform ones."""
        self._uniform(self._random, actions)

    def ask(self, group: int, obs: NDArray[Any], tickets: NDArray[np.int64], which: Sequence[int]) -> None:
        """Ask for some rows of a group; never waits.

        Parameters
        ----------
        group : number of the group.
        obs : [rows of the group, *obs_shape].
        tickets : [rows of the group], indices of the env steps.
        which : rows, rising.
        """
        self._client.ask(group, {"obs": obs}, notes=tickets.view(np.uint64), which=which)

    def wait(self, timeout: float | None) -> int:
        """Wait for a group that was answered whole, the one first that has asked first. WaitTimeoutError."""
        return self._client.wait(timeout=timeout)

    def take(
        self, group: int, actions: NDArray[Any], extras: Mapping[str, NDArray[Any]], versions: NDArray[np.uint64]
    ) -> None:
        """Write the answers of a group into the rows that asked.

        Parameters
        ----------
        group : that `wait` gave.
        actions : [rows of the group, action_dim].
        extras : [rows of the group, ...] by name.
        versions : [rows of the group], of the parameters that acted.
        """
        self._client.take(group, {"action": actions, **extras}, notes=versions)
        self._version = max(self._version, int(versions.max()))

    def close(self) -> None:
        """Give the lanes back."""
        self._client.close()
