"""What one update has to do: floating-point operations and bytes, counted from algorithm and networks."""

from itertools import pairwise
from typing import NamedTuple

from rlz.planning.profile_model import Profile

TD3_DELAY = 2
"""Updates of TD3's critics for one of its actor; the default of `--policy-delay`, a profile does not know another."""


class Work(NamedTuple):
    """Of one update: operations in matrix products, and bytes of weights and moments, each read and written once."""

    flops: float
    state_bytes: float


def work_of_update(profile: Profile, batch_size: int) -> Work | None:
    """Work of the profile's algorithm and networks; None where they are not known."""
    workload, transport = profile.workload, profile.transport
    if workload is None or transport is None:
        return None
    actor = transport.parameter_bytes / 4
    # Widths of observation and action are not in a profile: a critic is taken to be as large as the actor, which has
    # them too, and not smaller than the inner layers that both share.
    critic = max(actor, float(sum(one * two for one, two in pairwise(workload.hidden))))
    flops = flops_per_frame(workload.algo, workload.critics, actor, critic)
    numbers = _numbers(workload.algo, workload.critics, actor, critic)
    return None if flops is None or numbers is None else Work(flops * batch_size, 2 * 4 * numbers)


def flops_per_frame(algo: str, critics: int, actor: float, critic: float) -> float | None:
    """Operations for one row, in the leanest form: 2 for a weight in a forward pass, 4 in a backward one.

    Actor and target critics forward and all critics there and back give the critics' step. The actor's step, where it
    has its turn: itself there and back, and critics there and back to the action only (2 a weight): all of them in SAC,
    the first one in TD3 and DDPG.

    Parameters
    ----------
    algo, critics : name, and number of critics.
    actor, critic : weights of the actor and of one critic.
    """
    turns = _turns(algo)
    if turns is None:
        return None
    judges = critics if algo == "sac" else 1
    return 2 * actor + (2 + 6) * critics * critic + turns * (6 * actor + 4 * judges * critic)


def _numbers(algo: str, critics: int, actor: float, critic: float) -> float | None:
    """Weights, gradients and two moments of the networks that an update changes, and their targets."""
    turns = _turns(algo)
    if turns is None:
        return None
    if algo == "sac":
        return 4 * actor + 5 * critics * critic
    return 4 * critics * critic + turns * (5 * actor + critics * critic)  # the actor has a target too


def _turns(algo: str) -> float | None:
    """Updates of the actor, and in TD3 and DDPG of the targets, for one of the critics."""
    return {"sac": 1.0, "td3": 1 / TD3_DELAY, "ddpg": 1.0}.get(algo)
