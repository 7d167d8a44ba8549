"""The limit of updates: multiplications and additions of their matrix products, at the peak of the cores."""

from collections.abc import Sequence
from itertools import pairwise

PEAK = "FMA peak"
"""Contender: nothing but the products, all cores at the rate of one that does nothing else. Two hardware threads of one
core share its units, so the true limit may be half of that."""


def products_of_update(obs: int, action: int, hidden: Sequence[int], batch: int) -> int:
    """Multiplications and additions of one update of SAC: an actor, two critics and their targets."""
    actor, critic = _weights([obs, *hidden, 2 * action]), _weights([obs + action, *hidden, 1])
    into_obs, into_action = obs * hidden[0], action * hidden[0]
    of_actor = 2 * actor + actor + (actor - into_obs)  # next and new actions; gradients of weights and of inputs
    target_and_forward, for_actor = 2 * critic, critic + (critic - into_obs)
    gradients = critic + (critic - into_obs - into_action)
    return 2 * batch * (of_actor + 2 * (target_and_forward + gradients + for_actor))


def products_of_action(obs: int, action: int, hidden: Sequence[int], batch: int) -> int:
    """Multiplications and additions of a forward pass of SAC's actor."""
    return 2 * batch * _weights([obs, *hidden, 2 * action])


def peak(cores: int = 1) -> float:
    """Multiplications and additions per second of so many cores; takes a part of a second."""
    from rlz._native import dense_peak

    return cores * dense_peak()


def _weights(sizes: Sequence[int]) -> int:
    return sum(a * b for a, b in pairwise(sizes))
