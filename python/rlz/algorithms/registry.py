"""The algorithms of `rlz train`: where each class is, and what the outputs of its actor mean. Imports no torch.

A further algorithm is one file that implements `OffPolicy`, one entry here, its name among the choices of
`RunConfig.algo`, and one TOML of presets.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from rlz.algorithms.base import OffPolicy

SQUASHED_GAUSSIAN = "squashed_gaussian"
"""Actor head: means, then log standard deviations, of a Gaussian squashed by tanh."""

DETERMINISTIC = "deterministic"
"""Actor head: actions before tanh; samplers add exploration noise."""


class Entry(NamedTuple):
    """One algorithm."""

    module: str  # imports torch
    name: str  # of the class in it
    head: str  # of its actor, as in `rlz._native.Policy`


ALGORITHMS = {
    "sac": Entry("rlz.algorithms.sac", "Sac", SQUASHED_GAUSSIAN),
    "td3": Entry("rlz.algorithms.td3", "Td3", DETERMINISTIC),
    "ddpg": Entry("rlz.algorithms.ddpg", "Ddpg", DETERMINISTIC),
}
"""By `RunConfig.algo`."""


def algorithm_class(algo: str) -> type[OffPolicy]:
    """Import the class of an algorithm."""
    entry = ALGORITHMS[algo]
    found: type[OffPolicy] = getattr(import_module(entry.module), entry.name)
    return found
