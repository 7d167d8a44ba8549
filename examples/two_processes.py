"""The transport alone, without the rest of rlz: two processes play, this one learns from what they send.

    python examples/two_processes.py

One producer is killed in the middle of its work. Nothing is torn, nobody waits for it, and another takes its place.
"""

import argparse
import signal
import subprocess
import sys

import numpy as np

from rlz.errors import ClosedError
from rlz.transport import TrajectoryQueue

STEPS = 64
BATCH = 8
FIELDS = [("obs", "f32", (STEPS, 17)), ("action", "f32", (STEPS, 6)), ("reward", "f32", (STEPS,))]


def produce(fd: int, worker: int) -> None:
    """Play segments until the learner has had enough. The arrays are the shared memory itself: nothing is copied."""
    rng = np.random.default_rng(worker)
    version = 0  # in real life: of the parameters that chose the actions
    with TrajectoryQueue.attach(fd) as queue, queue.producer(worker=worker) as producer:
        while True:
            try:
                with producer.acquire(timeout=None) as segment:
                    for step in range(STEPS):
                        segment["obs"][step] = rng.standard_normal(17)
                        segment["action"][step] = rng.uniform(-1, 1, 6)
                        segment["reward"][step] = worker
                    segment.note = version
            except ClosedError:
                return  # the learner called finish()


def start(queue: TrajectoryQueue, worker: int) -> "subprocess.Popen[bytes]":
    """Start a producer process; it inherits the queue's descriptor."""
    command = [sys.executable, __file__, "--produce", str(queue.fd), "--worker", str(worker)]
    return subprocess.Popen(command, pass_fds=[queue.fd])


def learn(batches: int) -> None:
    """Pop batches, lose a producer on the way, and end."""
    # The memory has no name: it is gone with the last process that holds it, however that ends.
    queue = TrajectoryQueue.create(FIELDS, slots=32, when_full="block", run_id=1)
    producers = {worker: start(queue, worker) for worker in (2, 3)}
    consumer = queue.consumer(worker=1)
    # Pinned memory of torch does as well: {"obs": torch.empty(..., pin_memory=True).numpy(), ...}
    batch = {name: np.empty((BATCH, *shape), np.float32) for name, _, shape in FIELDS}
    torn = 0
    for number in range(batches):
        assert consumer.pop_batch(batch, timeout=60.0) == BATCH
        senders = batch["reward"]
        torn += int((senders != senders[:, :1]).any(1).sum())
        if number == batches // 2:
            victim = producers.pop(2)
            victim.send_signal(signal.SIGKILL)
            victim.wait()  # now it is proven dead, and what it held can be taken back
            print("killed a producer; slots taken back:", queue.reap(2)[0])
            producers[4] = start(queue, 4)
    queue.finish()
    for process in producers.values():
        process.wait()
    counters = queue.counters()
    print(f"{batches} batches of [{BATCH}, {STEPS}, ...], {torn} torn segments, {counters['consumed']} consumed")
    print("slots:", queue.occupancy())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=100)
    parser.add_argument("--produce", type=int, metavar="FD", help=argparse.SUPPRESS)
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.produce is not None:
        produce(given.produce, given.worker)
    else:
        learn(given.batches)
