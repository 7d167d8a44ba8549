"""Deep Deterministic Policy Gradient (Lillicrap et al. 2016, arXiv 1509.02971, algorithm 1).

TD3 without its three additions: one critic by default (`--n-critics`), no noise on the target's actions, and actor and
target networks move in every update. So the losses are those of `td3.py`: r + discount * Q'(s', mu'(s')) is the target
(the algorithm's y_i), the squared TD error the critic's loss, -Q(s, mu(s)) the actor's.

As in Stable-Baselines3, networks, learning rate and exploration noise are TD3's too: Gaussian noise instead of the
paper's Ornstein-Uhlenbeck process, no weight decay, no batch normalisation (`--layer-norm` is there instead).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlz.algorithms.actor_critic import ActorCritic
from rlz.algorithms.td3 import Td3

if TYPE_CHECKING:
    from rlz.config import RunConfig
    from rlz.envs.spaces import EnvSpec


@dataclass(frozen=True)
class Ddpg(Td3):
    """DDPG for Box actions in [-1, 1]."""

    policy_delay: int = 1
    target_policy_noise: float = 0.0
    target_noise_clip: float = 0.0

    @staticmethod
    def from_config(config: RunConfig, env_spec: EnvSpec) -> Ddpg:
        """DDPG with the networks and constants of a run."""
        networks = ActorCritic.networks(config, env_spec)
        return Ddpg(*networks, tau=config.tau, target_critics=config.target_critics or 0)
