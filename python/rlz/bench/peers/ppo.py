# The peers are not installed where rlz is checked.
# mypy: ignore-errors
"""Measures PPO of stable-baselines3 or SBX, or APPO of Sample Factory. Runs in the peer's own environment.

    python ppo.py '{"library": "sb3", "env": "Ant-v4", "num_envs": 4, "rows": 2048, "batch_size": 64, ...}'

A rollout has `rows` env steps of all environments; networks are 64x64 with tanh. Prints one JSON object as its last
line: env steps per second with learning, over whole rollouts after the first ones.
"""

import importlib.metadata
import json
import sys
import tempfile
import time


class Window:
    """Rate of a counter over some seconds, after some more.

    `look` gives the rate once it is known.
    """

    def __init__(self, seconds, settle):
        self.seconds = seconds
        self.settle = settle
        self.started = None
        self.begin = None

    def look(self, count):
        """Take note of a counter; the rate when the window is over, else None."""
        now = time.perf_counter()
        if self.started is None:
            self.started = now
        if self.begin is None:
            if now - self.started >= self.settle:
                self.begin = now, count
            return None
        if now - self.begin[0] < self.seconds:
            return None
        return (count - self.begin[1]) / (now - self.begin[0])


def stable_baselines(job):
    """PPO of Stable-Baselines3 or SBX, all environments in its process."""
    if job["library"] == "sb3":
        import torch

        torch.set_num_threads(job["threads"])
        from stable_baselines3 import PPO
    else:
        from sbx import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env

    window = Window(job["seconds"], job["settle"])

    class Clock(BaseCallback):
        rate = None
        over = False

        def _on_step(self):
            return not self.over

        def _on_rollout_start(self):
            if self.num_timesteps:
                self.rate = window.look(self.num_timesteps)
                self.over = self.rate is not None

    options = {"device": "cpu"} if job["library"] == "sb3" else {}
    envs = make_vec_env(job["env"], n_envs=job["num_envs"], seed=job["seed"])
    shape = {"n_steps": job["rows"] // job["num_envs"], "batch_size": job["batch_size"], "n_epochs": job["epochs"]}
    clock = Clock()
    PPO("MlpPolicy", envs, seed=job["seed"], **shape, **options).learn(10**9, callback=clock)
    return clock.rate


def make_gymnasium(name, cfg=None, env_config=None, render_mode=None):
    """An environment for Sample Factory; its Gymnasium is older than the v5 of MuJoCo's."""
    import gymnasium

    return gymnasium.make(name.replace("-v5", "-v4"), render_mode=render_mode)


def sample_factory(job):
    """APPO of Sample Factory: `workers` processes with `num_envs` of all environments, in two halves each."""
    from sample_factory.algo.runners.runner import AlgoObserver
    from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
    from sample_factory.envs.env_utils import register_env
    from sample_factory.train import make_runner

    register_env(job["env"], make_gymnasium)
    each = job["num_envs"] // job["workers"]
    options = {
        "env": job["env"],
        "experiment": "bench",
        "train_dir": tempfile.mkdtemp(),
        "device": "cpu",
        "seed": job["seed"],
        "num_workers": job["workers"],
        "num_envs_per_worker": each,
        "worker_num_splits": 2 if each % 2 == 0 else 1,
        "rollout": min(64, job["rows"] // job["num_envs"]),
        "batch_size": job["batch_size"],
        "num_batches_per_epoch": job["rows"] // job["batch_size"],
        "num_epochs": job["epochs"],
        "encoder_mlp_layers": [64, 64],
        "nonlinearity": "tanh",
        "actor_critic_share_weights": False,
        "adaptive_stddev": False,
        "use_rnn": False,
        "recurrence": 1,
        "normalize_input": False,
        "normalize_returns": False,
        "decorrelate_experience_max_seconds": 0,
        "learning_rate": 3e-4,
        "save_every_sec": 10**6,
        "train_for_env_steps": 10**9,
        "log_to_file": False,
    }
    words = []
    for name, value in options.items():
        words.append(f"--{name}")
        words += [str(one) for one in value] if isinstance(value, list) else [str(value)]
    parser, _ = parse_sf_args(argv=words)
    _, runner = make_runner(parse_full_cfg(parser, words))
    window = Window(job["seconds"], job["settle"])
    found = []

    class Clock(AlgoObserver):
        def on_training_step(self, runner, training_iteration_since_resume):
            rate = window.look(runner.total_env_steps_since_resume or 0)
            if rate is not None and not found:
                found.append(rate)
                runner.cfg.train_for_env_steps = 0

    runner.register_observer(Clock())
    runner.init()
    runner.run()
    return found[0]


def main(job):
    """Do a job and print its result with the versions of the packages."""
    rate = sample_factory(job) if job["library"] == "sample-factory" else stable_baselines(job)
    versions = {}
    for package in job["recorded"]:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "missing"
    print(json.dumps({"env_steps_per_s": rate, "versions": versions}), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
