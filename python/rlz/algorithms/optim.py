"""Gradients and optimiser steps as pure functions of flat tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from rlz.lazy import Lazy

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from rlz.networks import dense
else:
    torch, dense = Lazy("torch"), Lazy("rlz.networks.dense")

BETA1, BETA2, EPS = 0.9, 0.999, 1e-8


def gradient(
    loss: Callable[..., tuple[Tensor, Any]], parameters: Tensor, *constants: Any
) -> tuple[Tensor, Tensor, Any]:
    """Gradient of `loss(parameters, *constants)` with respect to its first argument alone.

    `loss` returns (value, extra); the result is (gradient, value, extra), all detached. `torch.func.grad` does the
    same, but its first use imports the whole compiler, which takes seconds; under `make_fx` both trace alike.
    """
    with torch.enable_grad():
        leaf = parameters.detach().requires_grad_()
        value, extra = loss(leaf, *constants)
        (slope,) = torch.autograd.grad(value, leaf)
    return slope.detach(), value.detach(), extra.detach()


class Adam(NamedTuple):
    """Parameters after an Adam step, with their moments."""

    parameters: Tensor
    mean: Tensor
    square: Tensor


def adam(
    p: Tensor, mean: Tensor, square: Tensor, gradient: Tensor, step: Tensor, learning_rate: Tensor, eps: float = EPS
) -> Adam:
    """One Adam step (Kingma and Ba 2015, algorithm 1; beta 0.9 and 0.999, epsilon 1e-8 as in torch).

    `step` is the 1-based count of this step (0-d). Bias corrections are computed in float64: in float32, 1 - 0.999
    has only four correct digits.
    """
    step = step.double()
    if p.numel() >= dense.LEAST and dense.usable(p, gradient):
        correction = (1.0 - BETA2**step).sqrt()
        size = learning_rate.double() / (1.0 - BETA1**step)
        fixed = [torch.full_like(step, value) for value in (BETA1, BETA2, eps)]
        return Adam(
            *torch.ops.rlz.dense_adam(p, mean, square, gradient, torch.stack([*fixed, size, correction]).float())
        )
    mean = mean + (1.0 - BETA1) * (gradient - mean)
    square = BETA2 * square + (1.0 - BETA2) * gradient.square()
    step_size = (learning_rate.double() / (1.0 - BETA1**step)).to(p.dtype)
    correction = (1.0 - BETA2**step).sqrt().to(p.dtype)
    return Adam(p - step_size * mean / (square.sqrt() / correction + eps), mean, square)


def clipped(gradient: Tensor, most: float) -> Tensor:
    """The gradient, scaled down to the norm `most` where it is larger (as torch.nn.utils.clip_grad_norm_)."""
    return gradient * (most / (gradient.square().sum().sqrt() + 1e-6)).clamp(max=1.0)


def polyak(target: Tensor, online: Tensor, tau: float) -> Tensor:
    """Target network after a soft update: (1 - tau) * target + tau * online."""
    if target.numel() >= dense.LEAST and dense.usable(target, online):
        new: Tensor = torch.ops.rlz.dense_polyak(target, online, tau)
        return new
    return target + tau * (online - target)
