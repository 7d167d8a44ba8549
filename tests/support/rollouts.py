"""Segments and rows of on-policy algorithms, in float64, without an environment."""

from typing import Any

import torch
from torch import Tensor

from rlz.algorithms.appo import Appo
from rlz.algorithms.base import Segments
from rlz.algorithms.ppo import Ppo, PpoRows
from rlz.envs.spaces import EnvSpec
from support.updates import FLOAT, generator

OBS, LENGTH, SEGMENTS = 3, 12, 2


def spaces(choices: tuple[int, ...] = (), components: int = 2) -> EnvSpec:
    """Choices of each component, or a Box of so many."""
    if not choices:
        return EnvSpec.of_sizes(OBS, components)
    first, last = (0.0,) * len(choices), tuple(float(count - 1) for count in choices)
    return EnvSpec("sizes", (OBS,), "float32", (len(choices),), "int64", first, last, None)


def made(kind: type[Ppo[Any]] = Ppo, choices: tuple[int, ...] = (), **settings: Any) -> Ppo[Any]:
    return kind(kind.Settings(**{"hidden": (8, 8), **settings}), spaces(choices))


def make_appo(**settings: Any) -> Appo:
    return Appo(Appo.Settings(**{"hidden": (8, 8), **settings}), spaces())


def make_segments(algorithm: Ppo[Any], seed: int = 1, dtype: torch.dtype = FLOAT) -> Segments:
    """Both kinds of end, also at the end of a segment, and a step that has both. Steps are consecutive."""
    draw = generator(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(SEGMENTS, LENGTH, *shape, generator=draw, dtype=FLOAT).to(dtype)

    obs, next_obs = normal(OBS), normal(OBS)
    terminated = torch.zeros(SEGMENTS, LENGTH, dtype=torch.bool)
    truncated = terminated.clone()
    terminated[0, 3] = truncated[0, 7] = terminated[1, -1] = True
    terminated[1, 5] = truncated[1, 5] = True
    ends = terminated | truncated
    next_obs[:, :-1] = torch.where(ends[:, :-1, None], next_obs[:, :-1], obs[:, 1:])
    extras = {"log_prob": -normal().abs()}
    return Segments(
        obs, make_actions(algorithm, (SEGMENTS, LENGTH), draw), next_obs, normal(), terminated, truncated, extras
    )


def make_actions(algorithm: Ppo[Any], shape: tuple[int, ...], draw: torch.Generator) -> Tensor:
    if not algorithm.choices:
        return 1.5 * torch.randn(*shape, algorithm.spaces.action_dim, generator=draw, dtype=FLOAT)
    columns = [torch.randint(count, shape, generator=draw) for count in algorithm.choices]
    return torch.stack(columns, -1)


def make_rows(algorithm: Ppo[Any], size: int = 16, seed: int = 2) -> PpoRows:
    """Rows whose probability ratios are on both sides of the clip range."""
    draw = generator(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(size, *shape, generator=draw, dtype=FLOAT)

    obs, action = normal(OBS), make_actions(algorithm, (size,), draw)
    with torch.no_grad():
        policy, log_std, value = algorithm.net(algorithm.init(generator(3), FLOAT).net, obs)
        log_prob, _ = algorithm.log_prob(policy, log_std, action)
    clip_range = torch.full((size,), float(algorithm.settings.clip_range), dtype=FLOAT)
    rollout = torch.zeros(size, dtype=torch.int64)
    return PpoRows(
        *(obs, action, log_prob + 0.3 * normal(), normal(), normal(), value + 0.2 * normal(), clip_range, rollout)
    )
