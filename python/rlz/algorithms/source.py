"""Where an algorithm comes from, and what is asked of it before a run: settings and answers. Imports no torch.

A further algorithm of rlz is one file, one entry here, and one TOML of presets.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from rlz.errors import ConfigError

if TYPE_CHECKING:
    from rlz.algorithms.base import Algorithm
    from rlz.algorithms.settings import Settings
    from rlz.envs.spaces import EnvSpec

BUILT_IN: Mapping[str, str] = MappingProxyType(
    {"sac": "rlz.algorithms.sac:Sac", "td3": "rlz.algorithms.td3:Td3", "ddpg": "rlz.algorithms.ddpg:Ddpg"}
)
"""Module and class of each algorithm by its name."""


def is_file(algo: str) -> bool:
    """The name is that of a user's own: file.py:Class."""
    return ".py:" in algo


def algorithm_type(algo: str) -> type[Algorithm[Any]]:
    """Import the class of an algorithm. Raises ConfigError where there is none."""
    module, _, name = BUILT_IN.get(algo, "").partition(":")
    if not module:
        raise ConfigError(f"Unknown algorithm {algo!r}. Algorithms: {', '.join(BUILT_IN)}.")
    found: type[Algorithm[Any]] = getattr(import_module(module), name)
    return found


@cache
def settings_type(algo: str) -> type[Settings]:
    """The class of an algorithm's settings."""
    return algorithm_type(algo).Settings


def settings_of(algo: str, values: Mapping[str, Any]) -> Settings:
    """The settings among the values of a run."""
    kind = settings_type(algo)
    return kind.model_validate({name: value for name, value in values.items() if name in kind.model_fields})


def make_algorithm(algo: str, values: Mapping[str, Any], env_spec: EnvSpec) -> Algorithm[Any]:
    """The algorithm with the settings among the values of a run."""
    return algorithm_type(algo)(settings_of(algo, values), env_spec)
