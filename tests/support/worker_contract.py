"""What every kind of worker keeps to, as functions that raise AssertionError. They know no role."""

import json
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from rlz import envs
from rlz._native import Replay
from rlz.config import run_config
from rlz.config.model import config_type
from rlz.dtypes import numpy_dtype
from rlz.errors import WaitTimeoutError
from rlz.placement import Place
from rlz.transport.stats import Stat
from rlz.transport.streams import Origin
from rlz.workers.base import Stateful, Worker, worker_class
from rlz.workers.job import Job

TIMEOUT_S = 30.0
"""A call that should not wait has so long: a machine may be busy, a wait without end is longer."""

ROUNDS = 400


@dataclass
class Bench:
    """One worker of a graph, and a stand-in for all that it works with: the test moves the other ends by hand.

    `make`: its class, in the place of the one that the graph names.
    """

    job: Job
    role: str
    run_dir: Path
    make: Callable[..., Worker] | None = None
    client: Any = None

    def __post_init__(self) -> None:
        self.streams = self.job.streams(Origin(run_id=3))
        (self.run_dir / "checkpoints").mkdir(exist_ok=True)
        self.tickets = np.full(self.job.placement.lanes, -1, np.int64)

    @staticmethod
    def of(role: str, run_dir: Path, make: Callable[..., Worker] | None = None, **options: Any) -> "Bench":
        values: dict[str, Any] = {
            **{"env": "Pendulum-v1", "total_timesteps": 200, "learning_starts": 5, "buffer_size": 500},
            **{"batch_size": 8, "hidden": (8,), "compile": False, "device": "cpu", "replay_ratio": "free"},
            **{"eval_every": 50, "eval_episodes": 1, "checkpoint_every": 0.0},
        }
        known = config_type(options.get("algo", "sac")).model_fields
        config = run_config(**{**{name: value for name, value in values.items() if name in known}, **options})
        return Bench(Job.of(config, envs.inspect_env(config)), role, run_dir, make)

    @property
    def place(self) -> Place:
        return next(place for place in self.job.places if place.role == self.role)

    def worker(self, *, worker_id: int = 5, incarnation: int = 0) -> Worker:
        make = self.make or worker_class(self.place.node.worker)
        spec = self.job.spec(self.place, worker_id=worker_id, run_dir=str(self.run_dir), incarnation=incarnation)
        return make(spec, self.streams.of(self.place.node))

    def feed(self) -> None:
        """Do what the others do: env steps, with rows for who learns or follows; parameters for who acts."""
        node = self.place.node
        rows: list[Any] = [self.streams[name] for name in self.job.graph.of_kind("replay", node.takes)]
        if node.progress != "env_steps":
            self._steps(rows, 10)
        for name in self.job.graph.of_kind("queue", node.takes):
            self._segments(self.streams[name])
        for name in self.job.graph.of_kind("parameters", node.takes):
            store: Any = self.streams[name]
            with store.publisher(worker=9) as publisher:
                steps = self.streams.limiter.env_steps
                publisher.publish(np.zeros(store.nbytes, np.uint8), env_steps=steps, updates=0)

        for name in self.job.graph.of_kind("inference", node.takes):
            self._ask(self.streams[name])
        for name in self.job.graph.of_kind("inference", node.gives):
            self._answer(self.streams[name])

    def _ask(self, stream: Any) -> None:
        """Ask for all lanes, once the last answer is there."""
        if self.client is None:
            self.client = stream.client([list(range(stream.lanes))], worker=9)
        try:
            self.client.take(self.client.wait(timeout=0.0), {})
        except WaitTimeoutError:
            return
        except ValueError:
            pass  # nothing was asked yet
        self.client.ask(
            0, {name: np.zeros((stream.lanes, *shape), dtype) for name, dtype, shape in _rows(stream.request)}
        )

    def _answer(self, stream: Any) -> None:
        """Answer what is there with zeros."""
        with stream.server(worker=9) as server:
            try:
                name, dtype, shape = _rows(stream.request)[0]
                count = server.take({name: np.zeros((stream.lanes, *shape), dtype)}, timeout=0.0)
            except WaitTimeoutError:
                return
            server.answer({name: np.zeros((count, *shape), dtype) for name, dtype, shape in _rows(stream.answer)})

    def _segments(self, queue: Any) -> None:
        """One of each environment, of the newest version, as far as there is room."""
        fields = {name: np.zeros(shape, numpy_dtype(dtype)) for name, dtype, shape, _ in queue.fields}
        version = self.streams.parameters.version()
        with queue.producer(worker=9) as producer, suppress(WaitTimeoutError):
            for lane in range(self.job.placement.lanes):
                producer.put(fields, note=version << 32 | lane, timeout=0.0)

    def _steps(self, into: list[Any], count: int) -> None:
        lanes = list(range(self.job.placement.lanes))
        with ExitStack() as stack:
            writers = [stack.enter_context(replay.writer(lanes, worker=9)) for replay in into]
            for _ in range(count):
                try:
                    granted = self.streams.limiter.acquire_steps(lanes, self.tickets, worker=9, timeout=0.0)
                except WaitTimeoutError:
                    return
                for lane in np.flatnonzero(self.tickets >= 0).tolist() if granted else ():
                    for replay, writer in zip(into, writers, strict=True):
                        writer.append_packed(lane, np.zeros(replay.stride, np.uint8), version=1)
                    self.streams.limiter.complete_step(lane)

    def held(self) -> dict[str, list[int]]:
        """Lanes that the worker owns."""
        return {
            name: [owner for owner in made.owners() if owner == 5]
            for name, made in self.streams.named.items()
            if isinstance(made, Replay)
        }


def _rows(fields: list[Any]) -> list[tuple[str, Any, tuple[int, ...]]]:
    return [(name, numpy_dtype(dtype), tuple(shape)) for name, dtype, shape, _ in fields]


def promptly(call: Callable[[], Any], what: str) -> Any:
    """Give what a call gives; it must not wait."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(_outcome(call)), daemon=True)
    thread.start()
    thread.join(TIMEOUT_S)
    assert found, f"{what} waits"
    if isinstance(found[0], BaseException):
        raise found[0]
    return found[0]


def _outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except BaseException as error:
        return error


def never_waits_with_timeout_0(bench: Bench) -> None:
    """With nothing to do, and with something, `step(0.0)` comes back, and says that the worker goes on."""
    worker = bench.worker()
    promptly(worker.start, "start")
    assert promptly(lambda: worker.step(0.0), "step(0.0) without anything to do") is True
    bench.feed()
    for _ in range(5):
        assert promptly(lambda: worker.step(0.0), "step(0.0)") is True
    worker.close()


def ends_after_a_stop(bench: Bench) -> None:
    """After a stop `step` says before long that there is nothing left, and goes on saying so."""
    worker = bench.worker()
    worker.start()
    bench.feed()
    worker.step(0.0)
    bench.streams.limiter.stop()
    for _ in range(ROUNDS):
        if not promptly(lambda: worker.step(0.0), "step(0.0) after a stop"):
            break
    else:
        raise AssertionError("it goes on after a stop")
    worker.close()


def gives_back_what_it_held(bench: Bench) -> None:
    """After `close` it owns nothing; a dead one's successor gets what it held."""
    worker = bench.worker()
    worker.start()
    bench.feed()
    worker.step(0.0)
    worker.close()
    assert not any(bench.held().values()), f"it holds {bench.held()} after close"
    bench.worker().start()  # killed: never closed
    bench.streams.reap(5)
    successor = bench.worker(worker_id=6, incarnation=1)
    successor.start()
    assert promptly(lambda: successor.step(0.0), "step(0.0) of a successor") in (True, False)
    successor.close()


def counts_what_its_node_says(bench: Bench) -> None:
    """Its row of the board shows progress, a sign of life and nothing else's; the other rows are not its own."""
    worker = bench.worker()
    worker.start()
    slot, counter = bench.place.slot, Stat[bench.place.node.progress.upper()]
    for _ in range(ROUNDS):
        bench.feed()
        worker.step(0.0)
        if bench.streams.stats.read()[slot][counter] > 0:
            break
    else:
        raise AssertionError(f"{counter.name.lower()} stays 0 on its row")
    board = bench.streams.stats.read()
    assert board[slot][Stat.HEARTBEAT] > 0, "it gives no sign of life"
    others = np.delete(board, slot, axis=0)
    assert not others.any(), "it has written to the row of another worker"
    worker.close()


def goes_on_from_its_state(bench: Bench) -> None:
    """A state is JSON, taking it changes nothing, and another worker goes on from it with that very state."""
    worker = bench.worker()
    if not isinstance(worker, Stateful):
        worker.close()
        return
    worker.start()
    bench.feed()
    for _ in range(3):
        worker.step(0.0)
    state = json.loads(json.dumps(worker.state()))
    assert json.loads(json.dumps(worker.state())) == state, "its state changes by being taken"
    worker.close()
    other = replace(bench)
    successor = other.worker()
    assert isinstance(successor, Stateful)
    successor.start()
    successor.restore(state)
    assert json.loads(json.dumps(successor.state())) == state, "the state that it restores is not the one that it gives"
    successor.close()


def touches_only_its_streams(bench: Bench) -> None:
    """It works with the streams of its node alone: those are all that its process gets."""
    worker = bench.worker()
    worker.start()
    committed = {name: made.committed() for name, made in bench.streams.named.items() if isinstance(made, Replay)}
    for _ in range(3):
        worker.step(0.0)
    for name, before in committed.items():
        made: Any = bench.streams[name]
        if name not in bench.place.node.gives:
            assert made.committed() == before, f"it writes to {name}, which its node does not give"
    worker.close()


CONTRACT: tuple[Callable[[Bench], None], ...] = (
    never_waits_with_timeout_0,
    ends_after_a_stop,
    gives_back_what_it_held,
    counts_what_its_node_says,
    goes_on_from_its_state,
    touches_only_its_streams,
)
