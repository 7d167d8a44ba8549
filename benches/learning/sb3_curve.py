"""Learning curve of Stable-Baselines3's SAC, TD3 or DDPG, evaluated like rlz's: deterministic, fixed reset seeds.

Runs in any environment that has stable-baselines3 and gymnasium[mujoco]:
    python sb3_curve.py --env HalfCheetah-v5 --steps 50000 --seed 1 --output curve.csv
    python sb3_curve.py --algo td3 --env Pendulum-v1 --steps 20000 --noise 0.1 --gamma 0.98 --buffer-size 200000 \\
        --learning-starts 10000 --learning-rate 1e-3 --every 2000 --episodes 20 --output curve.csv
Columns: env_steps, mean, std, wall_s (evaluation time excluded).
"""

import argparse
import csv
import time
import warnings

import gymnasium as gym
import numpy as np
import stable_baselines3 as sb3
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.noise import NormalActionNoise


class Evaluate(BaseCallback):
    def __init__(self, env_id, every, seeds, path):
        super().__init__()
        self.env, self.every, self.seeds, self.path = gym.make(env_id), every, seeds, path
        self.start, self.paused = time.perf_counter(), 0.0

    def _on_step(self):
        if self.num_timesteps % self.every == 0:
            began = time.perf_counter()
            returns = []
            for seed in self.seeds:
                obs, _ = self.env.reset(seed=seed)
                total, done = 0.0, False
                while not done:
                    action, _ = self.model.predict(obs, deterministic=True)
                    obs, reward, terminated, truncated, _ = self.env.step(action)
                    total, done = total + float(reward), terminated or truncated
                returns.append(total)
            self.paused += time.perf_counter() - began
            wall = time.perf_counter() - self.start - self.paused
            with open(self.path, "a", newline="") as f:  # noqa: PTH123
                row = [self.num_timesteps, f"{np.mean(returns):.3f}", f"{np.std(returns):.3f}", f"{wall:.1f}"]
                csv.writer(f).writerow(row)
        return True


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--algo", default="sac", choices=["sac", "td3", "ddpg"])
    p.add_argument("--env", required=True)
    p.add_argument("--steps", type=int, required=True)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--learning-starts", type=int, default=100)
    p.add_argument("--learning-rate", type=float, default=3e-4)
    p.add_argument("--batch-size", type=int, default=256)
    p.add_argument("--buffer-size", type=int, default=1_000_000)
    p.add_argument("--gamma", type=float, default=0.99)
    p.add_argument("--noise", type=float, default=0.0, help="standard deviation of Gaussian action noise in [-1, 1]")
    p.add_argument("--every", type=int, default=2500)
    p.add_argument("--episodes", type=int, default=5)
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--output", required=True)
    a = p.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(a.threads)
    with open(a.output, "w") as f:  # noqa: PTH123
        f.write("env_steps,mean,std,wall_s\n")
    actions = gym.make(a.env).action_space.shape[0]
    noise = NormalActionNoise(np.zeros(actions), np.full(actions, a.noise)) if a.noise else None
    model = getattr(sb3, a.algo.upper())(
        "MlpPolicy",
        a.env,
        seed=a.seed,
        learning_starts=a.learning_starts,
        learning_rate=a.learning_rate,
        batch_size=a.batch_size,
        buffer_size=a.buffer_size,
        gamma=a.gamma,
        action_noise=noise,
        train_freq=1,
        gradient_steps=1,
        device="cpu",
        verbose=0,
    )
    seeds = range(1_000_000, 1_000_000 + a.episodes)
    model.learn(a.steps, callback=Evaluate(a.env, a.every, seeds, a.output))


if __name__ == "__main__":
    main()
