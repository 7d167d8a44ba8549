"""What a call costs at few and at many lanes and slots: `python benches/transport_costs.py [--output FILE]`.

Needs only `rlz.transport`. Rows of 64 bytes. The best of the rounds: other programs only add.
"""

import argparse
import gc
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from rlz.transport import Limiter, Replay, TrajectoryQueue

FIELDS = [("x", "f32", (16,))]
LANES = (16, 1_024, 16_384, 65_535)
SLOTS = (2, 64, 512, 1_024, 65_536)
BATCH = 256
ROWS = 1 << 20
"""Of a buffer, whatever its number of lanes: random rows of more memory cost more."""


def each(work: Callable[[], object], items: int) -> float:
    """Microseconds per item of a call that handles `items`: in the best of 20 parts of 30 ms or more each."""
    work()
    best = float("inf")
    for _ in range(20):
        calls, start = 0, time.perf_counter()
        while (took := time.perf_counter() - start) < 0.03:
            work()
            calls += 1
        best = min(best, took / calls)
    return best / items * 1e6


def private_mib() -> float:
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Anonymous:")) / 1024


def of_lanes(lanes: int) -> dict[str, float]:
    found = {}
    every, columns, each_lane = list(range(lanes)), [np.zeros((lanes, 16), np.float32)], ROWS // lanes
    buffer = Replay.create(FIELDS, buffer_size=ROWS, lanes=lanes, run_id=1)
    writer = buffer.writer(every, worker=1)
    for _ in range(each_lane + 1):
        writer.append_batch(every, columns, version=0)
    found["append_batch, us a row"] = each(lambda: writer.append_batch(every, columns, version=0), lanes)
    sampler = buffer.sampler(seed=[1, 2, 3, 4])
    rows = np.empty((BATCH, buffer.stride), np.uint8)
    found["sample(256), even lanes, us"] = each(lambda: sampler.sample(rows), 1)
    prioritized = buffer.prioritized_sampler(seed=[1, 2, 3, 4])
    weights, ids = np.empty(BATCH, np.float32), np.empty((BATCH, 3), np.uint64)
    found["prioritised sample(256), us"] = each(lambda: prioritized.sample(rows, weights=weights, ids=ids), 1)
    for end in (prioritized, sampler, writer, buffer):
        end.close()

    # The first half of the lanes has a row each, the second half is full.
    buffer = Replay.create(FIELDS, buffer_size=ROWS, lanes=lanes, run_id=1)
    writer = buffer.writer(every, worker=1)
    writer.append_batch(every, columns, version=0)
    second = every[lanes // 2 :]
    for _ in range(each_lane - 1):
        writer.append_batch(second, [columns[0][lanes // 2 :]], version=0)
    sampler = buffer.sampler(seed=[1, 2, 3, 4])
    many = np.empty((65_536, buffer.stride), np.uint8)
    found["draw from uneven lanes, ns a row"] = each(lambda: sampler.sample(many), len(many)) * 1e3
    found["sample(256), uneven lanes, us"] = each(lambda: sampler.sample(rows), 1)
    for end in (sampler, writer, buffer):
        end.close()

    # A sampler that looks 1,200 times while two lanes fill a window.
    buffer = Replay.create(FIELDS, buffer_size=ROWS, lanes=lanes, run_id=1)
    writer = buffer.writer([0, 1], worker=1)
    sampler = buffer.sampler(seed=[1, 2, 3, 4])
    gc.collect()
    before = private_mib()
    pair = [np.zeros((2, 16), np.float32)]
    for _ in range(1_200):
        for _ in range(ROWS // 1024 // 2):
            writer.append_batch([0, 1], pair, version=0)
        sampler.available  # noqa: B018  looks
    found["history of a sampler, MiB"] = private_mib() - before
    for end in (sampler, writer, buffer):
        end.close()

    found |= of_limiter(lanes, every)
    return found


def of_limiter(lanes: int, every: list[int]) -> dict[str, float]:
    found = {}
    limiter = Limiter.create(lanes=lanes, total_timesteps=1 << 40, learning_starts=0, ratio=None, slack=1.0, run_id=1)
    tickets = np.empty(lanes, np.int64)
    found["acquire_steps, us a lane"] = each(lambda: limiter.acquire_steps(every, tickets, worker=1, timeout=0), lanes)
    limiter.close()

    # A vector of environments while the learner sleeps until all have stepped.
    limiter = Limiter.create(
        lanes=lanes, total_timesteps=lanes, learning_starts=lanes - 1, ratio=(1, 1), slack=1.0, run_id=1
    )
    limiter.acquire_steps(every, tickets, worker=1, timeout=0)
    learner = threading.Thread(target=lambda: limiter.acquire_updates(1, worker=2, timeout=60))
    learner.start()
    time.sleep(0.05)
    took = []
    for lane in range(min(lanes - 1, 4_000)):
        start = time.perf_counter()
        limiter.complete_step(lane)
        took.append(time.perf_counter() - start)
    found["complete_step, learner waits, us"] = sorted(took)[len(took) // 2] * 1e6
    limiter.stop()
    learner.join()
    limiter.close()
    return found


def of_slots(slots: int) -> dict[str, float]:
    queue = TrajectoryQueue.create(FIELDS, slots=slots, run_id=1)
    producer, consumer = queue.producer(worker=1), queue.consumer(worker=2)
    x = np.zeros(16, np.float32)

    def pair() -> None:
        producer.put(x=x, timeout=0)
        with consumer.pop(timeout=0):
            pass

    found = {"put and pop, empty, us": each(pair, 1)}
    for _ in range(slots // 2):
        producer.put(x=x, timeout=0)
    found["put and pop, half full, us"] = each(pair, 1)
    for end in (producer, consumer, queue):
        end.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output")
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    rounds: list[dict[str, dict[str, float]]] = []
    for _ in range(options.rounds):
        found = {}
        for what, sizes, measure in (("lanes", LANES, of_lanes), ("slots", SLOTS, of_slots)):
            for size in sizes:
                try:
                    found[f"{size} {what}"] = measure(size)
                except ValueError as error:  # beyond the limit
                    found[f"{size} {what}"] = {}
                    print(f"{size} {what}: {error}")
        rounds.append(found)
    best = {size: {name: min(found[size][name] for found in rounds) for name in rounds[0][size]} for size in rounds[0]}
    for size, found in best.items():
        for name, value in found.items():
            print(f"{size:>14}  {name:<34} {value:10.3f}")
    if options.output:
        Path(options.output).write_text(json.dumps({"best": best, "rounds": rounds}, indent=1))


if __name__ == "__main__":
    main()
