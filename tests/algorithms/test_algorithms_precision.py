"""bf16 products against float64: losses stay near, the state keeps its types."""

from typing import Any

import pytest
import torch

from rlz.algorithms.base import Batch
from support.updates import generator, make

OBS, ACTION, ROWS = 27, 8, 128
RATE = torch.tensor(3e-4, dtype=torch.float64)
BF16, FP32 = 1e-2, 1e-5
"""Allowed distance of each metric from float64, relative to 1 + its size; bf16 has 8 bits of mantissa."""


def rows(dtype: torch.dtype) -> Batch:
    draw = generator(1)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float64).to(dtype)

    batch = Batch(normal(ROWS, OBS), normal(ROWS, ACTION).tanh(), normal(ROWS, OBS), normal(ROWS), normal(ROWS))
    return batch._replace(discount=torch.full_like(batch.discount, 0.99))


def updated(algo: str, precision: str, dtype: torch.dtype) -> Any:
    """Outcome of a second update: the first leaves moments that are not 0."""
    algorithm = make(algo, OBS, ACTION, hidden=(64, 64), precision=precision)
    state = algorithm.init(generator(2), torch.float64)  # the same numbers in every precision
    state = type(state)(*(tensor.to(dtype) if tensor.is_floating_point() else tensor for tensor in state))
    noise = torch.randn(algorithm.noise_shape(ROWS), generator=generator(3), dtype=torch.float64).to(dtype)
    with torch.no_grad():
        for _ in range(2):
            outcome = algorithm.update(state, rows(dtype), noise, RATE)
            state = outcome.state
    return outcome


@pytest.mark.parametrize("algo", ["sac", "td3"])
def test_losses_are_near_those_of_float64(algo: str) -> None:
    exact = updated(algo, "fp32", torch.float64).metrics
    far = {
        precision: ((updated(algo, precision, torch.float32).metrics - exact).abs() / (1 + exact.abs())).max()
        for precision in ("fp32", "bf16")
    }
    assert far["fp32"] < FP32
    assert 10 * far["fp32"] < far["bf16"] < BF16, "really in bf16, and near"


def test_q_values_are_not_rounded_to_8_bits() -> None:
    algorithm = make("sac", OBS, ACTION, hidden=(64, 64), precision="bf16")
    critic = algorithm.init(generator(2)).critic
    named = algorithm.critic.named(critic)
    named["critic.head.weight"].mul_(1000.0)
    batch = rows(torch.float32)
    q = algorithm.q_values(critic, batch.obs, batch.action)
    single = make("sac", OBS, ACTION, hidden=(64, 64))
    exact = single.q_values(critic.double(), batch.obs.double(), batch.action.double())
    assert 0 < (q - exact).abs().max() < 10.0, "the hidden layers are in bf16"
    for member in q:
        assert len(member.unique()) > 0.95 * ROWS


@pytest.mark.parametrize("algo", ["sac", "td3", "ddpg"])
def test_state_and_losses_stay_float32(algo: str) -> None:
    half, single = (updated(algo, precision, torch.float32) for precision in ("bf16", "fp32"))
    assert [tensor.dtype for tensor in half.state] == [tensor.dtype for tensor in single.state]
    assert torch.float32 in {tensor.dtype for tensor in half.state}
    assert half.metrics.dtype == half.checks.dtype == torch.float32
