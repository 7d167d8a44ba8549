"""Stable-Baselines3's own `train()` on given weights, batches and noise, in float64. Runs in the environment of SB3.

    python sb3_oracle.py IN.npz OUT.npz

IN has `job` (JSON: what is made), the state of rlz's algorithm as `state/NAME`, batches as `batch/FIELD`
[updates, batch, ...] and `noise` [updates, ...]; OUT gets the parameters after the updates under rlz's names.
"""

import json
import sys
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import stable_baselines3
import torch
from gymnasium.spaces import Box, Discrete
from stable_baselines3.common import policies
from stable_baselines3.common.logger import configure
from stable_baselines3.common.type_aliases import ReplayBufferSamples
from torch import nn

FLOAT = torch.float64
GAMMA = 0.97


class Spaces(gymnasium.Env):
    """Only its spaces are used."""

    def __init__(self, obs: int, action: int, discrete: bool) -> None:
        self.observation_space = Box(-np.inf, np.inf, (obs,), np.float32)
        self.action_space = Discrete(action) if discrete else Box(-1, 1, (action,), np.float32)


def linears(module: nn.Module) -> list[nn.Linear]:
    return [layer for layer in module.modules() if isinstance(layer, nn.Linear)]


def layers(model: Any, actions: int) -> Iterator[tuple[str, int | None, slice, nn.Linear]]:
    """Name in rlz, member of a stack, outputs of rlz's layer, and the layer itself."""
    everything = slice(None)
    if hasattr(model, "q_net"):
        for prefix, network in (("", model.q_net), ("target.", model.q_net_target)):
            *hidden, head = linears(network)
            for number, layer in enumerate(hidden):
                yield f"{prefix}q.{number}", None, everything, layer
            yield f"{prefix}q.head", None, everything, head
        return
    for prefix, actor in (("", model.actor), ("target.", getattr(model, "actor_target", None))):
        if actor is None:
            continue
        if hasattr(actor, "log_std"):
            for number, layer in enumerate(linears(actor.latent_pi)):
                yield f"actor.{number}", None, everything, layer
            yield "actor.head", None, slice(actions), actor.mu
            yield "actor.head", None, slice(actions, None), actor.log_std
            continue
        *hidden, head = linears(actor.mu)
        for number, layer in enumerate(hidden):
            yield f"{prefix}actor.{number}", None, everything, layer
        yield f"{prefix}actor.head", None, everything, head
    for prefix, critic in (("", model.critic), ("target.", model.critic_target)):
        for member, network in enumerate(critic.q_networks):
            *hidden, head = linears(network)
            for number, layer in enumerate(hidden):
                yield f"{prefix}critic.{number}", member, everything, layer
            yield f"{prefix}critic.head", member, everything, head


def of(array: Any, member: int | None) -> Any:
    return array if member is None else array[member]


def main(given: str, result: str) -> None:
    data = dict(np.load(given))
    job = json.loads(str(data.pop("job")))
    obs, actions, updates, batch_size = job["obs"], job["action"], job["updates"], job["batch"]
    discrete = job["algo"] == "dqn"
    torch.set_num_threads(1)
    policies.preprocess_obs = lambda seen, space, normalize_images=True: seen.double()  # it would make it float32
    shape = {"net_arch": job["hidden"]} | ({} if discrete else {"n_critics": job["n_critics"]})
    common = {"learning_rate": job["learning_rate"], "gamma": GAMMA, "tau": job["tau"], "batch_size": batch_size}
    model = getattr(stable_baselines3, job["algo"].upper())(
        "MlpPolicy", Spaces(obs, actions, discrete), policy_kwargs=shape, device="cpu", **common, **job["options"]
    )
    model.set_logger(configure(None, []))
    model.policy.double()
    for name, member, outputs, layer in layers(model, actions):
        layer.weight.data = torch.tensor(of(data[f"state/{name}.weight"], member)[:, outputs].T)
        layer.bias.data = torch.tensor(of(data[f"state/{name}.bias"], member)[outputs])
    learned = getattr(model, "log_ent_coef", None) is not None
    if learned:
        model.log_ent_coef = torch.tensor(data["state/log_alpha"].reshape(1), requires_grad=True)
        model.ent_coef_optimizer = torch.optim.Adam([model.log_ent_coef], lr=job["learning_rate"])

    class Buffer:
        at = 0

        def sample(self, batch_size: int, env: Any = None) -> ReplayBufferSamples:
            columns = {name: torch.tensor(data[f"batch/{name}"][self.at]) for name in names}
            self.at += 1
            done = (columns["discount"] == 0.0).to(FLOAT)
            tensors = columns["obs"], columns["action"], columns["next_obs"], done[:, None]
            return ReplayBufferSamples(*tensors, columns["reward"][:, None], None)

    names = ("obs", "action", "next_obs", "reward", "discount")
    model.replay_buffer = Buffer()
    noise = torch.tensor(data["noise"])
    if job["algo"] == "sac":
        model.actor.action_dist.epsilon = (
            0.0  # added inside the logarithm of the tanh correction; rlz's form needs none
        )
        # The policy's actions are drawn before those of the target.
        queue = [part for one in noise for part in (one[1], one[0])]
        torch.distributions.normal._standard_normal = lambda *_, **__: queue.pop(0)
    else:
        queue, real = list(noise), torch.Tensor.normal_

        def normal(self: torch.Tensor, mean: float = 0, std: float = 1, *, generator: Any = None) -> torch.Tensor:
            if self.shape == (batch_size, actions):
                return self.copy_(queue.pop(0) * std + mean)
            return real(self, mean, std, generator=generator)

        torch.Tensor.normal_ = normal
    if discrete:
        for _ in range(updates):  # the target network moves after a step in the environment
            model.train(gradient_steps=1, batch_size=batch_size)
            model._on_step()
        queue = []
    else:
        model.train(gradient_steps=updates, batch_size=batch_size)
    found = {name.removeprefix("state/"): array for name, array in data.items() if name.startswith("state/")}
    for name, member, outputs, layer in layers(model, actions):
        of(found[f"{name}.weight"], member)[:, outputs] = layer.weight.detach().numpy().T
        of(found[f"{name}.bias"], member)[outputs] = layer.bias.detach().numpy()
    if learned:
        found["log_alpha"] = model.log_ent_coef.detach().numpy().reshape(())
    assert not queue, "SB3 drew other noise than rlz"
    np.savez(result, **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
