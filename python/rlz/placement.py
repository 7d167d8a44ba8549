"""The placement of a run as a value: how many workers each node of its graph has, and where they run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any, Self

from rlz.errors import GraphError
from rlz.graph import Graph, Node


@dataclass(frozen=True)
class Place:
    """One worker of a run; it keeps name, slot and lanes when its process is replaced.

    Attributes
    ----------
    node : what it is.
    name : the role, with its index where a node may have several workers: "sampler-0".
    index : among the workers of its node.
    slot : row on the stats board (order of start).
    lanes : environment slots that it steps.
    cores : that it keeps to; empty: all.
    """

    node: Node
    name: str
    index: int
    slot: int
    lanes: tuple[int, ...] = ()
    cores: tuple[int, ...] = ()

    @property
    def role(self) -> str:
        """Role of its node."""
        return self.node.role


@dataclass(frozen=True)
class Placement:
    """How many workers each node has, and where they run.

    Attributes
    ----------
    counts : workers by role; 1 where none is given.
    lanes : environments of the run, over all workers that step them.
    slack : most updates by which either side may leave the ratio's line.
    groups : roles whose workers share a process and take turns; every other worker has one of its own.
    cores : by role, for each worker the cores that it keeps to (in turn, where there are fewer).
    devices : by role.
    """

    counts: Mapping[str, int] = field(default_factory=dict)
    lanes: int = 1
    slack: float = 1.0
    groups: tuple[tuple[str, ...], ...] = ()
    cores: Mapping[str, tuple[tuple[int, ...], ...]] = field(default_factory=dict)
    devices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Inverse of `to_json`."""
        return cls(
            counts=dict(values["counts"]),
            lanes=values["lanes"],
            slack=values["slack"],
            groups=tuple(tuple(group) for group in values["groups"]),
            cores={role: tuple(tuple(one) for one in cores) for role, cores in values["cores"].items()},
            devices={role: tuple(devices) for role, devices in values["devices"].items()},
        )

    def count(self, node: Node) -> int:
        """Workers of a node."""
        return self.counts.get(node.role, 1)

    def takers(self, graph: Graph, stream: str) -> int:
        """Workers that take a stream."""
        return sum(self.count(node) for node in graph.nodes if stream in node.takes)

    def places(self, graph: Graph) -> tuple[Place, ...]:
        """Every worker of a graph, in the order of their start."""
        found: list[Place] = []
        for node in graph.nodes:
            count, numbered = self.count(node), node.role in self.counts
            lanes = split_lanes(self.lanes, count) if node.steps_environments else [()] * count
            cores = self.cores.get(node.role) or ((),)
            found += [
                Place(node, f"{node.role}-{index}" if numbered else node.role, index, len(found) + index, lanes[index],
                      cores[index % len(cores)])
                for index in range(count)
            ]  # fmt: skip
        return tuple(found)

    def check(self, graph: Graph, available: int | None = None) -> None:
        """Refuse a placement that does not fit a graph.

        Parameters
        ----------
        graph : that was checked.
        available : bytes of memory for the streams; None: not known.

        Raises
        ------
        GraphError
            Names the role, or the largest stream.
        """
        known = {node.role for node in graph.nodes}
        for role in sorted(
            {*self.counts, *self.cores, *self.devices, *(one for group in self.groups for one in group)}
        ):
            if role not in known:
                raise GraphError(f"placement: {role!r} is no node of the graph, which has {', '.join(sorted(known))}")
        if few := [role for role, count in self.counts.items() if count < 1]:
            raise GraphError(f"placement: {self.counts[few[0]]} workers of {few[0]!r}. A node needs at least one")
        sizes = {one.name: one.nbytes(self.lanes, self.takers(graph, one.name)) for one in graph.streams}
        if available is not None and sum(sizes.values()) > available:
            name = max(sizes, key=lambda name: sizes[name])
            raise GraphError(
                f"the streams need {sum(sizes.values()) / 2**20:,.0f} MiB, {sizes[name] / 2**20:,.0f} of them stream "
                f"{name!r}; there are {available / 2**20:,.0f} MiB left. Give it fewer rows"
            )


def split_lanes(lanes: int, workers: int) -> list[tuple[int, ...]]:
    """Contiguous ranges of lanes, one per worker, whose sizes differ by one at most."""
    bounds = [k * lanes // workers for k in range(workers + 1)]
    return [tuple(range(begin, end)) for begin, end in pairwise(bounds)]


def pinned(graph: Graph, counts: Mapping[str, int], cores: Sequence[int]) -> dict[str, tuple[tuple[int, ...], ...]]:
    """Cores by role: each worker that steps environments gets one of the last ones, torch the rest.

    On one core there is nothing to choose.
    """
    source = graph.source
    stepping = counts.get(source.role, 1) if source is not None else 0
    own = cores[max(1, len(cores) - stepping) :]
    if not own:
        return {}
    rest = tuple(cores[: len(cores) - len(own)])
    parts = {node.role: (rest if node.torch else tuple(cores),) for node in graph.nodes}
    return parts | ({source.role: tuple((core,) for core in own)} if source is not None else {})
