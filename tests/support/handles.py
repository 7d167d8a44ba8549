"""One of each stream, and every handle and call on them."""

from collections.abc import Callable
from typing import Any

import numpy as np

from rlz._native import Limiter, ParameterStore, Replay, StatsBoard, TrajectoryQueue


def replay() -> Replay:
    return Replay.create([("x", "f32", (4,))], buffer_size=64, lanes=1, run_id=1)


def store() -> ParameterStore:
    return ParameterStore.create([("w", "f32", (4,)), ("b", "u8", (3,))], leases=2, run_id=1)


def board() -> StatsBoard:
    return StatsBoard.create(slots=2, names=["a", "b"], event_width=3, event_capacity=4, run_id=1)


def limiter() -> Limiter:
    return Limiter.create(lanes=1, total_timesteps=10, learning_starts=0, ratio=None, slack=1.0, run_id=1)


def bytes_of(value: float) -> np.ndarray:
    return np.concatenate([np.full(4, value, np.float32).view(np.uint8), np.full(3, value, np.uint8)])


def queue() -> TrajectoryQueue:
    return TrajectoryQueue.create([("x", "f32", (4,))], slots=4, run_id=1)


ROW = (np.zeros(4, np.float32),)
SEED = [1, 2, 3, 4]


class Everything:
    """Every stream, every end, and the calls that each of them must refuse in a forked child."""

    def __init__(self) -> None:
        self.replay, self.store, self.board, self.limiter, self.queue = replay(), store(), board(), limiter(), queue()
        self.writer, self.sampler = self.replay.writer([0], worker=2), self.replay.sampler(seed=SEED)
        self.prioritized, self.tail = self.replay.prioritized_sampler(seed=SEED), self.replay.tail()
        self.publisher, self.subscriber = self.store.publisher(worker=2), self.store.subscriber(worker=3)
        self.producer, self.consumer = self.queue.producer(worker=2), self.queue.consumer(worker=3)
        self.producer.put(x=ROW[0], timeout=0)
        self.writing, self.reading = self.producer.acquire(timeout=0), self.consumer.pop(timeout=0)
        self.writer.append(0, ROW, version=0)
        assert self.limiter.acquire_steps([0], np.zeros(1, np.int64), worker=2, timeout=0) == 1

    def calls(self) -> list[Callable[[], Any]]:
        rows, meta, ids = np.zeros((2, 64), np.uint8), np.zeros(2, np.uint64), np.zeros((2, 3), np.uint64)
        bytes_, tickets = np.zeros(19, np.uint8), np.zeros(1, np.int64)
        assert self.writing is not None
        return [
            lambda: self.replay.fd,
            self.replay.committed,
            self.replay.owners,
            lambda: self.replay.reap(2),
            lambda: self.replay.read_rows(0, 1, rows, meta),
            lambda: self.replay.writer([0], worker=4),
            lambda: self.replay.sampler(seed=SEED),
            self.replay.tail,
            lambda: self.writer.append(0, ROW, version=0),
            lambda: self.sampler.sample(rows),
            lambda: self.sampler.available,
            lambda: self.prioritized.sample(rows, ids=ids, weights=np.zeros(2, np.float32)),
            lambda: self.prioritized.update_priorities(ids, np.zeros(2, np.float32)),
            lambda: self.tail.read(0, rows, meta, np.zeros(2, np.uint64)),
            lambda: self.queue.fd,
            self.queue.occupancy,
            self.queue.counters,
            self.queue.finish,
            lambda: self.queue.reap(2),
            lambda: self.queue.producer(worker=4),
            lambda: self.queue.consumer(worker=4),
            lambda: self.producer.put(x=ROW[0], timeout=None),
            lambda: self.producer.acquire(timeout=None),
            lambda: self.consumer.pop(timeout=None),
            lambda: self.consumer.pop_batch({"x": np.zeros((2, 4), np.float32)}, timeout=None),
            lambda: self.writing["x"],
            self.writing.commit,
            lambda: self.reading["x"],
            lambda: self.reading.note,
            lambda: self.store.control_fd,
            self.store.version,
            lambda: self.store.reap(2),
            lambda: self.store.publisher(worker=4),
            lambda: self.store.subscriber(worker=4),
            lambda: self.publisher.publish(bytes_, env_steps=0, updates=0),
            self.subscriber.version,
            lambda: self.subscriber.read(bytes_),
            lambda: self.subscriber.wait_newer(0, timeout=None),
            lambda: self.subscriber.wait_env_steps(1, timeout=None),
            lambda: self.board.fd,
            self.board.read,
            lambda: self.board.set(0, 0, 1.0),
            lambda: self.board.add(0, 0, 1.0),
            lambda: self.board.push_event(0, (1.0, 2.0, 3.0)),
            lambda: self.board.events(0, 0),
            lambda: self.limiter.fd,
            lambda: self.limiter.state,
            lambda: self.limiter.env_steps,
            lambda: self.limiter.acquire_steps([0], tickets, worker=2, timeout=None),
            lambda: self.limiter.complete_step(0),
            lambda: self.limiter.acquire_updates(1, worker=2, timeout=None),
            lambda: self.limiter.complete_updates(1),
            self.limiter.stop,
            lambda: self.limiter.reap(2),
        ]

    def check(self) -> None:
        """What the ends held is still theirs, and they go on."""
        assert self.replay.owners() == [2]
        assert self.queue.occupancy() == {"free": 2, "writing": 1, "full": 0, "reading": 1}
        assert self.limiter.granted == 1
        assert not self.queue.finished
        self.writer.append(0, ROW, version=0)
        assert self.writing is not None
        self.writing["x"][:] = 1
        assert self.writing.commit() == 2
        self.reading.release()
        self.limiter.complete_step(0)
        assert self.publisher.publish(np.zeros(19, np.uint8), env_steps=0, updates=0) == 1
        assert self.subscriber.version() == 1
