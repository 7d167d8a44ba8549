"""Serial mode with the fake learner (exact counts) and with the real one (same bits)."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlz.config import run_config
from rlz.records.checkpoint import newest_checkpoint
from rlz.runtime.train import train

FAKE = {"learner": "support.fake_learner:Learner"}


def run(folder: Path, name: str, workers: Any = FAKE, **values: Any) -> Path:
    defaults: dict[str, Any] = {
        "env": "support.fake_envs:Counting-v0",
        "env_kwargs": {"truncate_after": 20},
        "mode": "serial",
        "total_timesteps": 500,
        "learning_starts": 100,
        "batch_size": 32,
        "buffer_size": 1000,
        "hidden": (16,),
        "eval_every": 0,
        "runs_dir": str(folder),
        "name": name,
    }
    assert train(run_config(**{**defaults, **values}), quiet=True, workers=workers) == 0
    return folder / name


@pytest.mark.parametrize("ratio", [0.25, 0.3, 1.0, 4.0])
@pytest.mark.parametrize(("samplers", "envs"), [(1, 1), (1, 4), (4, 4)])
def test_the_replay_ratio_is_exact(tmp_path: Path, ratio: float, samplers: int, envs: int) -> None:
    path = run(tmp_path, "run", replay_ratio=ratio, samplers=samplers, num_envs=envs, total_timesteps=503)
    checkpoint = newest_checkpoint(path)
    assert checkpoint.env_steps == 503
    assert checkpoint.updates == int(ratio * 403)
    assert checkpoint.learner["optimiser.step"] == int(ratio * 403)
    summary = json.loads((path / "summary.json").read_text())
    assert summary["status"] == "completed"
    assert summary["rows_lost"] == 0


def test_an_error_in_a_worker_names_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = run_config(
        env="support.fake_envs:Counting-v0",
        env_kwargs={"fail_at": 50},
        mode="serial",
        total_timesteps=500,
        hidden=(8,),
        buffer_size=100,
        eval_every=0,
        runs_dir=str(tmp_path),
        name="run",
    )
    assert train(config, quiet=True, workers=FAKE) == 1
    error = capsys.readouterr().err
    assert "error: sampler-0: environment support.fake_envs:Counting-v0" in error
    assert "a bug in the environment" in error
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "failed"


def tensors(path: Path) -> dict[str, Any]:
    checkpoint = newest_checkpoint(path)
    return {**checkpoint.learner, "env_steps": np.array(checkpoint.env_steps)}


@pytest.mark.parametrize("env", ["Pendulum-v1", "support.fake_envs:Global-v0"])
def test_the_same_seed_gives_the_same_bits_whatever_is_watched(tmp_path: Path, env: str) -> None:
    common: dict[str, Any] = {"workers": None, "env": env, "env_kwargs": {}, "total_timesteps": 260}
    common |= {"learning_starts": 60, "device": "cpu", "compile": False}
    first = tensors(run(tmp_path, "first", **common))
    watched = tensors(
        run(tmp_path, "watched", **common, eval_every=50, eval_episodes=1, log_every=0.05, save_replay=False)
    )
    other = tensors(run(tmp_path, "other", **common, seed=2))
    assert first.keys() == watched.keys()
    for name, tensor in first.items():
        assert tensor.tobytes() == watched[name].tobytes(), name
    assert any(tensor.tobytes() != other[name].tobytes() for name, tensor in first.items())
