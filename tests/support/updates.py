"""Shared by the tests of algorithms: small batches in float64, networks from torch.nn, training in the plain way."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from rlz.algorithms.actor_critic import ActorCritic
from rlz.algorithms.base import Algorithm, Batch
from rlz.algorithms.registry import algorithm_type
from rlz.networks.mlp import Mlp
from support.algorithms import made

OBS, ACTION, HIDDEN, SIZE = 3, 2, (8, 8), 16
RATE = torch.tensor(3e-3, dtype=torch.float64)
FLOAT = torch.float64
MODULES = {"relu": nn.ReLU, "tanh": nn.Tanh, "silu": nn.SiLU, "elu": nn.ELU}


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make_batch(seed: int = 1, *, weights: bool = False, choices: int = 0) -> Batch:
    """Transitions of which every third one ends in a terminal state. With `choices` actions are indices below it."""
    draw = generator(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw, dtype=FLOAT)

    discount = torch.full((SIZE,), 0.9, dtype=FLOAT)
    discount[::3] = 0.0
    batch = Batch(normal(SIZE, OBS), normal(SIZE, ACTION).tanh(), normal(SIZE, OBS), normal(SIZE), discount)
    if choices:
        batch = batch._replace(action=torch.randint(choices, (SIZE, 1), generator=draw))
    return batch._replace(weight=torch.rand(SIZE, generator=draw, dtype=FLOAT)) if weights else batch


def noises(algorithm: Any, count: int) -> list[Tensor]:
    draw = generator(9)
    return [torch.randn(algorithm.noise_shape(SIZE), generator=draw, dtype=FLOAT) for _ in range(count)]


def kinds(algorithm: Any, count: int) -> list[str]:
    """Kinds of the first so many updates."""
    return [algorithm.cycle[n % len(algorithm.cycle)] for n in range(count)]


def module(layout: Mlp, flat: Tensor, member: int | None = None) -> nn.Sequential:
    """The same network from torch.nn (weights there are [out, in])."""
    tensors = iter(tensor if member is None else tensor[member] for tensor in layout.named(flat).values())
    layers: list[nn.Module] = []
    sizes = [layout.inputs, *layout.hidden, layout.outputs]
    for index in range(len(sizes) - 1):
        linear = nn.Linear(sizes[index], sizes[index + 1], dtype=FLOAT)
        linear.weight.data, linear.bias.data = next(tensors).T.clone(), next(tensors).clone()
        layers.append(linear)
        if index == len(layout.hidden):
            break
        if layout.layer_norm:
            norm = nn.LayerNorm(sizes[index + 1], dtype=FLOAT)
            norm.weight.data, norm.bias.data = next(tensors).clone(), next(tensors).clone()
            layers.append(norm)
        layers.append(MODULES[layout.activation]())
    return nn.Sequential(*layers)


class Plain:
    """Actor, critics, their targets and optimisers as modules; a subclass trains them with `backward`."""

    def __init__(self, algorithm: ActorCritic, state: Any) -> None:
        self.actor = module(algorithm.actor, state.actor)
        self.critics = [module(algorithm.critic, state.critic, k) for k in range(algorithm.critic.members or 1)]
        self.target_actor = copy.deepcopy(self.actor)
        self.target_critics = copy.deepcopy(self.critics)
        self.actor_optimiser = torch.optim.Adam(self.actor.parameters(), lr=float(RATE))
        parameters = [p for critic in self.critics for p in critic.parameters()]
        self.critic_optimiser = torch.optim.Adam(parameters, lr=float(RATE))

    @staticmethod
    def q(critic: nn.Module, obs: Tensor, action: Tensor) -> Tensor:
        found: Tensor = critic(torch.cat([obs, action], 1))[:, 0]
        return found

    @staticmethod
    def step(optimiser: torch.optim.Optimizer, loss: Tensor) -> None:
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()

    @staticmethod
    def follow(targets: nn.Module, online: nn.Module, tau: float) -> None:
        with torch.no_grad():
            for t, p in zip(targets.parameters(), online.parameters(), strict=True):
                t.mul_(1 - tau).add_(tau * p)


def flatten(*stack: nn.Module) -> Tensor:
    """Parameters of one module, or of several as a stack, in rlz's flat order."""
    groups = zip(*(module.parameters() for module in stack), strict=True)
    return torch.cat([torch.stack([t.detach().T if t.ndim == 2 else t.detach() for t in g]).flatten() for g in groups])


def farthest(pairs: list[tuple[Tensor, Tensor]]) -> float:
    """Largest difference of any number."""
    return max(float((a - b).abs().max()) for a, b in pairs)


CHOOSING = {"dqn": (3,), "sac-discrete": (3,)}
"""Algorithms that need choices, and how many they get here."""


def make(algo: str, obs: int = 3, action: int = 2, **values: Any) -> Algorithm[Any]:
    choices = CHOOSING.get(algo, ())
    return made(algorithm_type(algo), obs, action, **{"hidden": (8,), "choices": choices, **values})
