"""The graph of a run as a value: its nodes and the streams between them.

A graph is made once, from an algorithm's answers or by a user's function. It is checked before anything starts, and
travels to every worker as JSON. Whoever wants to know what a worker does asks its node, never its role.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, Self

from rlz.answers import Field, check_metrics
from rlz.errors import GraphError
from rlz.row_sizes import allocated_rows, packed_bytes

Progress = Literal["env_steps", "updates", "episodes", "rows_written"]

PROGRESS: Mapping[str, tuple[int, str]] = {
    "env_steps": (1000, "1,000 env steps"),
    "updates": (1000, "1,000 updates"),
    "episodes": (1, "an episode"),
    "rows_written": (1000, "1,000 rows"),
}
"""What counts as progress between two deaths of a worker, by what its node does."""

Death = Literal["restart", "ends the run"]

ENDS_THE_RUN: Death = "ends the run"
RESTART: Death = "restart"

OPTIONS: Mapping[str, tuple[str, ...]] = {
    "replay": ("capacity",),
    "queue": ("length", "segments"),
    "parameters": (),
    "inference": ("asked",),
}
"""Kinds of streams, and the numbers that each needs."""

MOST_LEASES = 64
"""Subscribers that hold a lease cell. Those beyond it read as well; each cell costs one version's memory."""

_INFERENCE_BYTES = 4 * 4096
"""Of an inference stream, whatever its lanes: its header, who waits and who answers."""

_ROLE = re.compile(r"[a-z][a-z_]*")
_WORKER = re.compile(r".+:[A-Za-z_]\w*")


@dataclass(frozen=True)
class Stream:
    """A typed channel between nodes.

    Attributes
    ----------
    name : under which nodes give and take it.
    kind : "replay" (rows in one lane per environment, the oldest overwritten), "queue" (segments of steps, first in
        first out), "parameters" (newest wins), or "inference" (requests in one lane per environment, and answers to
        whoever gives them).
    fields : of a row, of one step of a segment, of the parameters, or of a request and then of its answer.
    options : "capacity" in rows over all lanes (replay); "length" in steps, and "segments" that fit (queue); "asked":
        how many of the fields are the request's (inference).
    """

    name: str
    kind: Literal["replay", "queue", "parameters", "inference"]
    fields: tuple[Field, ...]
    options: Mapping[str, int] = field(default_factory=dict)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row as it is stored; of one version of the parameters."""
        if self.kind == "parameters":
            return sum(4 * math.prod(shape) for _, _, shape in self.fields)
        return packed_bytes(self.fields)

    def nbytes(self, lanes: int, takers: int) -> int:
        """Bytes that it takes with so many lanes and workers that take it."""
        if self.kind == "replay":
            return allocated_rows(self.options["capacity"], lanes) * self.row_bytes
        if self.kind == "queue":
            length = self.options["length"]
            segment = packed_bytes((name, dtype, (length, *shape)) for name, dtype, shape in self.fields)
            return self.options["segments"] * segment
        if self.kind == "inference":
            return _INFERENCE_BYTES + lanes * self.row_bytes
        return (2 + min(takers, MOST_LEASES)) * self.row_bytes


@dataclass(frozen=True)
class Node:
    """Workers of one kind.

    Attributes
    ----------
    role : for people, logs and the names of workers.
    worker : its class, as "module:Class" or "file.py:Class".
    takes, gives : names of streams.
    progress : what it does, as the stats board counts it. Nodes that do "env_steps" share the environments of the run.
    death : "restart", or "ends the run": nothing goes on without it, and it writes the checkpoints.
    torch : it imports torch and uses several cores.
    grace_s : seconds that it has to end after a stop.
    stays : it may go on as long as it needs when all env steps and updates are done.
    schemas : fields that it needs of a stream, by name; they must be those of the stream.
    """

    role: str
    worker: str
    takes: tuple[str, ...] = ()
    gives: tuple[str, ...] = ()
    progress: Progress = "rows_written"
    death: Death = RESTART
    torch: bool = False
    grace_s: float = 2.0
    stays: bool = False
    schemas: Mapping[str, tuple[Field, ...]] = field(default_factory=dict)

    @property
    def ends(self) -> tuple[str, ...]:
        """Streams that it takes or gives."""
        return tuple(dict.fromkeys((*self.takes, *self.gives)))

    @property
    def steps_environments(self) -> bool:
        """Its workers share the environments of the run."""
        return self.progress == "env_steps"

    @property
    def has_environments(self) -> bool:
        """Its workers run a user's environment, for training or to evaluate."""
        return self.progress in ("env_steps", "episodes")

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Read what `dataclasses.asdict` gave, after its way through JSON."""
        schemas = {name: _fields(fields) for name, fields in values["schemas"].items()}
        return cls(**{**values, "takes": tuple(values["takes"]), "gives": tuple(values["gives"]), "schemas": schemas})


@dataclass(frozen=True)
class Rule:
    """What the limiter holds.

    Attributes
    ----------
    total_timesteps : env steps of the run.
    starts : env steps before the first update.
    ratio : updates per env step as an exact fraction; None: nobody waits for anybody.
    """

    total_timesteps: int
    starts: int
    ratio: tuple[int, int] | None

    def due(self, env_steps: int, starts: int | None = None) -> int:
        """Updates that so many env steps make due; the line begins at `starts`, else at its own. Only with a ratio."""
        assert self.ratio is not None, "free-running needs two processes"
        return self.ratio[0] * max(0, env_steps - (self.starts if starts is None else starts)) // self.ratio[1]


@dataclass(frozen=True)
class Graph:
    """Nodes and the streams between them.

    Attributes
    ----------
    nodes : in the order of their start.
    streams : in any order.
    rule : what the limiter holds.
    metrics : names of what is measured beside the stats that every worker has: `train/<name>` in the logs.
    log_info : keys of numbers in the last info of an episode that events on the stats board carry.
    """

    nodes: tuple[Node, ...]
    streams: tuple[Stream, ...]
    rule: Rule
    metrics: tuple[str, ...] = ()
    log_info: tuple[str, ...] = ()

    @property
    def sink(self) -> Node:
        """The node whose end is that of the run."""
        return next(node for node in self.nodes if node.death == ENDS_THE_RUN)

    @property
    def source(self) -> Node | None:
        """The node that steps the environments of the run, if there is one."""
        return next((node for node in self.nodes if node.steps_environments), None)

    def node(self, role: str) -> Node:
        """The node of a role."""
        return next(node for node in self.nodes if node.role == role)

    def stream(self, name: str) -> Stream:
        """The stream of a name."""
        return next(stream for stream in self.streams if stream.name == name)

    def of_kind(self, kind: str, names: Sequence[str]) -> tuple[str, ...]:
        """Those names whose streams are of a kind."""
        return tuple(name for name in names if self.stream(name).kind == kind)

    @property
    def written(self) -> str | None:
        """Replay stream that gets the rows of the run's environments first."""
        source = self.source
        return next(iter(self.of_kind("replay", source.gives)), None) if source is not None else None

    @property
    def learned_from(self) -> str | None:
        """Replay stream that the sink takes: its rows belong to checkpoints."""
        return next(iter(self.of_kind("replay", self.sink.takes)), None)

    def with_workers(self, workers: Mapping[str, str]) -> Graph:
        """The graph with other classes for some roles."""
        nodes = (replace(node, worker=workers.get(node.role, node.worker)) for node in self.nodes)
        return replace(self, nodes=tuple(nodes))

    def between(self, stream: str, node: Node, *, capacity: int | None = None) -> Graph:
        """The graph with a node between those that give a stream and those that take it.

        What was given to the stream goes to a new one of the same kind and fields, `<stream>_<role>`, which the node
        takes; it gives the old one.

        Parameters
        ----------
        stream : a replay stream or a queue.
        node : its `takes` and `gives` are added to, not replaced.
        capacity : of the new stream, in rows or segments; default: that of the old one.
        """
        old = self.stream(stream)
        size = {"replay": "capacity", "queue": "segments"}[old.kind]
        options = old.options if capacity is None else {**old.options, size: capacity}
        new = replace(old, name=f"{stream}_{node.role}", options=options)
        nodes = tuple(
            replace(
                one,
                gives=tuple(new.name if name == stream else name for name in one.gives),
                schemas={new.name if name == stream and stream in one.gives else name: fields
                         for name, fields in one.schemas.items()},
            )
            for one in self.nodes
        )  # fmt: skip
        node = replace(node, takes=(*node.takes, new.name), gives=(*node.gives, stream))
        return replace(self, nodes=(*nodes, node), streams=(*self.streams, new))

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Inverse of `to_json`."""
        rule = values["rule"]
        return cls(
            nodes=tuple(Node.from_json(node) for node in values["nodes"]),
            streams=tuple(
                Stream(one["name"], one["kind"], _fields(one["fields"]), dict(one["options"]))
                for one in values["streams"]
            ),
            rule=Rule(rule["total_timesteps"], rule["starts"], rule["ratio"] and tuple(rule["ratio"])),
            metrics=tuple(values["metrics"]),
            log_info=tuple(values["log_info"]),
        )

    def check(self) -> None:
        """Refuse a graph that cannot work.

        Raises
        ------
        GraphError
            Names the node or stream, what is wrong with it, and what would be right.
        """
        _check_names("node", [node.role for node in self.nodes])
        _check_names("stream", [stream.name for stream in self.streams])
        check_metrics(self.metrics)
        for stream in self.streams:
            _check_stream(stream)
        for node in self.nodes:
            _check_node(node, {stream.name: stream for stream in self.streams})
        for stream in self.streams:
            givers = [node.role for node in self.nodes if stream.name in node.gives]
            takers = [node.role for node in self.nodes if stream.name in node.takes]
            if not givers or not takers:
                what, end = ("gives", "giver") if not givers else ("takes", "taker")
                raise GraphError(f"stream {stream.name!r}: no node {what} it. A stream needs a giver and a taker; add "
                                 f"the {end} or take the stream out")  # fmt: skip
            if stream.kind == "parameters" and len(givers) > 1:
                raise GraphError(f"stream {stream.name!r}: {_and(givers)} give it. Parameters come from one node")
        ends = [node.role for node in self.nodes if node.death == ENDS_THE_RUN]
        if len(ends) != 1:
            raise GraphError(f"nodes with death {ENDS_THE_RUN!r}: {_and(ends) or 'none'}. A graph needs exactly one: "
                             "what it has done is the result of the run")  # fmt: skip
        stepping = [node.role for node in self.nodes if node.steps_environments]
        if len(stepping) > 1:
            raise GraphError(f"nodes {_and(stepping)} both do env_steps. One node steps the environments of a run")
        if len(kept := self.of_kind("replay", self.sink.takes)) > 1:
            raise GraphError(f"node {self.sink.role!r} takes {_and(kept)}. It learns from one replay stream")


def upstream(graph: Graph) -> tuple[Node, ...]:
    """Nodes whose rows reach the sink, in the order in which rows pass them; before those that ask, those that answer.

    Parameters go the other way.
    """
    found: list[Node] = []
    wanted = set(graph.sink.takes)
    while wanted:
        rows = {name for name in wanted if graph.stream(name).kind in ("replay", "queue")}
        givers = [node for node in graph.nodes if rows & set(node.gives) and node not in (*found, graph.sink)]
        asked = {name for node in givers for name in graph.of_kind("inference", node.gives)}
        servers = [node for node in graph.nodes if asked & set(node.takes) and node not in (*found, graph.sink)]
        found = [*servers, *givers, *found]
        wanted = {name for node in givers for name in node.takes}
    return tuple(found)


def _check_names(what: str, names: list[str]) -> None:
    for name in names:
        if not _ROLE.fullmatch(name):
            raise GraphError(f"{what} {name!r}: expected a name of small letters and _, such as sampler")
        if names.count(name) > 1:
            raise GraphError(f"{what} {name!r}: there are {names.count(name)} of that name. Give each its own")


def _check_stream(stream: Stream) -> None:
    where = f"stream {stream.name!r}"
    if stream.name in ("limiter", "stats"):
        raise GraphError(f"{where}: every worker has the {stream.name} anyway. Give the stream another name")
    if stream.kind not in OPTIONS:
        raise GraphError(f"{where} has the kind {stream.kind!r}; there are {_and(sorted(OPTIONS))}")
    if not stream.fields:
        raise GraphError(f"{where} has no fields: nothing could be written to it")
    if len({name for name, _, _ in stream.fields}) < len(stream.fields):
        raise GraphError(f"{where} has two fields of one name: {', '.join(name for name, _, _ in stream.fields)}")
    if (wanted := set(OPTIONS[stream.kind])) != set(stream.options):
        raise GraphError(f"{where} has the options {_and(sorted(stream.options)) or 'none'}; a {stream.kind} needs "
                         f"{_and(sorted(wanted)) or 'none'}")  # fmt: skip
    for name, value in stream.options.items():
        if value < 1:
            raise GraphError(f"{where}: {name} {value}; expected at least 1")


def _check_node(node: Node, streams: Mapping[str, Stream]) -> None:
    where = f"node {node.role!r}"
    if unknown := [name for name in (*node.ends, *node.schemas) if name not in streams]:
        raise GraphError(f"{where} names the stream {unknown[0]!r}; there are {_and(sorted(streams)) or 'none'}")
    if node.progress not in PROGRESS:
        raise GraphError(f"{where} has the progress {node.progress!r}; expected one of {', '.join(PROGRESS)}")
    if node.death not in (RESTART, ENDS_THE_RUN):
        raise GraphError(f"{where} has the death {node.death!r}; expected {RESTART!r} or {ENDS_THE_RUN!r}")
    for name, fields in node.schemas.items():
        if (wrong := _difference(fields, streams[name].fields)) is not None:
            raise GraphError(f"{where} and stream {name!r} do not agree on fields: {wrong}")
    _check_worker(where, node.worker)


def _difference(wanted: Sequence[Field], given: Sequence[Field]) -> str | None:
    for one, other in zip(wanted, given, strict=False):
        if one != other:
            return f"the node needs {_field(one)}, the stream has {_field(other)}"
    if len(wanted) != len(given):
        return f"the node needs {len(wanted)} fields, the stream has {len(given)}"
    return None


def _check_worker(where: str, worker: str) -> None:
    """The class is named, and its file is there; it is not imported, since that may take seconds."""
    if not _WORKER.fullmatch(worker):
        raise GraphError(f"{where} has the worker {worker!r}; expected module:Class or file.py:Class")
    module = worker.rpartition(":")[0]
    try:
        found = Path(module).is_file() if module.endswith(".py") else find_spec(module) is not None
    except (ImportError, ValueError):
        found = False
    if not found:
        raise GraphError(f"{where} has the worker {worker}: there is no {module} here")


def _fields(values: Sequence[Any]) -> tuple[Field, ...]:
    return tuple((name, dtype, tuple(shape)) for name, dtype, shape in values)


def _field(one: Field) -> str:
    return f"{one[0]} {one[1]}{list(one[2])}"


def _and(names: Sequence[str]) -> str:
    return ", ".join(names[:-1]) + " and " * (len(names) > 1) + names[-1] if names else ""
