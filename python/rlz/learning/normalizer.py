"""Normalisation of observations and rewards by running statistics of the steps that are learned from.

The learner owns the statistics. Rows and segments stay as the environment gave them, and are normalised when they are
used, so nothing in a buffer goes stale. What acts gets mean and scale with the parameters of the policy, as one
version. Both sums are those of Gymnasium's NormalizeObservation and NormalizeReward; results are clipped as in
Stable-Baselines3's VecNormalize.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlz.algorithms.base import Batch, Segments
from rlz.learning.moments import Floats, Moments
from rlz.networks.spec import OBS_CLIP

REWARD_CLIP = 10.0
EPSILON = 1e-8
"""Added to a variance, as in Gymnasium."""

PREFIX = "normalizer."
"""Of its tensors in a checkpoint."""


class Normalizer:
    """The statistics, and what is done with them.

    Parameters
    ----------
    obs, reward : what is normalised.
    obs_dim, lanes : numbers of an observation, environments of the run.
    gamma : discount of the returns whose variance scales rewards.
    device : of the batches.
    one_by_one : the result must not depend on how many steps come at a time (serial mode).
    """

    def __init__(
        self,
        *,
        obs: bool,
        reward: bool,
        obs_dim: int,
        lanes: int,
        gamma: float,
        device: torch.device,
        one_by_one: bool = False,
    ) -> None:
        self.obs, self.reward = obs, reward
        self._gamma = gamma
        self._of_obs = Moments(lanes, obs_dim, one_by_one=one_by_one)
        self._of_returns = Moments(lanes, 1, one_by_one=one_by_one)
        self._returns: Floats = np.zeros(lanes)
        self._begins = np.ones(lanes, bool)  # the next step begins an episode
        # In use: mean and scale of observations, scale of rewards. They stay where they are.
        self._used = torch.cat([torch.zeros(obs_dim), torch.ones(obs_dim + 1)]).to(device)
        self._mean, self._scale, self._reward_scale = torch.split(self._used, [obs_dim, obs_dim, 1])

    # -- what was seen ---------------------------------------------------------------------------------------------

    def see(self, lane: int, steps: Mapping[str, NDArray[Any]], *, single: bool = True) -> None:
        """Add steps of one environment, oldest first; in use from `refresh` on.

        Counted are the observations that the environment gave: of resets, and of every step. The return goes on as in
        Gymnasium: after a step it is gamma (1 - terminated) return + reward.

        Parameters
        ----------
        lane : of the environment.
        steps : obs, next_obs [n, ...], reward, terminated, truncated [n], of its steps without a gap.
        single : False: a next observation is several steps away, so only those count that were acted on.
        """
        ends = steps["terminated"] | steps["truncated"]
        if self.obs:
            obs, next_obs = (steps[name].reshape(len(ends), -1) for name in ("obs", "next_obs"))
            first = np.concatenate([self._begins[lane : lane + 1], ends[:-1]])
            both = np.stack([obs, next_obs], 1)[np.stack([first, np.ones(len(ends), bool)], 1)]
            self._of_obs.add(lane, (both if single else obs).astype(np.float64))
        self._begins[lane] = ends[-1]
        if self.reward:
            found, last = np.empty((len(ends), 1)), float(self._returns[lane])
            pairs = zip(steps["reward"].tolist(), steps["terminated"].tolist(), strict=True)
            for index, (reward, terminated) in enumerate(pairs):
                last = reward if terminated else last * self._gamma + reward
                found[index] = last
            self._returns[lane] = last
            self._of_returns.add(lane, found)

    def refresh(self) -> None:
        """Use the statistics as they are now."""
        mean, variance = self._of_obs.total()
        _, of_returns = self._of_returns.total()
        scales = 1.0 / np.sqrt(np.concatenate([variance, of_returns]) + EPSILON)
        self._used.copy_(torch.from_numpy(np.concatenate([mean, scales])))

    # -- what is done with it --------------------------------------------------------------------------------------

    def batch(self, batch: Batch) -> Batch:
        """A batch as the algorithm learns from it."""
        if self.obs:
            batch = batch._replace(obs=self._of(batch.obs), next_obs=self._of(batch.next_obs))
        return batch._replace(reward=self._of_reward(batch.reward)) if self.reward else batch

    def segments(self, segments: Segments) -> Segments:
        """Segments as the algorithm learns from them."""
        if self.obs:
            segments = segments._replace(obs=self._of(segments.obs), next_obs=self._of(segments.next_obs))
        return segments._replace(reward=self._of_reward(segments.reward)) if self.reward else segments

    def published(self, actor: Tensor) -> Tensor:
        """Flat parameters of what acts, with mean and scale behind them where it normalises."""
        if not self.obs:
            return actor
        used = self._used[:-1]
        return torch.cat([actor, used.view(torch.uint8) if actor.dtype == torch.uint8 else used])

    def _of(self, obs: Tensor) -> Tensor:
        return (obs - self._mean).mul_(self._scale).clamp_(-OBS_CLIP, OBS_CLIP)

    def _of_reward(self, reward: Tensor) -> Tensor:
        return (reward * self._reward_scale).clamp_(-REWARD_CLIP, REWARD_CLIP)

    # -- checkpoints -----------------------------------------------------------------------------------------------

    def tensors(self) -> dict[str, Tensor]:
        """Everything that it is, by name."""
        arrays = self._of_lanes() | {
            f"{name}.{part}": array for name, moments in self._moments() for part, array in moments.tensors().items()
        }
        found = {PREFIX + name: torch.from_numpy(array.copy()) for name, array in arrays.items()}
        return found | {f"{PREFIX}used": self._used.cpu().clone()}

    def load(self, tensors: Mapping[str, NDArray[Any]]) -> None:
        """Take what `tensors` gave. Raises KeyError or ValueError for what does not fit."""
        self._used.copy_(torch.from_numpy(tensors[PREFIX + "used"]))
        for name, array in self._of_lanes().items():
            kept = tensors[PREFIX + name][: len(array)]
            array[: len(kept)] = kept
        for name, moments in self._moments():
            moments.load({part: tensors[f"{PREFIX}{name}.{part}"] for part in moments.tensors()})

    def _of_lanes(self) -> dict[str, NDArray[Any]]:
        return {"returns": self._returns, "begins": self._begins}

    def _moments(self) -> tuple[tuple[str, Moments], tuple[str, Moments]]:
        return ("obs", self._of_obs), ("return", self._of_returns)
