"""The squashed Gaussian against torch.distributions."""

import torch
from torch.distributions import Normal, TransformedDistribution
from torch.distributions.transforms import TanhTransform

from rlz.networks.distributions import squashed_gaussian


def test_log_prob_equals_torch_distributions() -> None:
    generator = torch.Generator().manual_seed(1)
    head = 0.3 * torch.randn(64, 6, generator=generator, dtype=torch.float64)
    noise = torch.randn(64, 3, generator=generator, dtype=torch.float64)
    action, log_prob = squashed_gaussian(head, noise)
    mean, log_std = head.chunk(2, -1)
    torch.testing.assert_close(action, torch.tanh(mean + log_std.exp() * noise))
    squashed = TransformedDistribution(Normal(mean, log_std.exp()), [TanhTransform()])
    torch.testing.assert_close(log_prob, squashed.log_prob(action).sum(-1), rtol=1e-6, atol=1e-6)


def test_log_std_is_clamped_and_extremes_stay_finite() -> None:
    head = torch.tensor([[300.0, 50.0], [-300.0, -50.0], [0.0, 2.0]])
    noise = torch.ones(3, 1)
    action, log_prob = squashed_gaussian(head, noise)
    assert torch.isfinite(log_prob).all()
    assert (action.abs() <= 1).all()
    clamped = squashed_gaussian(torch.tensor([[300.0, 2.0], [-300.0, -20.0], [0.0, 2.0]]), noise)[1]
    torch.testing.assert_close(log_prob, clamped)
