"""Optimiser steps against torch.optim."""

import pytest
import torch

from rlz.algorithms.optim import adam, gradient, polyak


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-6)])
def test_adam_equals_torch(dtype: torch.dtype, tolerance: float) -> None:
    generator = torch.Generator().manual_seed(1)
    start = torch.randn(50, generator=generator, dtype=dtype)
    parameter = torch.nn.Parameter(start.clone())
    optimiser = torch.optim.Adam([parameter], lr=1e-2)
    state = (start, torch.zeros_like(start), torch.zeros_like(start))
    rate = torch.tensor(1e-2, dtype=torch.float64)
    for step in range(1, 60):
        parameter.grad = torch.randn(50, generator=generator, dtype=dtype) * 10.0 ** (step % 5 - 3)
        optimiser.step()
        state = adam(*state, parameter.grad, torch.tensor(step), rate)
    torch.testing.assert_close(state[0], parameter.data, rtol=tolerance, atol=tolerance)


def test_gradient_is_of_the_first_argument_alone_and_detached() -> None:
    def loss(p: torch.Tensor, constant: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (p.square() * constant).sum(), p

    with torch.no_grad():
        slope, value, extra = gradient(loss, torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0]))
    assert slope.tolist() == [6.0, 16.0]
    assert value.item() == 19.0
    assert not any(tensor.requires_grad for tensor in (slope, value, extra))


def test_polyak() -> None:
    target = polyak(torch.tensor([0.0, 1.0]), torch.tensor([1.0, 3.0]), 0.25)
    assert target.tolist() == [0.25, 1.5]
