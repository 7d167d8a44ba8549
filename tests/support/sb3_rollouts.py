"""Stable-Baselines3's own `PPO.train()` on given weights and rollouts, in float64. Runs in the environment of SB3.

    python sb3_rollouts.py IN.npz OUT.npz

IN has `job` (JSON: what is made), the state of rlz's algorithm as `state/NAME`, and minibatches in the order of their
updates as `batch/FIELD` [updates, batch, ...]; OUT gets the parameters after the updates under rlz's names.
"""

import json
import sys
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, MultiDiscrete
from stable_baselines3 import PPO
from stable_baselines3.common import policies
from stable_baselines3.common.logger import configure
from stable_baselines3.common.type_aliases import RolloutBufferSamples
from torch import nn


class Spaces(gymnasium.Env):
    """Only its spaces are used."""

    def __init__(self, obs: int, action: int, choices: list[int]) -> None:
        self.observation_space = Box(-np.inf, np.inf, (obs,), np.float32)
        self.action_space = MultiDiscrete(choices) if choices else Box(-1, 1, (action,), np.float32)


def layers(policy: Any) -> Iterator[tuple[str, nn.Linear]]:
    """Name in rlz, and the layer."""
    for name, hidden, head in (
        ("actor", policy.mlp_extractor.policy_net, policy.action_net),
        ("critic", policy.mlp_extractor.value_net, policy.value_net),
    ):
        for number, layer in enumerate(layer for layer in hidden if isinstance(layer, nn.Linear)):
            yield f"{name}.{number}", layer
        yield f"{name}.head", head


def main(given: str, result: str) -> None:
    data = dict(np.load(given))
    job = json.loads(str(data.pop("job")))
    torch.set_num_threads(1)
    policies.preprocess_obs = lambda seen, space, normalize_images=True: seen.double()  # it would make it float32
    updates, size = data["batch/target"].shape
    model = PPO(
        *("MlpPolicy", Spaces(job["obs"], job["action"], job["choices"])),
        policy_kwargs={"net_arch": job["hidden"]},
        device="cpu",
        learning_rate=job["learning_rate"],
        n_steps=size * job["minibatches"],
        batch_size=size,
        n_epochs=updates // job["minibatches"],
        **job["options"],
    )
    model.set_logger(configure(None, []))
    model.policy.double()
    for name, layer in layers(model.policy):
        layer.weight.data = torch.tensor(data[f"state/{name}.weight"].T)
        layer.bias.data = torch.tensor(data[f"state/{name}.bias"])
    if "state/actor.log_std" in data:
        model.policy.log_std.data = torch.tensor(data["state/actor.log_std"])

    class Buffer:
        at = 0
        values = returns = np.zeros(2)

        def get(self, batch_size: int) -> Iterator[RolloutBufferSamples]:
            first, self.at = self.at, self.at + job["minibatches"]
            for index in range(first, self.at):
                fields = ("obs", "action", "value", "log_prob", "advantage", "target")
                yield RolloutBufferSamples(*(torch.tensor(data[f"batch/{name}"][index]) for name in fields))

    model.rollout_buffer = Buffer()
    model.train()
    found = {name.removeprefix("state/"): array for name, array in data.items() if name.startswith("state/")}
    for name, layer in layers(model.policy):
        found[f"{name}.weight"] = layer.weight.detach().numpy().T
        found[f"{name}.bias"] = layer.bias.detach().numpy()
    if "actor.log_std" in found:
        found["actor.log_std"] = model.policy.log_std.detach().numpy()
    np.savez(result, **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
