"""Learning curve of Stable-Baselines3's PPO with the settings of a run of rlz, evaluated like it.

    python sb3_ppo_curve.py --like runs/hopper_s1/config.toml --output curve.csv

Runs in any environment that has stable-baselines3 and gymnasium[mujoco]. Every setting is read from the run's
config.toml; --normalize-obs and --normalize-reward become a VecNormalize, whose statistics are frozen in evaluation.
Columns: env_steps, mean, std, wall_s (evaluation time excluded).
"""

import argparse
import csv
import time
import tomllib
import warnings
from pathlib import Path

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

ACTIVATIONS = {"relu": torch.nn.ReLU, "tanh": torch.nn.Tanh, "silu": torch.nn.SiLU, "elu": torch.nn.ELU}


def schedule(value):
    """A number, or text such as lin_0.2: SB3 gives the part of the run that is left."""
    if isinstance(value, str):
        start = float(value.removeprefix("lin_"))
        return lambda left: left * start
    return value


class Evaluate(BaseCallback):
    """At the same multiples of env steps as rlz: at the first rollout's end from there on, with the newest policy."""

    def __init__(self, env_id, every, seeds, path):
        super().__init__()
        self.env, self.every, self.seeds, self.path = gym.make(env_id), every, seeds, path
        self.next, self.start, self.paused = every, time.perf_counter(), 0.0

    def _on_step(self):
        return True

    def _on_rollout_start(self):
        if self.num_timesteps >= self.next:
            self.evaluate()

    def evaluate(self):
        self.next = (self.num_timesteps // self.every + 1) * self.every
        began = time.perf_counter()
        normal = self.model.get_vec_normalize_env()
        returns = []
        for seed in self.seeds:
            obs, _ = self.env.reset(seed=seed)
            total, done = 0.0, False
            while not done:
                seen = obs if normal is None else normal.normalize_obs(obs)
                action, _ = self.model.predict(seen, deterministic=True)
                obs, reward, terminated, truncated, _ = self.env.step(action)
                total, done = total + float(reward), terminated or truncated
            returns.append(total)
        self.paused += time.perf_counter() - began
        wall = time.perf_counter() - self.start - self.paused
        with Path(self.path).open("a", newline="") as file:
            row = [self.num_timesteps, f"{np.mean(returns):.3f}", f"{np.std(returns):.3f}", f"{wall:.1f}"]
            csv.writer(file).writerow(row)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--like", type=Path, required=True, help="config.toml of a run of rlz")
    p.add_argument("--steps", type=int, help="instead of the run's")
    p.add_argument("--seed", type=int, help="instead of the run's")
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--output", required=True)
    a = p.parse_args()
    c = tomllib.loads(a.like.read_text())
    warnings.filterwarnings("ignore")
    torch.set_num_threads(a.threads)
    seed = c["seed"] if a.seed is None else a.seed
    env = make_vec_env(c["env"], n_envs=c["num_envs"], seed=seed)
    normal = c.get("normalize_obs", False), c.get("normalize_reward", False)
    if any(normal):
        env = VecNormalize(env, norm_obs=normal[0], norm_reward=normal[1], gamma=c["gamma"])
    model = PPO(
        "MlpPolicy",
        env,
        seed=seed,
        learning_rate=schedule(c["learning_rate"]),
        clip_range=schedule(c["clip_range"]),
        n_steps=c["n_steps"],
        batch_size=c["batch_size"],
        n_epochs=c["n_epochs"],
        gamma=c["gamma"],
        gae_lambda=c["gae_lambda"],
        clip_range_vf=c.get("clip_range_vf"),
        normalize_advantage=c["normalize_advantage"],
        ent_coef=c["ent_coef"],
        vf_coef=c["vf_coef"],
        max_grad_norm=c["max_grad_norm"],
        target_kl=c.get("target_kl"),
        policy_kwargs={
            "net_arch": {"pi": list(c["hidden"]), "vf": list(c["hidden"])},
            "activation_fn": ACTIVATIONS[c["activation"]],
            "ortho_init": c["ortho_init"],
            "log_std_init": c["log_std_init"],
        },
        device="cpu",
        verbose=0,
    )
    with Path(a.output).open("w") as file:
        file.write("env_steps,mean,std,wall_s\n")
    seeds = range(1_000_000, 1_000_000 + c["eval_episodes"])
    callback = Evaluate(c["env"], c["eval_every"], seeds, a.output)
    model.learn(a.steps or c["total_timesteps"], callback=callback)
    callback.evaluate()


if __name__ == "__main__":
    main()
