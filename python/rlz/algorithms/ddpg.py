"""Deep Deterministic Policy Gradient (Lillicrap et al. 2016, arXiv 1509.02971, algorithm 1).

TD3 without its three additions: one critic by default (`--n-critics`), no noise on the target's actions, and actor and
target networks move in every update. So the losses are those of `td3.py`: r + discount * Q'(s', mu'(s')) is the target
(the algorithm's y_i), the squared TD error the critic's loss, -Q(s, mu(s)) the actor's.

As in Stable-Baselines3, networks, learning rate and exploration noise are TD3's too: Gaussian noise instead of the
paper's Ornstein-Uhlenbeck process, no weight decay, no batch normalisation (`--layer-norm` is there instead).
"""

from __future__ import annotations

from rlz.algorithms.td3 import DeterministicSettings, TwinDelayed
from rlz.options import Integer, changed


class DdpgSettings(DeterministicSettings):
    """Defaults are those of Stable-Baselines3."""

    n_critics: Integer = changed(DeterministicSettings, "n_critics", 1)


class Ddpg(TwinDelayed[DdpgSettings]):
    """DDPG for Box actions in [-1, 1]."""

    Settings = DdpgSettings
