"""Every kind of stream keeps the contract; for each part a planted defect is caught."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from rlz.errors import ClosedError, TransportError
from rlz.graph import ENDS_THE_RUN, OPTIONS, Graph, Node, Rule, Stream
from rlz.placement import Placement
from rlz.transport import Streams
from rlz.transport.streams import Origin

FIELDS = (("obs", "f32", (50,)), ("reward", "f32", (50,)))
LANES = 2
GIVER, TAKER = 5, 6


@dataclass(frozen=True)
class Kind:
    """A kind of stream in use: what its giver does, all that it may hold, what its taker then has (or None)."""

    options: dict[str, int]
    give: Callable[[Any, int], Any]
    hold: Callable[[Any, int], Any]
    take: Callable[[Any, int], float | None]


def _write(replay: Any, worker: int) -> Any:
    writer = replay.writer([0, 1], worker=worker)
    writer.append(0, [np.full(50, 3.0, np.float32)] * 2, version=1)
    return writer


def _read(replay: Any, worker: int) -> float | None:
    rows, meta, tickets = np.zeros((1, replay.stride), np.uint8), *np.zeros((2, 1), np.uint64)
    with replay.tail() as tail:
        return float(rows[0, :4].view(np.float32)[0]) if tail.read(0, rows, meta, tickets) else None


def _put(queue: Any, worker: int) -> Any:
    producer = queue.producer(worker=worker)
    producer.put(timeout=0.0, **{name: np.full((4, 50), 3.0, np.float32) for name, _, _ in FIELDS})
    return producer


def _fill(queue: Any, worker: int) -> Any:
    """Begin to write every segment that there is room for."""
    producer = queue.producer(worker=worker)
    return producer, [producer.acquire(timeout=0.0) for _ in range(queue.slots)]


def _pop(queue: Any, worker: int) -> float | None:
    with queue.consumer(worker=worker) as consumer:
        try:
            with consumer.pop(timeout=0.0) as segment:
                return float(segment["obs"][0, 0])
        except TimeoutError:
            return None


def _publish(store: Any, worker: int) -> Any:
    publisher = store.publisher(worker=worker)
    publisher.publish(np.full(100, 3.0, np.float32).view(np.uint8), env_steps=0, updates=0)
    return publisher


def _copy(store: Any, worker: int) -> float | None:
    with store.subscriber(worker=worker) as subscriber:
        if subscriber.version() == 0:
            return None
        into = np.zeros(store.nbytes, np.uint8)
        subscriber.read(into)
        return float(into.view(np.float32)[0])


def _ask(stream: Any, worker: int) -> Any:
    client = stream.client([[0], [1]], worker=worker)
    client.ask(1, {"obs": np.full((1, 50), 3.0, np.float32)})
    return client


def _serve(stream: Any, worker: int) -> float | None:
    with stream.server(worker=worker) as server:
        try:
            server.take({"obs": (into := np.zeros((2, 50), np.float32))}, timeout=0.0)
        except TimeoutError:
            return None
        return float(into[0, 0])


KINDS = {
    "inference": Kind({"asked": 1}, _ask, _ask, _serve),
    "replay": Kind({"capacity": 1000}, _write, _write, _read),
    "queue": Kind({"length": 4, "segments": 600}, _put, _fill, _pop),
    "parameters": Kind({}, _publish, _publish, _copy),
}


class Case:
    """A graph with one stream of a kind, and its ends in "two processes"."""

    def __init__(self, kind: str) -> None:
        self.kind = KINDS[kind]
        stream = Stream("given", kind, FIELDS, self.kind.options)  # type: ignore[arg-type]
        giver = Node("giver", "rlz.graph:Node", gives=("given",))
        taker = Node("taker", "rlz.graph:Node", takes=("given",), death=ENDS_THE_RUN)
        self.graph = Graph((giver, taker), (stream,), Rule(100, 0, None))
        self.graph.check()
        self.placement = Placement(lanes=LANES)
        self.owner = self.make()
        self.ends = [Streams.attach(self.owner.fds(node), self.graph, self.placement, node) for node in (giver, taker)]

    def make(self) -> Streams:
        return Streams.create(self.graph, self.placement, Origin(run_id=4))

    def end(self, which: int) -> Any:
        """What the giver's (0) or taker's (1) process has of the stream."""
        return self.ends[which]["given"]


def what_is_given_is_taken(case: Case) -> None:
    assert case.kind.take(case.end(1), TAKER) is None, "there is something before anything was given"
    giver = case.kind.give(case.end(0), GIVER)
    assert case.kind.take(case.end(1), TAKER) == 3.0, "what was given does not arrive"
    giver.close()


def a_dead_givers_place_is_free_after_reap(case: Case) -> None:
    kept = case.kind.hold(case.end(0), GIVER)
    case.owner.reap(GIVER)
    case.kind.give(case.end(0), GIVER).close()  # the same id, as it may be given out again
    assert kept is not None


def a_version_from_elsewhere_is_refused(case: Case) -> None:
    """A descriptor of something else is not taken for the stream."""
    other = case.make()
    fds = {**case.owner.fds(case.graph.sink), "given": [other.stats.fd] * 2}
    with pytest.raises(TransportError):
        Streams.attach(fds, case.graph, case.placement, case.graph.sink)
    other.close()


def memory_is_what_the_check_says(case: Case) -> None:
    said = case.graph.stream("given").nbytes(LANES, 1)
    real = case.owner["given"].nbytes
    if case.graph.stream("given").kind == "parameters":
        real *= 3  # one version; the store has one for the publisher, one that is newest, one per lease
    assert 0.8 * real < said < 1.25 * real, f"the check counts {said} bytes, there are {real}"


def closing_is_for_good_and_may_be_repeated(case: Case) -> None:
    case.owner.close()
    case.owner.close()
    with pytest.raises(ClosedError):
        case.kind.give(case.owner["given"], GIVER)


CONTRACT = (
    what_is_given_is_taken,
    a_dead_givers_place_is_free_after_reap,
    a_version_from_elsewhere_is_refused,
    memory_is_what_the_check_says,
    closing_is_for_good_and_may_be_repeated,
)


def test_every_kind_is_tried() -> None:
    assert set(KINDS) == set(OPTIONS)


@pytest.mark.parametrize("part", CONTRACT, ids=lambda part: part.__name__)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_stream_keeps_the_contract(kind: str, part: Callable[[Case], None]) -> None:
    part(Case(kind))


DEFECTS = [
    ("other memory", what_is_given_is_taken),
    ("reap forgets", a_dead_givers_place_is_free_after_reap),
    ("attach trusts", a_version_from_elsewhere_is_refused),
    ("wrong size", memory_is_what_the_check_says),
    ("stays open", closing_is_for_good_and_may_be_repeated),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("planted", "part"), DEFECTS, ids=lambda one: getattr(one, "__name__", one))
def test_a_planted_defect_is_caught(
    planted: str, part: Callable[[Case], None], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(kind)
    if planted == "other memory":
        other = case.make()  # the taker gets another stream than the giver's
        case.ends[1] = Streams.attach(other.fds(case.graph.sink), case.graph, case.placement, case.graph.sink)
    elif planted == "reap forgets":
        monkeypatch.setattr(Streams, "reap", lambda self, worker: None)
    elif planted == "attach trusts":
        monkeypatch.setattr(Streams, "attach", lambda *_: case.owner)
    elif planted == "wrong size":
        monkeypatch.setattr(Stream, "nbytes", lambda *_: 1)
    else:
        monkeypatch.setattr(Streams, "close", lambda self: None)
    with pytest.raises((AssertionError, TransportError, pytest.fail.Exception)):
        part(case)


def test_each_part_of_the_contract_has_a_planted_defect() -> None:
    assert {part for _, part in DEFECTS} == set(CONTRACT)
