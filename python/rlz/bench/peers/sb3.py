# The peers are not installed where rlz is checked.
# mypy: ignore-errors
"""Measures stable-baselines3 or SBX. Runs in the peer's own environment; knows nothing of rlz but the lines it prints.

    python sb3.py '{"library": "sb3", "env": "Ant-v4", "threads": 1, "num_envs": 1, "seconds": 20, ...}'

Prints one JSON object as its last line: rates of SAC in its steady state, or of its sampling alone (no gradient steps).
"""

import importlib.metadata
import json
import sys
import time


def main(job):
    """Do a job and print its result with the versions of the packages."""
    result = train(job)
    versions = {}
    for package in job["recorded"]:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "missing"
    print(json.dumps({**result, "versions": versions}), flush=True)


def train(job):
    """SAC in its steady state: env steps and updates per second over a window after the warm-up."""
    if job["library"] == "sb3":
        import torch

        torch.set_num_threads(job["threads"])
        from stable_baselines3 import SAC
    else:
        from sbx import SAC
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env

    class Window(BaseCallback):
        """Skips warm-up steps after learning starts, then counts env steps for some seconds and ends the run."""

        def __init__(self):
            super().__init__()
            self.begin = None
            self.end = None

        def _on_step(self):
            now = time.perf_counter()
            if self.begin is None:
                if self.num_timesteps >= job["learning_starts"] + job["warmup_steps"]:
                    self.begin = (now, self.num_timesteps, self.model._n_updates)
                return True
            if now - self.begin[0] < job["seconds"]:
                return True
            self.end = (now, self.num_timesteps, self.model._n_updates)
            return False

    envs = make_vec_env(job["env"], n_envs=job["num_envs"], seed=job["seed"])
    options = {"device": job["device"]} if job["library"] == "sb3" else {}
    model = SAC(
        "MlpPolicy",
        envs,
        seed=job["seed"],
        batch_size=job["batch_size"],
        buffer_size=job["buffer_size"],
        learning_starts=job["learning_starts"],
        train_freq=1,
        gradient_steps=job["gradient_steps"],
        policy_kwargs={"net_arch": list(job["hidden"])},
        **options,
    )
    window = Window()
    model.learn(total_timesteps=10**9, callback=window)
    seconds = window.end[0] - window.begin[0]
    steps = window.end[1] - window.begin[1]
    updates = window.end[2] - window.begin[2]
    return {
        "env_steps_per_s": steps / seconds,
        "updates_per_s": updates / seconds,
        "window_s": seconds,
        "ratio": updates / steps,
    }


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
