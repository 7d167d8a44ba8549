"""Stand-ins for the streams, for tests of code that uses them: one process, numpy only, nothing shared, nothing random.

Each class has the name, the methods and the signatures of the one in `rlz.transport`, and raises the same errors:

    from rlz.transport import fakes

    queue = fakes.TrajectoryQueue.create([("obs", "f32", (64, 17))], slots=4, run_id=1)
    play(queue.producer(worker=2))                    # the code under test
    with queue.consumer(worker=1).pop(timeout=0) as segment:
        assert segment["obs"].shape == (64, 17)

What is different:

- A fake has no descriptor: `fd` and `attach` raise TransportError. Hand the object itself to both sides.
- A fake never waits, because nobody else could end the wait: where a stream would, it raises WaitTimeoutError at once,
  also with `timeout=None`.
- Samplers draw other rows for the same seed; the same rows each time.
- For one thread.
"""

from rlz.transport.fakes.limiter import Limiter
from rlz.transport.fakes.parameters import ParameterStore, Publisher, Subscriber
from rlz.transport.fakes.queue import QueueConsumer, QueueProducer, TrajectoryQueue
from rlz.transport.fakes.replay import Replay, ReplayTail
from rlz.transport.fakes.samplers import PrioritizedSampler, ReplaySampler
from rlz.transport.fakes.segments import ReadSegment, WriteSegment
from rlz.transport.fakes.stats import StatsBoard
from rlz.transport.fakes.writer import ReplayWriter

__all__ = [
    "Limiter",
    "ParameterStore",
    "PrioritizedSampler",
    "Publisher",
    "QueueConsumer",
    "QueueProducer",
    "ReadSegment",
    "Replay",
    "ReplaySampler",
    "ReplayTail",
    "ReplayWriter",
    "StatsBoard",
    "Subscriber",
    "TrajectoryQueue",
    "WriteSegment",
]
