# Runs in an environment of its own, not where rlz is checked.
# mypy: ignore-errors
# ruff: noqa: D102
"""SAC as one file and one loop, in the way of CleanRL: what plain PyTorch gives without any framework.

Written here, because CleanRL is no package. Its settings: actor's learning rate 3e-4, critics' 1e-3 (`train`; in
`score` both are the workload's), temperature learned, an actor update for every critic update as in the other
contenders (CleanRL does two every second time, which is as many). Threads 1 and 2 are searched; one environment, as
there.
"""

from itertools import pairwise

import numpy as np
from adapter import Copies, Window, main


def mlp(torch, sizes):
    """Linear layers with ReLU between them."""
    layers = []
    for one, other in pairwise(sizes):
        layers += [torch.nn.Linear(one, other), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


class Rows:
    """The replay buffer: arrays."""

    def __init__(self, size, obs, action):
        self.size, self.count = size, 0
        self.arrays = {"obs": obs, "next_obs": obs, "action": action, "reward": 1, "done": 1}
        self.arrays = {name: np.zeros((size, width), np.float32) for name, width in self.arrays.items()}

    def add(self, **row):
        for name, value in row.items():
            self.arrays[name][self.count % self.size] = value
        self.count += 1

    def sample(self, rng, batch, tensor):
        at = rng.integers(0, min(self.count, self.size), batch)
        return {name: tensor(array[at]) for name, array in self.arrays.items()}


def run(job):
    """Train until the window, or the run to a score, is over."""
    import gymnasium
    import torch

    torch.set_num_threads(job["threads"])
    torch.manual_seed(job["seed"])
    rng = np.random.default_rng(job["seed"])
    env = gymnasium.make(job["env"])
    space = env.action_space
    space.seed(job["seed"])
    obs_dim, action_dim, hidden = env.observation_space.shape[0], space.shape[0], list(job["hidden"])
    low, high = torch.tensor(space.low), torch.tensor(space.high)
    actor = mlp(torch, [obs_dim, *hidden, 2 * action_dim])
    critics = [mlp(torch, [obs_dim + action_dim, *hidden, 1]) for _ in range(2)]
    targets = [mlp(torch, [obs_dim + action_dim, *hidden, 1]) for _ in range(2)]
    for critic, target in zip(critics, targets, strict=True):
        target.load_state_dict(critic.state_dict())
    log_alpha = torch.zeros(1, requires_grad=True)
    rates = (job.get("learning_rate", 3e-4), job.get("learning_rate", 1e-3))
    actor_optimiser = torch.optim.Adam(actor.parameters(), lr=rates[0])
    critic_optimiser = torch.optim.Adam([p for critic in critics for p in critic.parameters()], lr=rates[1])
    alpha_optimiser = torch.optim.Adam([log_alpha], lr=rates[1])
    gamma, tau, entropy = job.get("gamma", 0.99), 0.005, -float(action_dim)

    def act(obs):
        mean, log_std = actor(obs).chunk(2, dim=-1)
        normal = torch.distributions.Normal(mean, log_std.clamp(-20, 2).exp())
        drawn = normal.rsample()
        squashed = torch.tanh(drawn)
        log_prob = normal.log_prob(drawn) - torch.log(1 - squashed**2 + 1e-6)
        return squashed, log_prob.sum(-1, keepdim=True)

    def update():
        batch = rows.sample(rng, job["batch_size"], torch.from_numpy)
        alpha = log_alpha.exp().detach()
        with torch.no_grad():
            action, log_prob = act(batch["next_obs"])
            both = torch.cat([batch["next_obs"], action], -1)
            value = torch.min(targets[0](both), targets[1](both)) - alpha * log_prob
            goal = batch["reward"] + gamma * (1 - batch["done"]) * value
        both = torch.cat([batch["obs"], batch["action"]], -1)
        loss = sum(torch.nn.functional.mse_loss(critic(both), goal) for critic in critics)
        critic_optimiser.zero_grad()
        loss.backward()
        critic_optimiser.step()
        action, log_prob = act(batch["obs"])
        both = torch.cat([batch["obs"], action], -1)
        actor_loss = (alpha * log_prob - torch.min(critics[0](both), critics[1](both))).mean()
        actor_optimiser.zero_grad()
        actor_loss.backward()
        actor_optimiser.step()
        alpha_loss = -(log_alpha.exp() * (log_prob.detach() + entropy)).mean()
        alpha_optimiser.zero_grad()
        alpha_loss.backward()
        alpha_optimiser.step()
        with torch.no_grad():
            for critic, target in zip(critics, targets, strict=True):
                for new, old in zip(critic.parameters(), target.parameters(), strict=True):
                    old.lerp_(new, tau)

    def layers():
        return [(one.weight.detach().numpy(), one.bias.detach().numpy()) for one in actor if hasattr(one, "weight")]

    rows = Rows(job["buffer_size"], obs_dim, action_dim)
    window, copies, scores = Window(job), Copies(job), job["workload"] == "score"
    obs, _ = env.reset(seed=job["seed"])
    steps = updates = 0
    while True:
        if steps < job["learning_starts"]:
            action = 2 * (space.sample() - space.low) / (space.high - space.low) - 1
        else:
            with torch.no_grad():
                action = act(torch.from_numpy(np.asarray(obs, np.float32))[None])[0][0].numpy()
        scaled = low.numpy() + (action + 1) / 2 * (high - low).numpy()
        next_obs, reward, terminated, truncated, _ = env.step(scaled)
        rows.add(obs=obs, next_obs=next_obs, action=action, reward=reward, done=terminated)
        obs = env.reset()[0] if terminated or truncated else next_obs
        steps += 1
        if steps > job["learning_starts"]:
            update()
            updates += 1
        if scores:
            if copies.due() and not copies.write(steps, layers()):
                return {}
        elif not window.goes_on(steps, updates):
            return window.figures()


if __name__ == "__main__":
    main(run)
