"""Run folders as runs leave them, without a run."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from rlz.acting import make_policy
from rlz.config import resolve
from rlz.config.model import ask
from rlz.envs import inspect_env
from rlz.records.policy_files import PolicyFiles

NASTY = "<img src=x onerror=alert(1)>"
"""What a page must show as text."""


def make_run(folder: Path, name: str = "old", *, lines: int = 50, **values: Any) -> Path:
    """A run that has ended, with an evaluation in every tenth of its log's lines."""
    run = folder / name
    (run / "logs").mkdir(parents=True)
    config = resolve("sac", "Pendulum-v1", {"total_timesteps": 100 * lines, **values})
    (run / "config.toml").write_text(config.to_toml())
    with (run / "metrics.jsonl").open("w") as log:
        for index in range(1, lines + 1):
            log.write(json.dumps(line_of(index)) + "\n")
    rows = [
        "env_steps,updates,version,return_mean,return_std,return_min,return_max,length_mean,length_std,episodes,wall_s,best"
    ]
    for index in range(10, lines + 1, 10):
        rows.append(f"{100 * index},{90 * index},{index},{index - 200.5},5.0,-300,-100,200,0,10,1.5,1")
    (run / "evaluations.csv").write_text("\n".join(rows) + "\n")
    (run / "logs" / "events.log").write_text(f"2026-01-01 00:00:00 started\n2026-01-01 00:00:01 {NASTY}\n")
    (run / "summary.json").write_text(json.dumps({"status": "completed", **line_of(lines)}))
    return run


def line_of(index: int) -> dict[str, Any]:
    """Line `index` (from 1) of a log."""
    return {
        "time": 1.7e9 + 5 * index,
        "wall_s": 5.0 * index,
        "env_steps": 100 * index,
        "updates": 90 * index,
        "rollout/return_mean": -1000.0 + index,
        "rollout/episodes": index // 2,
        "time/env_steps_per_s": 20.0,
        "time/updates_per_s": 18.0,
        "replay/ratio": 0.9,
        "replay/policy_lag": None if index == 1 else 0.5,
        "train/critic_loss": 1.0 / index,
        "train/its_own_name": float(index),
        "workers/learner/updates_per_s": 18.0,
        "workers/learner/cpu_percent": 90.0,
        "workers/learner/phase_update": 0.75,
        "workers/learner/wait_limiter": 0.2,
        "workers/sampler-0/env_steps_per_s": 20.0,
        "workers/sampler-0/private_bytes": 80 << 20,
        "workers/sampler-0/phase_act": 0.1,
        "workers/sampler-0/phase_environment": 0.3,
        "workers/sampler-0/wait_limiter": 0.6,
    }


def save_policy(run: Path) -> None:
    """Write a checkpoint with a policy that has learned nothing: version 3, after 300 env steps."""
    config = resolve("sac", "Pendulum-v1", {"hidden": "4"})
    env_spec = inspect_env(config)
    acts = ask(config, env_spec).policy
    parameters = np.zeros(make_policy(acts, np.random.SeedSequence(1)).nbytes, np.uint8)
    files = PolicyFiles.of(config, env_spec, parameters, version=3, env_steps=300, updates=300, acts=acts)
    folder = run / "checkpoints" / "latest"
    folder.mkdir(parents=True)
    files.write(folder)
