"""A torch policy that runs on a device of its own: the way to a card, tried on the CPU."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from rlz.acting import make_policy
from rlz.acting.flat import pack
from rlz.acting.rules import Categorical
from rlz.acting.torch_policy import TorchPolicy
from rlz.config import run_config
from rlz.envs import inspect_env
from rlz.envs.spaces import EnvSpec
from rlz.errors import ConfigError, DeviceError
from rlz.workers.job import Job


class Net(nn.Sequential):
    """Logits, through a layer that keeps an integer as well."""

    def __init__(self, spaces: EnvSpec) -> None:
        super().__init__(nn.Linear(spaces.obs_dim, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))


def test_on_a_device_the_actions_are_the_same_and_follow_every_version() -> None:
    spaces = inspect_env(config())
    spec = Categorical(Net, extras=(("log_prob", "f32", ()),)).policy(spaces)
    here, there = (TorchPolicy(spec, np.random.SeedSequence(1), device) for device in (None, torch.device("cpu")))
    obs = np.random.default_rng(1).normal(size=(16, spaces.obs_dim)).astype(np.float32)
    for _ in range(2):
        parameters = pack(Net(spaces).eval())
        found: list[Any] = []
        for policy in (here, there):
            policy.load(parameters)
            actions, log_prob = np.zeros((16, 1), np.int64), np.zeros(16, np.float32)
            policy.act(obs, actions, extras={"log_prob": log_prob})
            found.append((actions, log_prob))
        np.testing.assert_array_equal(found[0][0], found[1][0])
        np.testing.assert_array_equal(found[0][1], found[1][1])


def config(**options: Any) -> Any:
    return run_config(algo="ppo", env="CartPole-v1", num_envs=2, **options)


def test_a_server_on_a_card_needs_a_card_and_a_policy_in_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    served = config(inference="central", inference_device="cuda")
    spaces = inspect_env(served)
    monkeypatch.setattr("rlz.system.device.has_driver", lambda root: False)
    with pytest.raises(DeviceError, match="--inference-device cuda: this machine has no NVIDIA driver"):
        Job.of(served, spaces)
    monkeypatch.setattr("rlz.system.device.has_driver", lambda root: True)
    with pytest.raises(ConfigError, match="Rust runs this policy, on the CPU"):
        Job.of(served, spaces)
    with pytest.raises(ValueError, match="--inference-device cuda needs --inference central or learner"):
        config(inference_device="cuda")
    assert make_policy(Job.of(config(), spaces).answers.policy, np.random.SeedSequence(1)).version == 0
