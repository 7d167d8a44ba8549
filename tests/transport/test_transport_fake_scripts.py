"""The fakes behave as the streams: the same random script gives the same log."""

import gc
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from fake_tools import ROW, SEED, Log, plain

from rlz import transport
from rlz.transport import fakes

Script = Callable[[Any, np.random.Generator, Log], None]


def queue_script(streams: Any, rng: np.random.Generator, log: Log) -> None:
    options = {
        "when_full": str(rng.choice(["block", "drop_new", "drop_oldest"])),
        "redelivery": str(rng.choice(["at_least_once", "at_most_once"])),
        "max_deliveries": int(rng.integers(1, 4)),
    }
    fields = [("obs.x", "f32", (2,)), ("done", "bool", ()), ("half", "bf16", (2,))]
    queue = streams.TrajectoryQueue.create(fields, slots=int(rng.integers(1, 5)), run_id=1, **options)
    log.look(queue, "fields", "stride", "slots", *options)
    workers = [1, 2]
    producers = [queue.producer(worker=worker) for worker in workers]
    consumers = [queue.consumer(worker=worker) for worker in workers]
    writing: list[Any] = []
    reading: list[Any] = []
    views: list[Any] = []
    dead: list[Any] = []
    for step in range(60):
        who = int(rng.integers(2))
        producer, consumer = producers[who], consumers[who]
        values = {"obs.x": np.full(2, step, np.float32), "done": bool(step % 2), "half": np.full(2, step, np.uint16)}
        match int(rng.integers(14)):
            case 0 | 1:
                log(producer.put, timeout=0, note=step, **values)
            case 2:
                wrong = [{"obs.x": np.zeros(2)}, {"obs.x": np.zeros(3, np.float32)}, {"other": 1}, {"done": 1.5}]
                log(producer.put, timeout=0, **{**values, **wrong[rng.integers(4)]})
            case 3:
                if (segment := log(producer.acquire, timeout=0)) is not None:
                    for name, value in values.items():
                        segment[name][...] = value
                    segment.note = step
                    writing.append((who, segment))
            case 4 if writing:
                log(writing.pop()[1].commit)
            case 5 if writing:
                log(writing.pop()[1].abort)
            case 6 if writing:
                views.append(writing[-1][1]["obs.x"])
            case 7 | 8:
                if (segment := log(consumer.pop, timeout=0)) is not None:
                    log.look(segment, "ticket", "note", "redeliveries", "keys")
                    log.lines.append([plain(segment[name]) for name in values])
                    reading.append((who, segment))
            case 9 if reading:
                log(reading.pop()[1].release)
            case 10 if reading:
                views.append(reading[-1][1]["obs.x"])
                log(views[-1].setflags, write=True)
            case 11:
                into = {"half": np.zeros((2, 2), np.uint16), "done": np.zeros(2, bool)}
                words = {name: np.zeros(2, np.uint64) for name in ("tickets", "notes")}
                log(consumer.pop_batch, into, timeout=0, **words)
                log.lines.append((plain(into), plain(words)))
            case 12:
                views.clear()
            case 13:  # killed with all that it held; another takes its place
                dead += [segment for owner, segment in writing + reading if owner == who]
                writing, reading = ([held for held in kept if held[0] != who] for kept in (writing, reading))
                log(queue.reap, workers[who])
                workers[who] += 2
                producers[who] = queue.producer(worker=workers[who])
                consumers[who] = queue.consumer(worker=workers[who])
        producer = consumer = segment = None
        gc.collect(0)
        log.look(queue, "occupancy", "counters")
        log.lines.append(queue.oldest_age is None)
    queue.finish()
    log.look(queue, "finished")
    for producer, consumer in zip(producers, consumers, strict=True):
        log(producer.acquire, timeout=None)
        log(consumer.pop, timeout=None)
        for end in (producer, consumer):
            end.close()
        log(producer.acquire, timeout=0)
        log(consumer.pop, timeout=0)
    views.clear()
    for segment in dead:
        log(segment.commit if hasattr(segment, "commit") else segment.release)
    for kept in (writing, reading, views, dead):
        kept.clear()
    segment = None
    log.look(queue, "occupancy")


def replay_script(streams: Any, rng: np.random.Generator, log: Log) -> None:
    replay = streams.Replay.create(ROW, buffer_size=int(rng.integers(3, 30)), lanes=2, run_id=1)
    log.look(replay, "fields", "stride", "lanes", "lane_capacity", "buffer_size")
    n_step = int(rng.integers(1, 4))
    writer = replay.writer([0, 1], worker=2, n_step=n_step)
    log(replay.writer, [1], worker=3)
    tail, sampler = replay.tail(), replay.sampler(seed=SEED)
    priorities = replay.prioritized_sampler(seed=SEED, alpha=0.5, beta=1.0)
    obs = np.zeros(2, np.float32)
    wrong = [(1,), (obs.astype(np.float64),) * 5, (obs, obs[:1], 0.0, 0.0, 0), 7, (obs, obs, 0.0, 0.0, 256)]

    def arrays(size: int) -> tuple[Any, Any, Any]:
        return np.zeros((size, replay.stride), np.uint8), np.zeros(size, np.uint64), np.zeros(size, np.uint64)

    for step in range(60):
        lane = int(rng.integers(2))
        match int(rng.integers(14)):
            case 0 | 1 | 2 | 3:
                flags = int(rng.choice([0, 0, 0, transport.FLAG_TERMINATED, transport.FLAG_TRUNCATED]))
                discount = 0.0 if flags == transport.FLAG_TERMINATED else 0.5
                row = (obs + step, obs + step + 1, float(step), discount, step)
                log(writer.append, lane, row, version=step, flags=flags)
            case 4:
                log(writer.append, 0, wrong[rng.integers(len(wrong))], version=0)
                log(writer.append, 5, (obs, obs, 0.0, 0.0, 0), version=0)
            case 5:
                into = arrays(int(rng.integers(1, 5)))
                count = log(tail.read, lane, *into)
                log.lines.append(plain([array[:count] for array in into]))
            case 6:
                rows, meta, _ = arrays(3)
                count = log(replay.read_rows, lane, int(rng.integers(0, 20)), rows, meta) or 0
                log.lines.append(plain((rows[:count], meta[:count])))
            case 7:
                log(writer.flush, lane)
            case 12:
                lanes = [lane] * int(rng.integers(1, 3))  # one lane: samplers guess the order of what they did not see
                many = np.full((len(lanes), 2), step, np.float32)
                columns = [many, many + 1, many[:, 0].copy(), many[:, 1] / 100, np.full(len(lanes), step, np.uint8)]
                log(writer.append_batch, lanes, columns, version=step, flags=[0] * len(lanes))
                log(writer.append_batch, lanes, columns, version=step, flags=[0] * 3)
                log(writer.append_batch, [0] * 9, columns, version=step)
                log(writer.append_batch, lanes, columns[1:], version=step)
            case 8:
                log(writer.restore_open_windows, lane, log(writer.open_windows, lane))
            case 9:
                log(tail.seek, 0, int(rng.integers(0, 9)))
            case 10:
                ids = np.array([[lane, 0, int(rng.integers(1, 9))]], np.uint64)
                log(priorities.update_priorities, ids, np.array([step], np.float32))
            case 13:
                position = int(rng.integers(5))
                log(priorities.restore_weights, lane, int(rng.integers(4)), position, np.ones(2), float(step))
            case 11 if step % 4 == 0:
                log(replay.reap, 2)
                log(writer.append, 0, (obs, obs, 0.0, 0.0, 0), version=0)
                writer = replay.writer([0, 1], worker=2, n_step=n_step)
        log.look(replay, "committed", "owners")
        log.look(writer, "pending")
        log.look(tail, "cursors", "lapped", "lost")
        log.look(sampler, "available")
        log.look(priorities, "available", "stale", "largest")
        log(priorities.weights, lane)
    rows, meta, _ = arrays(2)
    log(replay.restore_rows, 0, rows, meta, worker=9)
    log(writer.close)
    log(replay.restore_rows, 0, rows, meta, worker=9)
    log(writer.append, 0, (), version=0)
    log.look(replay, "committed", "owners")


def parameters_script(streams: Any, rng: np.random.Generator, log: Log) -> None:
    manifest = [("w", "f32", (2,)), ("b", "bf16", (1,)), ("n", "i64", ())]
    store = streams.ParameterStore.create(manifest, leases=1, run_id=1, version=int(rng.integers(0, 3)))
    log.look(store, "manifest", "nbytes", "version")
    publisher, subscriber = store.publisher(worker=1), store.subscriber(worker=2)
    into = np.zeros(store.nbytes, np.uint8)
    for step in range(40):
        data = np.full(store.nbytes, step, np.uint8)
        match int(rng.integers(8)):
            case 0 | 1:
                log(publisher.publish, data, env_steps=step, updates=2 * step)
            case 2:
                at, bits = [(0, [0, 0, 0xC0, 0x7F]), (8, [0x80, 0x7F])][step % 2]  # not a number; infinity
                data[at : at + len(bits)] = bits
                log(publisher.publish, data, env_steps=0, updates=0)
            case 3:
                log(subscriber.read, into)
                log.lines.append(into.tolist())
                log(subscriber.read, into[:3])
            case 4:
                log(subscriber.wait_newer, step // 4, timeout=0)
            case 5:
                log(subscriber.wait_env_steps, max(0, step - 3), timeout=0)
            case 6:
                log(store.publisher, worker=3)
            case 7:
                log(store.reap, 1)
                log(publisher.publish, data, env_steps=0, updates=0)
                log(publisher.close)
                publisher = store.publisher(worker=1)
        log.look(store, "version")
        log.look(subscriber, "version")
    for end in (publisher, subscriber, store):
        end.close()
    log(publisher.publish, into, env_steps=0, updates=0)
    log(subscriber.version)
    log(store.version)


def limiter_script(streams: Any, rng: np.random.Generator, log: Log) -> None:
    ratio = [None, (1, 1), (3, 2), (1, 4)][rng.integers(4)]
    options = {"learning_starts": int(rng.integers(0, 6)), "slack": float(rng.integers(2, 5)), "ratio": ratio}
    start = {"env_steps": int(rng.integers(0, 3)), "updates": int(rng.integers(0, 2))}
    limiter = streams.Limiter.create(lanes=3, total_timesteps=15, run_id=1, **options, **start)
    log.look(limiter, "total_timesteps", "target_updates")
    stop = int(rng.integers(60, 120))
    for step in range(90):
        lanes = rng.permutation(3)[: rng.integers(0, 4)].tolist()
        tickets = np.zeros(len(lanes), np.int64)
        match int(rng.integers(6)):
            case 0 | 1:
                log(limiter.acquire_steps, lanes, tickets, worker=1, timeout=0)
                log.lines.append(tickets.tolist())
            case 2:
                log(limiter.complete_step, int(rng.integers(4)))
            case 3:
                log(limiter.acquire_updates, int(rng.integers(0, 3)), worker=2, timeout=0)
            case 4:
                log(limiter.complete_updates, 1)
            case 5:
                log(limiter.set_active_lanes, int(rng.integers(0, 5)))
        if step == stop:
            log([limiter.stop, limiter.finish, limiter.cancel][rng.integers(3)])
        log.look(limiter, "state", "env_steps", "granted", "updates", "lane_steps", "active_lanes")
    limiter.close()
    log(limiter.lane_steps)


def stats_script(streams: Any, rng: np.random.Generator, log: Log) -> None:
    board = streams.StatsBoard.create(slots=2, names=["a", "b"], event_width=2, event_capacity=3, run_id=1)
    log.look(board, "names", "slots")
    for step in range(40):
        slot, index = int(rng.integers(3)), int(rng.integers(3))
        match int(rng.integers(4)):
            case 0:
                log(board.set, slot, index, float(step))
            case 1:
                log(board.add, slot, index, 0.5)
            case 2:
                log(board.push_event, slot, [float(step)] * int(rng.integers(1, 3)))
            case 3:
                log(board.events, slot, index)
        log.look(board, "read")
    board.close()
    log(board.read)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # arrays that outlive their block: once per process
        yield


SCRIPTS: dict[str, Script] = {
    "queue": queue_script,
    "replay": replay_script,
    "parameters": parameters_script,
    "limiter": limiter_script,
    "stats": stats_script,
}


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("name", SCRIPTS)
def test_the_same_script_gives_the_same_log(name: str, seed: int) -> None:
    logs = []
    for streams in (transport, fakes):
        log = Log()
        SCRIPTS[name](streams, np.random.default_rng(seed), log)
        logs.append(log.lines)
    real, fake = logs
    for number, (expected, got) in enumerate(zip(real, fake, strict=True)):
        assert got == expected, f"line {number}, after {real[max(0, number - 4) : number]}"
