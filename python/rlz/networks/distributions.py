"""Action distributions of actors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rlz.lazy import Lazy

if TYPE_CHECKING:
    import torch
    import torch.nn.functional as F
    from torch import Tensor
else:
    torch, F = Lazy("torch"), Lazy("torch.nn.functional")

LOG_STD_MIN = -20.0
LOG_STD_MAX = 2.0


def squashed_gaussian(head: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Sample tanh(mean + std * noise) and its log-probability (Haarnoja et al. 2018, appendix C).

    Parameters
    ----------
    head
        [batch, 2 * action_dim]: mean, then log_std (clamped to [-20, 2]).
    noise
        [batch, action_dim], standard normal.

    Returns
    -------
    action [batch, action_dim] in (-1, 1), log_prob [batch].
    """
    mean, log_std = head.chunk(2, dim=-1)
    log_std = log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)
    unsquashed = mean + log_std.exp() * noise
    gaussian = -0.5 * noise.square() - log_std - 0.5 * math.log(2.0 * math.pi)
    # log(1 - tanh(u)^2) in a form that neither overflows nor cancels for large |u|.
    squash = 2.0 * (math.log(2.0) - unsquashed - F.softplus(-2.0 * unsquashed))
    return torch.tanh(unsquashed), (gaussian - squash).sum(-1)


def gaussian(mean: Tensor, log_std: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probability of actions under Normal(mean, exp(log_std)), and its entropy (nats): [batch] each.

    Parameters
    ----------
    mean, action
        [batch, action_dim].
    log_std
        [action_dim].
    """
    distance = (action - mean) * torch.exp(-log_std)
    log_prob = -0.5 * distance.square() - log_std - 0.5 * math.log(2.0 * math.pi)
    entropy = (log_std + 0.5 * math.log(2.0 * math.pi * math.e)).sum()
    return log_prob.sum(-1), entropy.expand(len(mean))


def categorical(logits: Tensor, choices: Sequence[int], action: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probability of chosen indices, and the entropy (nats), summed over the components: [batch] each.

    Parameters
    ----------
    logits
        [batch, sum of choices], those of all components side by side.
    choices
        Of each component.
    action
        [batch, components], int64.
    """
    logs = [part.log_softmax(-1) for part in torch.split(logits, list(choices), -1)]
    # Not `gather`: its gradient is a call of torch's, which the compiler cannot make part of a loop.
    chosen = [torch.arange(size, device=action.device) == action[:, i : i + 1] for i, size in enumerate(choices)]
    taken = [part.where(one, 0.0).sum(1, keepdim=True) for part, one in zip(logs, chosen, strict=True)]
    entropies = [-(part.exp() * part).sum(-1, keepdim=True) for part in logs]
    return torch.cat(taken, 1).sum(1), torch.cat(entropies, 1).sum(1)
