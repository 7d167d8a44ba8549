"""Streams in shared memory that survive a SIGKILL at any instruction of any process.

Usable alone, with training code of your own: `TrajectoryQueue`, `Replay`, `ParameterStore`, `InferenceStream`,
`Limiter` and `StatsBoard` are made in one process and attached to in others by file descriptor. docs/transport.md shows
how; examples/two_processes.py is a program. Their methods are documented in `_native.pyi`.

`serve` and `attach` let other processes of the same user look at the streams of a running one. `Streams` is the bundle
that joins the workers of a run of rlz.
"""

from rlz.errors import check_platform

check_platform()  # before anything else asks for the native module

from rlz._native import (  # noqa: E402
    FLAG_FIRST,
    FLAG_TERMINATED,
    FLAG_TRUNCATED,
    InferenceClient,
    InferenceServer,
    InferenceStream,
    Limiter,
    ParameterStore,
    PrioritizedSampler,
    Publisher,
    QueueConsumer,
    QueueProducer,
    ReadSegment,
    Replay,
    ReplaySampler,
    ReplayTail,
    ReplayWriter,
    StatsBoard,
    Subscriber,
    TrajectoryQueue,
    WriteSegment,
)
from rlz.transport.attaching import attach  # noqa: E402
from rlz.transport.serving import serve  # noqa: E402
from rlz.transport.spawning import register  # noqa: E402
from rlz.transport.streams import Streams  # noqa: E402

register()

__all__ = [
    "FLAG_FIRST",
    "FLAG_TERMINATED",
    "FLAG_TRUNCATED",
    "InferenceClient",
    "InferenceServer",
    "InferenceStream",
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
    "Streams",
    "Subscriber",
    "TrajectoryQueue",
    "WriteSegment",
    "attach",
    "serve",
]
