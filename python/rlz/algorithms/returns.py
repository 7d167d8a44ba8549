"""Advantages and value targets of segments: all segments at once, backwards in time.

Arrays are [segments, length]. `next_value` is the value of the true next observation of each step, 0 where the episode
terminated; a truncated step bootstraps from it, and so does the last one of a segment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from rlz.lazy import Lazy

if TYPE_CHECKING:
    import torch
    import torch.nn.functional as F
    from torch import Tensor
else:
    torch, F = Lazy("torch"), Lazy("torch.nn.functional")


def gae(reward: Tensor, value: Tensor, next_value: Tensor, ends: Tensor, gamma: float, lam: float) -> Tensor:
    """Generalised advantage estimates (Schulman et al. 2016, arXiv 1506.02438, equation 16).

    Parameters
    ----------
    ends : bool, the episode ended with this step.
    """
    delta = reward + gamma * next_value - value
    return _accumulated(delta, torch.full_like(delta, gamma * lam).masked_fill(ends, 0.0))


class VTrace(NamedTuple):
    """See `vtrace`."""

    target: Tensor  # of the value
    advantage: Tensor  # of the action
    weight: Tensor  # of the advantage in a gradient: rho, for the policy that took the action


def vtrace(
    reward: Tensor, value: Tensor, next_value: Tensor, ends: Tensor, ratio: Tensor, gamma: float, lam: float
) -> VTrace:
    """Value targets and advantages of a policy, from segments of an older one.

    Espeholt et al. 2018 (arXiv 1802.01561): equation 1 with remark 2 (lambda) and both clips at 1; the advantage is
    that of section 4.2, r + gamma v_next - V, and its weight rho.

    Parameters
    ----------
    ends : bool, the episode ended with this step.
    ratio : pi / mu, probability of the action now over that when it was taken.
    """
    rho = ratio.clamp(max=1.0)
    delta = rho * (reward + gamma * next_value - value)
    target = value + _accumulated(delta, (gamma * lam * rho).masked_fill(ends, 0.0))
    last = torch.zeros_like(ends)
    last[:, -1] = True
    after = torch.cat([target[:, 1:], next_value[:, -1:]], 1)
    next_target = torch.where(ends | last, next_value, after)
    return VTrace(target, reward + gamma * next_target - value, rho)


def _accumulated(delta: Tensor, decay: Tensor) -> Tensor:
    """The sums a_t = delta_t + decay_t * a_(t+1), in steps that double how far they reach (Hillis and Steele 1986)."""
    reach = 1
    while reach < delta.shape[1]:
        delta = delta + decay * F.pad(delta[:, reach:], (0, reach))
        decay = decay * F.pad(decay[:, reach:], (0, reach))
        reach *= 2
    return delta
