"""A user's network (`--network`) in the place of the actor's layers."""

import torch
from torch import Tensor, nn


class OwnActor(nn.Module):
    """What a head makes actions of: the outputs of the network without a value behind them.

    The tensors are in the order in which algorithms publish them.

    Parameters
    ----------
    network : maps [m, obs_dim] to [m, outputs or more].
    outputs : those that choose the action.
    log_std : log standard deviations behind them, parameters that do not depend on the observation; or 0.
    """

    def __init__(self, network: nn.Module, outputs: int, log_std: int) -> None:
        super().__init__()
        self.outputs = outputs
        if log_std:
            self.log_std = nn.Parameter(torch.zeros(log_std))
        self.actor = network

    def forward(self, obs: Tensor) -> Tensor:
        """[m, *obs_shape] to [m, outputs + log_std]."""
        outputs: Tensor = self.actor(obs.flatten(1))[:, : self.outputs]
        if not hasattr(self, "log_std"):
            return outputs
        return torch.cat([outputs, self.log_std.expand(len(outputs), -1)], 1)
