"""The workers of a run and what each of them owns: which roles, how many, which lanes, which row of the stats board."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
    cores : that it keeps to; empty: all.
    """

    role: str
    name: str
    index: int
    slot: int
    lanes: tuple[int, ...] = ()
    cores: tuple[int, ...] = ()


def plan(config: "RunConfig", allowed: Sequence[int] | None = None) -> tuple[Node, ...]:
    """Workers of a run, in the order of their start: the learner first, because it takes longest to load.

    `allowed`: cores to pin to; default: those of this process.
    """
    nodes = [Node("learner", "learner", 0, 0)]
    if config.eval_every > 0:
        nodes.append(Node("evaluator", "evaluator", 0, 1))
    for index, lanes in enumerate(split_lanes(config.num_envs, config.samplers)):
        nodes.append(Node("sampler", f"sampler-{index}", index, 2 + index, lanes))
    if config.pin and config.mode != "serial":
        nodes = _pinned(nodes, sorted(os.sched_getaffinity(0) if allowed is None else allowed))
    return tuple(nodes)


def _pinned(nodes: list[Node], cores: list[int]) -> list[Node]:
    """Give each sampler one of the last cores and the learner the rest; on one core there is nothing to choose."""
    samplers = sum(node.role == "sampler" for node in nodes)
    own = cores[max(1, len(cores) - samplers) :]
    if not own:
        return nodes
    parts = {"learner": tuple(cores[: len(cores) - len(own)]), "evaluator": tuple(cores)}
    return [
        replace(node, cores=(own[node.index % len(own)],) if node.role == "sampler" else parts[node.role])
        for node in nodes
    ]


def stats_slots(config: "RunConfig") -> int:
    """Rows that the stats board needs (the evaluator's exists even when it is off)."""
    return 2 + config.samplers


def split_lanes(lanes: int, samplers: int) -> list[tuple[int, ...]]:
    """Contiguous ranges of lanes, one per sampler, whose sizes differ by one at most."""
    bounds = [k * lanes // samplers for k in range(samplers + 1)]
    return [tuple(range(begin, end)) for begin, end in pairwise(bounds)]
