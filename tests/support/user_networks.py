"""Modules as users write them."""

from typing import Any

import torch
from torch import nn

import rlz
from rlz.acting import Rule


class Values(nn.Module):
    """A value for each choice."""

    def __init__(self, spaces: Any, width: int = 16) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Flatten(), nn.Linear(spaces.obs_dim, width), nn.ReLU(), nn.Linear(width, sum(spaces.action_choices))
        )

    def forward(self, obs: torch.Tensor) -> Any:
        return self.body(obs)


class Actions(nn.Module):
    """The action itself, behind layers whose buffers must travel, one of them of 8 bytes at an odd place."""

    def __init__(self, spaces: Any) -> None:
        super().__init__()
        self.first = nn.Linear(spaces.obs_dim, 5)
        self.norm = nn.BatchNorm1d(5)
        self.last = nn.Linear(5, spaces.action_dim)

    def forward(self, obs: torch.Tensor) -> Any:
        obs *= 1.0  # a module may change what it gets
        return torch.tanh(self.last(torch.relu(self.norm(self.first(obs.flatten(1))))))


class Distribution(nn.Module):
    """A distribution over actions, and a value."""

    def __init__(self, spaces: Any) -> None:
        super().__init__()
        self.choices = spaces.action_choices
        self.mean = nn.Linear(spaces.obs_dim, sum(self.choices) or spaces.action_dim)
        self.log_std = nn.Parameter(torch.zeros(spaces.action_dim))
        self.value = nn.Linear(spaces.obs_dim, 1)

    def forward(self, obs: torch.Tensor) -> Any:
        if self.choices:
            action: Any = torch.distributions.Categorical(logits=self.mean(obs))
        else:
            normal = torch.distributions.Normal(torch.tanh(self.mean(obs)), 0.1 * torch.sigmoid(self.log_std))
            action = torch.distributions.TransformedDistribution(normal, [torch.distributions.TanhTransform()])
        return {"action": action, "value": self.value(obs).squeeze(1)}


class Head(nn.Module):
    """What a head of the built-in algorithms interprets: `outputs` numbers for each component of an action."""

    def __init__(self, spaces: Any, outputs: int = 1) -> None:
        super().__init__()
        self.net = nn.Linear(spaces.obs_dim, outputs * spaces.action_dim)

    def forward(self, obs: torch.Tensor) -> Any:
        return self.net(obs)


class Softmax(Rule):
    """A rule of a user's own: choices in proportion to exp(value)."""

    def act(self, module: nn.Module, obs: torch.Tensor, spaces: Any, moment: Any) -> Any:
        logits = module(obs)
        if moment.deterministic:
            return logits.argmax(1, keepdim=True), {}
        return torch.distributions.Categorical(logits=logits).sample()[:, None], {}


class Noisy(Values):
    """Draws in `forward`, in evaluation as well."""

    def forward(self, obs: torch.Tensor) -> Any:
        return super().forward(obs) + 3.0 * torch.randn(sum((self.body[-1].out_features,)))


greedy = rlz.EpsilonGreedy(Values, start=1.0, end=0.1, over=0.5)
