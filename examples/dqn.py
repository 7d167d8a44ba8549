"""DQN (Mnih et al. 2015) as one would write it in a single file: modules, an optimiser, one `learn`.

rlz train examples/dqn.py:Dqn --env CartPole-v1 --double
"""

import torch
from torch import Tensor, nn

import rlz


class Settings(rlz.ReplaySettings):
    double: bool = rlz.option(False, help="Choose the next action with the online network (van Hasselt et al. 2016).")
    target_every: int = rlz.option(250, ge=1, help="Updates between copies to the target network.")


class Net(nn.Module):
    """Observations [batch, *obs_shape] to the value of each action [batch, actions]."""

    def __init__(self, spaces):
        super().__init__()
        (actions,) = spaces.action_choices
        self.body = nn.Sequential(
            nn.Flatten(), nn.Linear(spaces.obs_dim, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU()
        )
        self.values = nn.Linear(128, actions)

    def forward(self, obs: Tensor) -> Tensor:
        return self.values(self.body(obs))


class Dqn(rlz.TorchAlgorithm):
    Settings = Settings
    acting = rlz.EpsilonGreedy(Net, start=1.0, end=0.05, over=0.2)

    def setup(self):
        self.net, self.target = Net(self.spaces), Net(self.spaces)
        self.target.load_state_dict(self.net.state_dict())
        self.optimizer = torch.optim.Adam(self.net.parameters(), self.learning_rate)

    def learn(self, batch: rlz.Batch, update: int):
        with torch.no_grad():
            values = self.target(batch.next_obs)
            best = (self.net(batch.next_obs) if self.settings.double else values).argmax(1, keepdim=True)
            target = batch.reward + batch.discount * values.gather(1, best).squeeze(1)
        q_value = self.net(batch.obs).gather(1, batch.action).squeeze(1)
        loss = nn.functional.smooth_l1_loss(q_value, target)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.net.parameters(), 10.0)
        self.optimizer.step()
        if update % self.settings.target_every == 0:
            self.target.load_state_dict(self.net.state_dict())
        return {"loss": loss.detach(), "q_value": q_value.detach().mean()}
