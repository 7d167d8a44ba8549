"""REDQ as a plain single-file loop, as one writes it without rlz: what examples/redq.py is compared with.

    python benches/learning/redq_loop.py --seed 1 --output curve.csv

One process: a step, then --ratio updates. Networks, learning rate, losses and evaluation (deterministic, fixed reset
seeds) are those of the example. Columns of the file: env_steps, mean, wall_s (without evaluations), updates.
"""

import argparse
import csv
import time
from pathlib import Path

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Normal

from rlz.workers.evaluation import evaluation_seeds


def mlp(inputs, hidden, outputs):
    widths = [inputs, *hidden]
    layers = []
    for k in range(len(hidden)):
        layers += [nn.Linear(widths[k], widths[k + 1]), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], outputs))


class Actor(nn.Module):
    def __init__(self, obs, action, hidden, scale):
        super().__init__()
        self.net = mlp(obs, hidden, 2 * action)
        self.register_buffer("scale", torch.as_tensor(scale))

    def forward(self, x):
        mean, log_std = self.net(x).chunk(2, -1)
        normal = Normal(mean, log_std.clamp(-20, 2).exp())
        raw = normal.rsample()
        squash = 2 * (np.log(2) - raw - F.softplus(-2 * raw))
        return torch.tanh(raw), (normal.log_prob(raw) - squash).sum(1)

    def best(self, x):
        return torch.tanh(self.net(x).chunk(2, -1)[0])


class ReplayBuffer:
    def __init__(self, size, obs, action):
        self.obs, self.next_obs = np.zeros((2, size, obs), np.float32)
        self.action, self.reward = np.zeros((size, action), np.float32), np.zeros(size, np.float32)
        self.terminated = np.zeros(size, np.float32)
        self.count = 0

    def add(self, obs, action, reward, next_obs, terminated):
        i = self.count % len(self.reward)
        self.obs[i], self.action[i], self.reward[i] = obs, action, reward
        self.next_obs[i], self.terminated[i] = next_obs, terminated
        self.count += 1

    def sample(self, batch, rng):
        rows = rng.integers(min(self.count, len(self.reward)), size=batch)
        columns = self.obs, self.action, self.reward, self.next_obs, self.terminated
        return [torch.from_numpy(column[rows]) for column in columns]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--env", default="Pendulum-v1")
    p.add_argument("--steps", type=int, default=2000)
    p.add_argument("--seconds", type=float, default=float("inf"), help="stop after so many seconds")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--learning-starts", type=int, default=500)
    p.add_argument("--learning-rate", type=float, default=1e-3)
    p.add_argument("--hidden", type=int, nargs="+", default=[64, 64])
    p.add_argument("--batch-size", type=int, default=256)
    p.add_argument("--ratio", type=int, default=20)
    p.add_argument("--n-critics", type=int, default=10)
    p.add_argument("--subset", type=int, default=2)
    p.add_argument("--every", type=int, default=250, help="env steps between evaluations; 0: none")
    p.add_argument("--episodes", type=int, default=20)
    p.add_argument("--threads", type=int, help="of torch (default: its own choice, all cores)")
    p.add_argument("--output", required=True)
    a = p.parse_args()
    if a.threads:
        torch.set_num_threads(a.threads)
    torch.manual_seed(a.seed)
    rng = np.random.default_rng(a.seed)
    env, eval_env = gym.make(a.env), gym.make(a.env)
    env.action_space.seed(a.seed)
    obs_dim, action_dim, scale = env.observation_space.shape[0], env.action_space.shape[0], env.action_space.high

    actor = Actor(obs_dim, action_dim, a.hidden, scale)
    critics = nn.ModuleList(mlp(obs_dim + action_dim, a.hidden, 1) for _ in range(a.n_critics))
    targets = nn.ModuleList(mlp(obs_dim + action_dim, a.hidden, 1) for _ in range(a.n_critics))
    targets.load_state_dict(critics.state_dict())
    log_alpha = torch.zeros(1, requires_grad=True)
    actor_optimizer = torch.optim.Adam(actor.parameters(), a.learning_rate)
    critic_optimizer = torch.optim.Adam(critics.parameters(), a.learning_rate)
    alpha_optimizer = torch.optim.Adam([log_alpha], a.learning_rate)
    buffer = ReplayBuffer(1_000_000, obs_dim, action_dim)
    updates = 0

    def update():
        obs, action, reward, next_obs, terminated = buffer.sample(a.batch_size, rng)
        alpha = log_alpha.exp().detach()
        with torch.no_grad():
            next_action, log_prob = actor(next_obs)
            pair = torch.cat([next_obs, next_action], 1)
            drawn = rng.choice(a.n_critics, a.subset, replace=False)
            q = torch.stack([targets[k](pair).squeeze(1) for k in drawn]).amin(0)
            target = reward + 0.99 * (1 - terminated) * (q - alpha * log_prob)
        pair = torch.cat([obs, action], 1)
        critic_loss = sum(F.mse_loss(critic(pair).squeeze(1), target) for critic in critics)
        critic_optimizer.zero_grad()
        critic_loss.backward()
        critic_optimizer.step()

        critics.requires_grad_(False)
        action, log_prob = actor(obs)
        pair = torch.cat([obs, action], 1)
        q = torch.stack([critic(pair).squeeze(1) for critic in critics]).mean(0)
        actor_loss = (alpha * log_prob - q).mean()
        actor_optimizer.zero_grad()
        actor_loss.backward()
        actor_optimizer.step()
        critics.requires_grad_(True)

        alpha_loss = -(log_alpha * (log_prob.detach() - action_dim).mean())
        alpha_optimizer.zero_grad()
        alpha_loss.backward()
        alpha_optimizer.step()

        with torch.no_grad():
            old, new = list(targets.parameters()), list(critics.parameters())
            torch._foreach_lerp_(old, new, 0.005)

    def evaluate():
        returns = []
        for seed in evaluation_seeds(a.episodes):
            obs, _ = eval_env.reset(seed=seed)
            total, done = 0.0, False
            while not done:
                with torch.no_grad():
                    action = actor.best(torch.as_tensor(obs)[None])[0].numpy()
                obs, reward, terminated, truncated, _ = eval_env.step(action * scale)
                total, done = total + float(reward), terminated or truncated
            returns.append(total)
        return float(np.mean(returns))

    rows, start, paused = [], time.perf_counter(), 0.0
    learned = None
    obs, _ = env.reset(seed=a.seed)
    for step in range(1, a.steps + 1):
        if step <= a.learning_starts:
            action = env.action_space.sample() / scale
        else:
            with torch.no_grad():
                action = actor(torch.as_tensor(obs)[None])[0][0].numpy()
        next_obs, reward, terminated, truncated, _ = env.step(action * scale)
        buffer.add(obs, action, reward, next_obs, terminated)
        obs = env.reset()[0] if terminated or truncated else next_obs
        if step > a.learning_starts:
            learned = learned or time.perf_counter()
            for _ in range(a.ratio):
                update()
                updates += 1
        if a.every and step % a.every == 0:
            began = time.perf_counter()
            score = evaluate()
            paused += time.perf_counter() - began
            rows.append([step, f"{score:.1f}", f"{time.perf_counter() - start - paused:.1f}", updates])
            print(rows[-1], flush=True)
        if time.perf_counter() - start > a.seconds:
            break
    if learned:
        print(f"updates/s {updates / (time.perf_counter() - learned - paused):.1f}")
    with Path(a.output).open("w", newline="") as file:
        csv.writer(file).writerows([["env_steps", "mean", "wall_s", "updates"], *rows])


if __name__ == "__main__":
    main()
