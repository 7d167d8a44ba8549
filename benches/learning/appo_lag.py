"""APPO on CartPole-v1 with an exact policy lag, and with advantages normalised before and behind V-trace's weight.

    python benches/learning/appo_lag.py --lags 3 1 --seeds 1 2 3

Everything is in one process and eager: rollouts wait in a list of LAG, so each is that many versions old when its turn
comes. Prints the greedy return over 20 episodes after each fifth of 100,000 env steps.
"""

import argparse
import copy
import math
from collections import defaultdict, deque

import numpy as np
import torch

from rlz.algorithms.appo import Appo
from rlz.algorithms.base import Segments
from rlz.algorithms.settings import scheduled
from rlz.envs.spaces import EnvSpec

SPACES = EnvSpec("CartPole-v1", (4,), "float32", (), "int64", (0.0,), (1.0,), None)
SETTINGS = {"n_steps": 32, "batch_size": 64, "n_epochs": 4, "gamma": 0.98}
SETTINGS |= {"learning_rate": "lin_1e-3", "clip_range": "lin_0.2"}
ENVS, TOTAL = 8, 100_000


class Behind(Appo):
    """As it was: the mean is subtracted from weighted advantages, in each update."""

    normalizes_batches = True

    def prepare(self, state, segments, done):
        plain = copy.copy(self)
        plain.settings = self.settings.model_copy(update={"normalize_advantage": False})
        return Appo.prepare(plain, state, segments, done)


class CartPole:
    """So many of Gymnasium's, stepped by numpy at once; 500 steps."""

    def __init__(self, count, draw):
        self.draw, self.steps = draw, np.zeros(count, int)
        self.state = draw.uniform(-0.05, 0.05, (count, 4))

    def step(self, action):
        x, speed, angle, turn = self.state.T
        push, cos, sin = np.where(action == 1, 10.0, -10.0), np.cos(angle), np.sin(angle)
        part = (push + 0.05 * turn**2 * sin) / 1.1
        turning = (9.8 * sin - cos * part) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
        speeding = part - 0.05 * turning * cos / 1.1
        moved = [x + 0.02 * speed, speed + 0.02 * speeding, angle + 0.02 * turn, turn + 0.02 * turning]
        self.state, self.steps = np.stack(moved, 1), self.steps + 1
        terminated = (abs(self.state[:, 0]) > 2.4) | (abs(self.state[:, 2]) > math.radians(12))
        truncated = (self.steps >= 500) & ~terminated
        final, ends = self.state.copy(), terminated | truncated
        self.state[ends] = self.draw.uniform(-0.05, 0.05, (int(ends.sum()), 4))
        self.steps[ends] = 0
        return final, terminated, truncated


def logits(algorithm, net, state):
    with torch.no_grad():
        return algorithm.net(net, torch.from_numpy(state).float())[0]


def rollout(algorithm, net, env, generator):
    found = defaultdict(list)
    for _ in range(algorithm.settings.n_steps):
        found["obs"].append(torch.from_numpy(env.state).float())
        log_prob = torch.log_softmax(logits(algorithm, net, env.state), 1)
        action = torch.multinomial(log_prob.exp(), 1, generator=generator)
        final, terminated, truncated = env.step(action[:, 0].numpy())
        found["action"].append(action)
        found["next_obs"].append(torch.from_numpy(final).float())
        found["reward"].append(torch.ones(ENVS))
        found["terminated"].append(torch.from_numpy(terminated))
        found["truncated"].append(torch.from_numpy(truncated))
        found["log_prob"].append(log_prob.gather(1, action)[:, 0])
    stacked = {name: torch.stack(values, 1) for name, values in found.items()}
    return Segments(extras={"log_prob": stacked.pop("log_prob")}, **stacked)


def greedy(algorithm, net, episodes=20):
    env, total, alive = CartPole(episodes, np.random.default_rng(99)), np.zeros(episodes), np.ones(episodes, bool)
    while alive.any():
        _, terminated, truncated = env.step(logits(algorithm, net, env.state).argmax(1).numpy())
        total += alive
        alive &= ~(terminated | truncated)
    return total.mean()


def curve(algorithm, seed, lag, total):
    settings, env = algorithm.settings, CartPole(ENVS, np.random.default_rng(seed))
    generator = torch.Generator().manual_seed(seed)
    state, waiting, steps, found = algorithm.init(generator), deque(), 0, []
    rows = ENVS * settings.n_steps
    while steps < total:
        waiting.append(rollout(algorithm, state.net, env, generator))
        steps += rows
        if len(waiting) <= lag:
            continue
        done = steps / total
        with torch.no_grad():
            prepared = algorithm.prepare(state, waiting.popleft(), done)
        rate = torch.tensor(scheduled(settings.learning_rate, done), dtype=torch.float64)
        for _ in range(settings.n_epochs):
            for chosen in torch.randperm(rows, generator=generator).view(-1, settings.batch_size):
                batch = type(prepared)(*(column[chosen] for column in prepared))
                state = algorithm.update(state, batch, torch.zeros(1), rate).state
        if steps >= (len(found) + 1) * total / 5:
            found.append(greedy(algorithm, state.net))
    return found


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--lags", type=int, nargs="+", default=[3, 1])
    p.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    p.add_argument("--steps", type=int, default=TOTAL)
    a = p.parse_args()
    torch.set_num_threads(1)
    for lag in a.lags:
        for kind, name in ((Behind, "behind the weight"), (Appo, "before it")):
            curves = [curve(kind(kind.Settings(**SETTINGS), SPACES), seed, lag, a.steps) for seed in a.seeds]
            mean, last = np.mean(curves, 0).round().astype(int), [round(one[-1]) for one in curves]
            print(f"lag {lag}, normalised {name}: mean {mean.tolist()}, last {last}", flush=True)


if __name__ == "__main__":
    main()
