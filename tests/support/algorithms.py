"""Algorithms of any size, without an environment."""

from typing import Any, TypeVar

from rlz.algorithms.base import Algorithm
from rlz.envs.spaces import EnvSpec

A = TypeVar("A", bound=Algorithm[Any])


def made(
    kind: type[A], obs: int, action: int, *, precision: str = "fp32", choices: tuple[int, ...] = (), **settings: Any
) -> A:
    """An algorithm with these settings."""
    return kind(kind.Settings(**settings), EnvSpec.of_sizes(obs, action, choices)).in_precision(precision)
