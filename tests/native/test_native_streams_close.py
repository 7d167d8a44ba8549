"""Every stream and every end is a context manager; what is closed says so when it is used."""

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlz
from rlz import _native as native
from rlz._native import InferenceStream, Limiter, ParameterStore, Replay, StatsBoard, TrajectoryQueue
from rlz.errors import ClosedError

FIELDS = [("x", "f32", (2,))]
ANSWERS = [("y", "f32", (2,))]
SEED = [1, 2, 3, 4]


def queue(streams: Any) -> TrajectoryQueue:
    made: TrajectoryQueue = streams.TrajectoryQueue.create(FIELDS, slots=2, run_id=1)
    return made


def replay(streams: Any) -> Replay:
    made: Replay = streams.Replay.create(FIELDS, buffer_size=8, lanes=1, run_id=1)
    return made


def store(streams: Any) -> ParameterStore:
    made: ParameterStore = streams.ParameterStore.create(FIELDS, leases=1, run_id=1)
    return made


def limiter(streams: Any) -> Limiter:
    made: Limiter = streams.Limiter.create(
        lanes=1, total_timesteps=9, learning_starts=0, ratio=None, slack=1.0, run_id=1
    )
    return made


def board(streams: Any) -> StatsBoard:
    made: StatsBoard = streams.StatsBoard.create(slots=1, names=["a"], event_width=1, event_capacity=2, run_id=1)
    return made


def inference(streams: Any) -> InferenceStream:
    made: InferenceStream = streams.InferenceStream.create(FIELDS, ANSWERS, lanes=1, run_id=1)
    return made


ROWS = np.zeros((1, 64), np.uint8)
X, Y = {"x": np.zeros((1, 2), np.float32)}, {"y": np.zeros((1, 2), np.float32)}
IDS, WEIGHTS, WORDS = np.zeros((1, 3), np.uint64), np.ones(1, np.float32), np.zeros(1, np.uint64)
ERRORS = np.ones(1, np.float32)
DATA = np.zeros(8, np.uint8)

# How to make one, and uses of it that must be refused once it is closed.
CASES: dict[str, tuple[Callable[[Any], Any], list[Callable[[Any], Any]]]] = {
    "TrajectoryQueue": (
        queue,
        [
            lambda q: q.producer(worker=1),
            lambda q: q.consumer(worker=1),
            lambda q: q.occupancy(),
            lambda q: q.counters(),
            lambda q: q.finish(),
            lambda q: q.reap(1),
            lambda q: q.fields,
        ],
    ),
    "QueueProducer": (
        lambda streams: queue(streams).producer(worker=1),
        [lambda p: p.acquire(timeout=0), lambda p: p.put(x=np.zeros(2, np.float32), timeout=None)],
    ),
    "QueueConsumer": (
        lambda streams: queue(streams).consumer(worker=1),
        [lambda c: c.pop(timeout=None), lambda c: c.pop_batch({"x": np.zeros((1, 2), np.float32)}, timeout=None)],
    ),
    "Replay": (
        replay,
        [
            lambda r: r.committed(),
            lambda r: r.owners(),
            lambda r: r.writer([0], worker=1),
            lambda r: r.sampler(seed=SEED),
            lambda r: r.prioritized_sampler(seed=SEED),
            lambda r: r.tail(),
            lambda r: r.reap(1),
            lambda r: r.read_rows(0, 1, ROWS, WORDS),
            lambda r: r.stride,
        ],
    ),
    "ReplayWriter": (
        lambda streams: replay(streams).writer([0], worker=1),
        [
            lambda w: w.append(0, (np.zeros(2, np.float32),), version=0),
            lambda w: w.append_packed(0, ROWS[0], version=0),
            lambda w: w.pending,
            lambda w: w.flush(),
        ],
    ),
    "ReplaySampler": (
        lambda streams: replay(streams).sampler(seed=SEED),
        [lambda s: s.sample(ROWS), lambda s: s.available, lambda s: s.state, lambda s: s.redraws],
    ),
    "PrioritizedSampler": (
        lambda streams: replay(streams).prioritized_sampler(seed=SEED),
        [
            lambda s: s.sample(ROWS, ids=IDS, weights=WEIGHTS),
            lambda s: s.update_priorities(IDS, ERRORS),
            lambda s: s.beta,
            lambda s: s.largest,
            lambda s: s.weights(0),
        ],
    ),
    "ReplayTail": (
        lambda streams: replay(streams).tail(),
        [
            lambda t: t.read(0, ROWS, WORDS, WORDS.copy()),
            lambda t: t.seek(0, 1),
            lambda t: t.cursors,
            lambda t: t.lapped,
        ],
    ),
    "ParameterStore": (
        store,
        [
            lambda s: s.version(),
            lambda s: s.publisher(worker=1),
            lambda s: s.subscriber(worker=1),
            lambda s: s.reap(1),
            lambda s: s.manifest,
        ],
    ),
    "Publisher": (
        lambda streams: store(streams).publisher(worker=1),
        [lambda p: p.publish(DATA, env_steps=0, updates=0)],
    ),
    "Subscriber": (
        lambda streams: store(streams).subscriber(worker=1),
        [
            lambda s: s.version(),
            lambda s: s.read(DATA),
            lambda s: s.wait_newer(0, timeout=None),
            lambda s: s.wait_env_steps(0, timeout=None),
        ],
    ),
    "Limiter": (
        limiter,
        [
            lambda g: g.env_steps,
            lambda g: g.acquire_updates(1, worker=1, timeout=None),
            lambda g: g.complete_step(0),
            lambda g: g.cancel(),
        ],
    ),
    "InferenceStream": (
        inference,
        [
            lambda i: i.client([[0]], worker=1),
            lambda i: i.server(worker=1),
            lambda i: i.occupancy(),
            lambda i: i.reap(1),
        ],
    ),
    "InferenceClient": (
        lambda streams: inference(streams).client([[0]], worker=1),
        [lambda c: c.ask(0, X), lambda c: c.wait(timeout=0), lambda c: c.take(0, Y)],
    ),
    "InferenceServer": (
        lambda streams: inference(streams).server(worker=1),
        [lambda s: s.take(X, timeout=0), lambda s: s.answer(Y)],
    ),
    "StatsBoard": (
        board,
        [lambda b: b.read(), lambda b: b.set(0, 0, 1.0), lambda b: b.events(0, 0), lambda b: b.names],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_leaving_the_block_closes(name: str) -> None:
    make, uses = CASES[name]
    made = make(native)
    assert type(made) is getattr(native, name)
    with made as inside:
        assert inside is made
    for use in uses:
        with pytest.raises(ClosedError, match="was closed"):
            use(made)
    made.close()  # again: nothing happens


@pytest.mark.parametrize("name", CASES)
def test_an_exception_goes_on_and_closes_too(name: str) -> None:
    make, uses = CASES[name]
    made = make(native)
    with pytest.raises(KeyError), made:
        raise KeyError
    with pytest.raises(ClosedError):
        uses[0](made)


def test_every_class_of_the_stub_that_can_be_closed_is_a_context_manager() -> None:
    stub = ast.parse((Path(rlz.__file__).parent / "_native.pyi").read_text())
    closable = {"close", "abort", "release"}
    for node in stub.body:
        if isinstance(node, ast.ClassDef):
            names = {item.name for item in node.body if isinstance(item, ast.FunctionDef)}
            assert (names & closable != set()) == ("__enter__" in names and "__exit__" in names), node.name
            assert ("close" in names) == (node.name in CASES), node.name


def test_ends_outlive_their_stream_and_give_back_what_they_hold() -> None:
    with replay(native) as buffer, buffer.writer([0], worker=3) as writer:
        assert buffer.owners() == [3]
        buffer.close()
        writer.append(0, (np.zeros(2, np.float32),), version=0)
    with store(native) as parameters:
        with parameters.publisher(worker=1) as publisher:
            publisher.publish(DATA, env_steps=0, updates=0)
        with parameters.publisher(worker=2):  # the place is free again
            pass


def test_closing_a_limiter_here_does_not_end_the_waits_of_others() -> None:
    gate = limiter(native)
    with Limiter.attach(gate.fd) as other:
        assert other.acquire_steps([0], np.zeros(1, np.int64), worker=1, timeout=0) == 1
    gate.complete_step(0)
    assert gate.acquire_updates(1, worker=2, timeout=0) == 1
    gate.cancel()
    with pytest.raises(ClosedError):
        gate.acquire_updates(1, worker=2, timeout=0)
