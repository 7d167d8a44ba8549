"""The workers of a run and what each of them owns: which roles, how many, which lanes, which row of the stats board."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlz.config import RunConfig

CONTROLLER_ID = 1
"""Worker id of the controller itself on all streams."""

FIRST_WORKER_ID = 2
LAST_WORKER_ID = 1022

MODULES: Mapping[str, str] = MappingProxyType(
    {
        "learner": "rlz.workers.learner",
        "evaluator": "rlz.workers.evaluator",
        "sampler": "rlz.workers.sampler",
    }
)
"""The module of each role; its class is named like the role."""


@dataclass(frozen=True)
class Node:
    """One worker of the graph; it keeps its name, slot and lanes when its process is replaced.

    Attributes
    ----------
    role, name, index : as in `WorkerSpec`.
    slot : row on the stats board (order of start).
    lanes : environment slots that it steps.
    """

    role: str
    name: str
    index: int
    slot: int
    lanes: tuple[int, ...] = ()


def plan(config: "RunConfig") -> tuple[Node, ...]:
    """Workers of a run, in the order of their start: the learner first, because it takes longest to load."""
    nodes = [Node("learner", "learner", 0, 0)]
    if config.eval_every > 0:
        nodes.append(Node("evaluator", "evaluator", 0, 1))
    for index, lanes in enumerate(split_lanes(config.num_envs, config.samplers)):
        nodes.append(Node("sampler", f"sampler-{index}", index, 2 + index, lanes))
    return tuple(nodes)


def stats_slots(config: "RunConfig") -> int:
    """Rows that the stats board needs (the evaluator's exists even when it is off)."""
    return 2 + config.samplers


def split_lanes(lanes: int, samplers: int) -> list[tuple[int, ...]]:
    """Contiguous ranges of lanes, one per sampler, whose sizes differ by one at most."""
    bounds = [k * lanes // samplers for k in range(samplers + 1)]
    return [tuple(range(begin, end)) for begin, end in pairwise(bounds)]
