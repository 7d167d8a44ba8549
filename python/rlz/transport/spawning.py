"""Streams as arguments of `multiprocessing` processes, as its own queues are.

    context = multiprocessing.get_context("spawn")
    context.Process(target=produce, args=(queue,)).start()

What travels is the descriptor; the child attaches to the same memory. Only while a process is started: a stream in a
file, or in a message, would be a number without a meaning.
"""

import copyreg
from collections.abc import Callable
from typing import Any

from rlz._native import InferenceStream, Limiter, ParameterStore, Replay, StatsBoard, TrajectoryQueue

_Reduced = tuple[Callable[..., Any], tuple[Any, ...]]


def _attach(kind: Any, descriptors: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """In the child: the descriptors arrive as objects that give a number once."""
    from os import close

    fds = [descriptor.detach() for descriptor in descriptors]
    try:
        return kind.attach(*fds, **options)
    finally:
        for fd in fds:
            close(fd)


def _reduce(stream: Any, *fds: int, **options: Any) -> _Reduced:
    from multiprocessing.context import assert_spawning
    from multiprocessing.reduction import DupFd

    assert_spawning(stream)
    return _attach, (type(stream), tuple(DupFd(fd) for fd in fds), options)


def _reduce_store(store: ParameterStore) -> _Reduced:
    """As writable as it is here."""
    if store.writable:
        return _reduce(store, store.control_fd, store.payload_fd, writable=True)
    return _reduce(store, store.control_fd, store.readonly_payload_fd)


def _reduce_one(stream: Any) -> _Reduced:
    return _reduce(stream, stream.fd)


def register() -> None:
    """Teach pickle how streams travel."""
    for kind in (TrajectoryQueue, Replay, InferenceStream, Limiter, StatsBoard):
        copyreg.pickle(kind, _reduce_one)
    copyreg.pickle(ParameterStore, _reduce_store)
