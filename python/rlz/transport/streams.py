"""The streams of a run, made from its graph; they travel to the workers by file descriptors."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self, cast

from rlz._native import InferenceStream, Limiter, ParameterStore, Replay, StatsBoard, TrajectoryQueue
from rlz.errors import GraphError
from rlz.graph import MOST_LEASES, Graph, Node, Stream
from rlz.placement import Place, Placement
from rlz.transport.stats import EVENT_CAPACITY, EVENT_WIDTH, STAT_NAMES, Stat, StatsRow, at_end_names, make_trace

CONTROLLER_ID = 1
"""Worker id of the controller itself on all streams."""

FIRST_WORKER_ID = 2
LAST_WORKER_ID = 1022

LIMITER, STATS, TRACE = "limiter", "stats", "trace"
"""Names of the descriptors that every worker gets; no stream of a graph is called so."""

Made = Replay | TrajectoryQueue | ParameterStore | InferenceStream


class Origin(NamedTuple):
    """What new streams go on from.

    Attributes
    ----------
    run_id : any 63-bit number; a descriptor of another run is refused with it.
    env_steps, updates : counts to go on from (resume).
    version : of the newest parameters that were published before (resume); the next ones get the number after it.
    starts : env steps at which the replay ratio's line begins; None: as the rule says.
    """

    run_id: int
    env_steps: int = 0
    updates: int = 0
    version: int = 0
    starts: int | None = None


class _Kind(NamedTuple):
    """How streams of a kind are made, and which descriptors a worker needs; `gives`: it may change what others read."""

    create: Callable[[Stream, Placement, int, Origin], Made]
    fds: Callable[[Any, bool], tuple[int, ...]]
    attach: Callable[[Sequence[int], bool], Made]


_KINDS: Mapping[str, _Kind] = {
    "replay": _Kind(
        lambda one, placement, _, origin: Replay.create(
            one.fields, buffer_size=one.options["capacity"], lanes=placement.lanes, run_id=origin.run_id
        ),
        lambda made, _: (made.fd,),
        lambda fds, _: Replay.attach(fds[0]),
    ),
    "queue": _Kind(
        lambda one, _, __, origin: TrajectoryQueue.create(
            [(name, dtype, (one.options["length"], *shape)) for name, dtype, shape in one.fields],
            slots=one.options["segments"],
            run_id=origin.run_id,
        ),
        lambda made, _: (made.fd,),
        lambda fds, _: TrajectoryQueue.attach(fds[0]),
    ),
    "parameters": _Kind(
        lambda one, _, takers, origin: ParameterStore.create(
            one.fields, leases=max(1, min(takers, MOST_LEASES)), run_id=origin.run_id, version=origin.version
        ),
        lambda made, gives: (made.control_fd, made.payload_fd if gives else made.readonly_payload_fd),
        lambda fds, gives: ParameterStore.attach(fds[0], fds[1], writable=gives),
    ),
    "inference": _Kind(
        lambda one, placement, _, origin: InferenceStream.create(
            one.fields[: one.options["asked"]],
            one.fields[one.options["asked"] :],
            lanes=placement.lanes,
            run_id=origin.run_id,
        ),
        lambda made, _: (made.fd,),
        lambda fds, _: InferenceStream.attach(fds[0]),
    ),
}


@dataclass(frozen=True)
class Streams:
    """The streams between the workers of a run, or those that one worker has.

    The controller creates them and owns them: it alone says who is dead (`reap`). Memory goes with the last process
    that holds it.

    Attributes
    ----------
    graph, placement : of the run.
    limiter : env steps, updates, and the ratio between them.
    stats : numbers for people and logs.
    trace : time line of the workers' newest phases.
    named : all others, by the names that the graph gives them.
    ends : names of those that this side takes or gives; the sink has that of the first rows too, to count them.
    """

    graph: Graph
    placement: Placement
    limiter: Limiter
    stats: StatsBoard
    trace: StatsBoard
    named: Mapping[str, Made]
    ends: tuple[str, ...]

    @classmethod
    def create(cls, graph: Graph, placement: Placement, origin: Origin) -> Self:
        """Allocate the streams of a run.

        Parameters
        ----------
        graph : that was checked.
        placement : of the graph.
        origin : what the run goes on from.

        Raises
        ------
        SharedMemoryError
            The memory cannot be had; nothing stays allocated.
        """
        rule = graph.rule
        return cls(
            graph=graph,
            placement=placement,
            limiter=Limiter.create(
                lanes=placement.lanes,
                total_timesteps=rule.total_timesteps,
                learning_starts=rule.starts if origin.starts is None else origin.starts,
                ratio=rule.ratio,
                slack=placement.slack,
                run_id=origin.run_id,
                env_steps=origin.env_steps,
                updates=origin.updates,
            ),
            stats=StatsBoard.create(
                slots=len(placement.places(graph)),
                names=(*STAT_NAMES, *graph.metrics),
                event_width=EVENT_WIDTH + len(at_end_names(graph.log_info)),
                event_capacity=EVENT_CAPACITY,
                run_id=origin.run_id,
            ),
            trace=make_trace(len(placement.places(graph)), origin.run_id),
            named={
                one.name: _KINDS[one.kind].create(one, placement, placement.takers(graph, one.name), origin)
                for one in graph.streams
            },
            ends=tuple(one.name for one in graph.streams),
        )

    def __getitem__(self, name: str) -> Made:
        """The stream of a name."""
        try:
            return self.named[name]
        except KeyError:
            raise GraphError(f"there is no stream {name!r} here, only {', '.join(self.named) or 'none'}") from None

    @property
    def replay(self) -> Replay:
        """The one replay buffer that there is here."""
        return cast("Replay", self._one("replay"))

    @property
    def queue(self) -> TrajectoryQueue:
        """The one trajectory queue that there is here."""
        return cast("TrajectoryQueue", self._one("queue"))

    @property
    def parameters(self) -> ParameterStore:
        """The one parameter store that there is here."""
        return cast("ParameterStore", self._one("parameters"))

    @property
    def inference(self) -> InferenceStream:
        """The one inference stream that there is here."""
        return cast("InferenceStream", self._one("inference"))

    @property
    def learned_from(self) -> Replay | None:
        """The replay buffer whose rows belong to checkpoints."""
        name = self.graph.learned_from
        return None if name is None else cast("Replay", self[name])

    @property
    def places(self) -> tuple[Place, ...]:
        """Every worker of the run, in the order of their start."""
        return self.placement.places(self.graph)

    def row(self, slot: int) -> StatsRow:
        """A worker's own row of the stats board, with its time line."""
        return StatsRow(self.stats, slot, self.trace)

    def ask_for_checkpoint(self) -> None:
        """Ask the sink for a checkpoint; only for the controller."""
        for place in self.places:
            if place.node == self.graph.sink:
                self.stats.add(place.slot, Stat.CHECKPOINTS_ASKED, 1.0)

    def committed(self) -> list[int]:
        """Rows that each lane has got from its environment; where none are kept, its env steps."""
        name = self.graph.written
        return self.limiter.lane_steps() if name is None else cast("Replay", self[name]).committed()

    def of(self, node: Node) -> "Streams":
        """Those that a worker has: what its node takes and gives."""
        counted = (self.graph.written,) if node == self.graph.sink else ()
        named = {name: made for name, made in self.named.items() if name in (*node.ends, *counted)}
        return replace(self, named=named, ends=node.ends)

    def fds(self, node: Node) -> dict[str, list[int]]:
        """Descriptors that a worker needs for `attach`; pass them on with `subprocess.Popen(pass_fds=...)`.

        They stay this object's. What the node does not give, it gets no writable memory of where there is a choice.
        """
        found = {LIMITER: [self.limiter.fd], STATS: [self.stats.fd], TRACE: [self.trace.fd]}
        for name, made in self.of(node).named.items():
            found[name] = list(_KINDS[self.graph.stream(name).kind].fds(made, name in node.gives))
        return found

    @classmethod
    def attach(cls, fds: Mapping[str, Sequence[int]], graph: Graph, placement: Placement, node: Node) -> Self:
        """Map the streams in a worker.

        The descriptors stay open but are not passed on to the worker's own children.

        Parameters
        ----------
        fds : as made by `fds`.
        graph, placement : of the run.
        node : of the worker.

        Raises
        ------
        LayoutMismatchError, TransportError
            A descriptor is not what it should be.
        """
        for fd in (fd for some in fds.values() for fd in some):
            os.set_inheritable(fd, False)
        return cls(
            graph=graph,
            placement=placement,
            limiter=Limiter.attach(*fds[LIMITER]),
            stats=StatsBoard.attach(*fds[STATS]),
            trace=StatsBoard.attach(*fds[TRACE]),
            named={
                name: _KINDS[graph.stream(name).kind].attach(some, name in node.gives)
                for name, some in fds.items()
                if name not in (LIMITER, STATS, TRACE)
            },
            ends=node.ends,
        )

    def reap(self, worker: int) -> None:
        """Take back everything that a worker held on any stream. Only for a worker that is proven dead.

        Its id may be given out again after this has returned.
        """
        self.limiter.reap(worker)
        for made in self.named.values():
            made.reap(worker)

    def nbytes(self) -> int:
        """Bytes of shared memory."""
        return sum(part.nbytes for part in (self.limiter, self.stats, self.trace, *self.named.values()))

    def close(self) -> None:
        """Let go of the memory in this process. Others do not notice: `limiter.cancel()` is what ends their waits."""
        for part in (self.limiter, self.stats, self.trace, *self.named.values()):
            part.close()

    def _one(self, kind: str) -> Made:
        names = self.graph.of_kind(kind, self.ends)
        if len(names) != 1:
            raise GraphError(f"there are {len(names)} streams of kind {kind} here ({', '.join(names)}), not one: ask "
                             "for one by its name")  # fmt: skip
        return self.named[names[0]]
