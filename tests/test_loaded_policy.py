import json
import subprocess
import sys

import gymnasium
import numpy as np
import pytest
from safetensors.numpy import save_file

import rlz
from rlz.config import resolve
from rlz.config.model import ask
from rlz.envs import inspect_env
from rlz.errors import CheckpointError
from rlz.loaded_policy import describe, find_policy, split_parameters

CONFIG = resolve("sac", "Pendulum-v1", {"hidden": [8], "activation": "tanh"})


@pytest.fixture
def spec():
    return inspect_env(CONFIG)


def write(folder, spec, seed=0, env_steps=500):
    folder.mkdir(parents=True)
    policy = ask(CONFIG, spec).policy
    size = sum(int(np.prod(shape)) for _, _, shape in policy.manifest)
    packed = np.random.default_rng(seed).normal(size=size).astype(np.float32)
    tensors = split_parameters(policy.manifest, packed.view(np.uint8))
    save_file(tensors, folder / "policy.safetensors")
    description = describe(CONFIG, spec, policy, version=3, env_steps=env_steps)
    (folder / "policy.json").write_text(json.dumps(description))
    return tensors


def expected(tensors, obs):
    hidden = np.tanh(obs @ tensors["actor.0.weight"] + tensors["actor.0.bias"])
    mean = (hidden @ tensors["actor.head.weight"] + tensors["actor.head.bias"])[..., :1]
    return 2.0 * np.tanh(mean)  # Pendulum-v1 takes torques in [-2, 2]


def test_predict_one_and_many_in_units_of_the_environment(tmp_path, spec):
    tensors = write(tmp_path / "checkpoints" / "latest", spec)
    policy = rlz.load(tmp_path)
    assert (policy.algo, policy.env_steps, policy.version, policy.spec) == ("sac", 500, 3, spec)
    batch = np.random.default_rng(1).normal(size=(5, 3)).astype(np.float32)
    actions = policy.predict(batch)
    assert (actions.shape, actions.dtype) == ((5, 1), np.float32)
    np.testing.assert_allclose(actions, expected(tensors, batch), atol=1e-5)
    single = policy.predict(batch[2])
    assert single.shape == (1,)
    np.testing.assert_allclose(single, actions[2], atol=1e-6)
    np.testing.assert_allclose(policy.predict(batch.tolist()), actions)
    assert policy.predict(np.zeros((0, 3))).shape == (0, 1)


def test_draws_follow_the_seed(tmp_path, spec):
    write(tmp_path / "checkpoints" / "latest", spec)
    obs = np.ones((4, 3), np.float32)
    one, two, other = (rlz.load(tmp_path, seed=seed).predict(obs, deterministic=False) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, two)
    assert not np.array_equal(one, other)
    assert np.abs(one).max() <= 2.0


def test_wrong_observations_are_refused(tmp_path, spec):
    write(tmp_path / "checkpoints" / "latest", spec)
    policy = rlz.load(tmp_path)
    with pytest.raises(ValueError, match=r"shape \(4,\); Pendulum-v1 needs \(3,\)"):
        policy.predict(np.zeros(4))
    with pytest.raises(ValueError, match=r"shape \(2, 2, 3\)"):
        policy.predict(np.zeros((2, 2, 3)))
    with pytest.raises(TypeError, match="real numbers"):
        policy.predict(np.array(["a", "b", "c"]))


def test_policies_of_format_1_still_load(tmp_path, spec):
    write(tmp_path / "new", spec)
    write(tmp_path / "old", spec)
    description = json.loads((tmp_path / "old" / "policy.json").read_text())
    description |= {"format": 1, "actor": description.pop("policy")["network"]}
    (tmp_path / "old" / "policy.json").write_text(json.dumps(description))
    obs = np.random.default_rng(2).normal(size=(4, 3)).astype(np.float32)
    np.testing.assert_array_equal(rlz.load(tmp_path / "old").predict(obs), rlz.load(tmp_path / "new").predict(obs))
    (tmp_path / "old" / "policy.json").write_text(json.dumps(description | {"format": 3}))
    with pytest.raises(CheckpointError, match="has format 3, this rlz reads formats 1 and 2"):
        rlz.load(tmp_path / "old")


def test_which_checkpoint(tmp_path, spec, monkeypatch):
    run = tmp_path / "runs" / "mine"
    with pytest.raises(CheckpointError, match="no such folder"):
        rlz.load(run)
    run.mkdir(parents=True)
    with pytest.raises(CheckpointError, match=r"is no run: it has no config.toml"):
        rlz.load(run)
    (run / "config.toml").write_text("")
    with pytest.raises(CheckpointError, match="no checkpoint yet"):
        rlz.load(run)
    write(run / "checkpoints" / "step-000000000500", spec)
    (run / "checkpoints" / "latest").symlink_to("step-000000000500")
    assert find_policy(run).name == "latest"
    write(run / "checkpoints" / "best", spec)
    assert find_policy(run).name == "best"
    assert find_policy(run, "latest").name == "latest"
    assert find_policy(run / "checkpoints" / "best") == run / "checkpoints" / "best"
    monkeypatch.chdir(tmp_path)
    assert rlz.load("mine").env_steps == 500
    with pytest.raises(CheckpointError, match="it has: best, latest, step-000000000500"):
        rlz.load(run, "newest")


def test_broken_files_are_named(tmp_path, spec):
    folder = tmp_path / "checkpoint"
    tensors = write(folder, spec)
    save_file(tensors | {"actor.0.bias": np.zeros(9, np.float32)}, folder / "policy.safetensors")
    with pytest.raises(CheckpointError, match=r"'actor.0.bias' must be float32\[8\], got float32\[9\]"):
        rlz.load(folder)
    (folder / "policy.safetensors").write_bytes(b"\x00" * 20)
    with pytest.raises(CheckpointError, match=r"policy.safetensors cannot be read"):
        rlz.load(folder)
    (folder / "policy.json").write_text('{"algo": "sac"}')
    with pytest.raises(CheckpointError, match="lacks env, env_spec, env_steps, format, policy"):
        rlz.load(folder)
    (folder / "policy.json").write_text("[")
    with pytest.raises(CheckpointError, match=r"policy.json cannot be read"):
        rlz.load(folder)


def test_it_acts_in_its_environment_without_torch(tmp_path, spec):
    write(tmp_path / "checkpoints" / "latest", spec)
    env = rlz.load(tmp_path).make_env()
    assert isinstance(env, gymnasium.Env)
    env.close()
    code = f"""
import sys
import rlz
policy = rlz.load({str(tmp_path)!r})
env = policy.make_env()
obs, _ = env.reset(seed=1)
for _ in range(3):
    obs, *_ = env.step(policy.predict(obs))
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
