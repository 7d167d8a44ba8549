"""The policies that Rust runs, as torch modules: the same parameters in the same order, the same outputs to 1e-5.

To hold the two beside each other.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rlz.acting.rules import HEADS
from rlz.networks.mlp import Mlp
from rlz.networks.spec import GAUSSIAN, actor_manifest, head_outputs, normalized

if TYPE_CHECKING:
    from rlz.answers import PolicySpec
    from rlz.envs.spaces import EnvSpec


class Twin(nn.Module):
    """What the heads of Rust see, by the rules' names: "action", outputs [m, n]; and "value" [m] where there is one.

    Parameters
    ----------
    spaces : not used; every module of a rule is made with them.
    arguments : of `rlz._native.Policy`.
    """

    def __init__(self, spaces: EnvSpec, **arguments: Any) -> None:
        super().__init__()
        head, action_dim, self._value = arguments["head"], arguments["action_dim"], arguments.get("value", "none")
        outputs = head_outputs(head, action_dim, arguments.get("choices", ())) + (self._value == "shared")
        hidden, shape = tuple(arguments["hidden"]), (arguments["activation"], arguments["layer_norm"])
        self._actor = Mlp("actor", arguments["obs_dim"], hidden, outputs, *shape)
        self._critic = Mlp("critic", arguments["obs_dim"], hidden, 1, *shape)
        log_stds = action_dim if head == GAUSSIAN else 0
        self._sizes = [log_stds, self._actor.numel, self._critic.numel if self._value == "separate" else 0]
        self.flat = nn.Parameter(torch.zeros(sum(self._sizes)))
        assert len(self.flat) == sum(math.prod(shape) for _, _, shape in actor_manifest(arguments))

    def forward(self, obs: Tensor) -> dict[str, Tensor]:
        """See the class; obs [m, ...]."""
        obs = obs.flatten(1)
        log_std, actor, critic = torch.split(self.flat, self._sizes)
        outputs, found = self._actor(actor, obs), {}
        if self._value == "shared":
            outputs, found["value"] = outputs[:, :-1], outputs[:, -1]
        if self._value == "separate":
            found["value"] = self._critic(critic, obs)[:, 0]
        if len(log_std):
            outputs = torch.cat([outputs, log_std.expand(len(obs), -1)], 1)
        return {"action": outputs, **found}


def torch_twin(spec: PolicySpec, spaces: EnvSpec) -> PolicySpec:
    """The policy for torch that acts as a native one, with the same packed parameters."""
    arguments = dict(spec.network)
    clip = arguments.pop("obs_clip", None)
    settings = {"exploration_noise": arguments["exploration_noise"]} if "exploration_noise" in arguments else {}
    settings |= arguments.get("epsilon", {})
    twin = HEADS[arguments["head"]](partial(Twin, **arguments), spec.extras, **settings).policy(spaces)
    return twin if clip is None else normalized(twin, spaces.obs_dim)
