"""CUDA graphs of launches: the whole of it, draws included, is started with one call from the host.

Not run on a GPU yet. The tests check everything but the capture itself, which is `cuda_graph`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial

import torch

from rlz.learning.executors import EagerExecutor, Executor, difference
from rlz.learning.launches import Launches

WARM_UP = 3
"""Updates of each kind before the capture: libraries choose their kernels and allocate their workspaces."""

_CAPTURING = threading.Lock()

Capture = Callable[[Callable[[], None], torch.Generator], Callable[[], None]]
"""(work, the random stream that it uses) -> what replays it."""


def cuda_graph(work: Callable[[], None], generator: torch.Generator) -> Callable[[], None]:
    """Capture work that has been warmed up; on a stream of its own.

    cuBLAS keeps one workspace per stream: graphs captured on one stream and replayed side by side would share it, and
    have stalled for minutes.
    """
    stream = torch.cuda.Stream(generator.device)  # type: ignore[no-untyped-call]
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(generator)
    stream.wait_stream(torch.cuda.current_stream(generator.device))
    # Other threads may use the device meanwhile, for a checkpoint for instance. Captures take turns: each one begins by
    # waiting for the whole device, which another one would not allow.
    with _CAPTURING, torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        work()
    torch.cuda.current_stream(generator.device).wait_stream(stream)
    return graph.replay


class GraphedLaunches:
    """Launches as graphs: one for each kind of update alone, and for each order of `most` of them in the cycle.

    Parameters
    ----------
    launches, executor
        What to capture.
    cycle
        Kinds of the updates in their order; None: no update.
    reference
        Runs one update of each kind to compare with.
    capture
        What captures (tests).

    Raises
    ------
    ValueError
        A graph's update differs from the reference; says where.
    Exception
        Whatever torch raises when the work cannot be captured.

    State and random stream are afterwards as they were before.
    """

    def __init__(
        self,
        launches: Launches,
        executor: Executor,
        reference: EagerExecutor,
        cycle: Sequence[str | None],
        capture: Capture = cuda_graph,
    ) -> None:
        self._launches = launches
        self._replays: dict[tuple[str, ...], Callable[[], None]] = {}
        inputs = launches.inputs
        singles = orders(cycle, 1)
        before, random = [tensor.clone() for tensor in inputs.state], inputs.generator.get_state()
        try:
            for kinds in singles:
                for _ in range(WARM_UP):
                    launches.run(executor, kinds)
            for kinds in singles | orders(cycle, launches.most):
                self._replays[kinds] = capture(partial(launches.run, executor, kinds), inputs.generator)
            for kinds in singles:
                if reason := self._disagreement(kinds, reference):
                    raise ValueError(f"{kinds[0]} update: {reason}")
        finally:
            self._restore(before)
            inputs.failed.zero_()
            inputs.generator.set_state(random)

    def run(self, kinds: tuple[str, ...]) -> None:
        """As `Launches.run`, of one update or of `most`."""
        self._replays[kinds]()

    def _disagreement(self, kinds: tuple[str, ...], reference: EagerExecutor) -> str | None:
        """Where one update of a graph differs from the reference on the very rows and noise that the graph drew."""
        launches, inputs = self._launches, self._launches.inputs
        before = type(inputs.state)(*(tensor.clone() for tensor in inputs.state))
        self.run(kinds)
        found = type(before)(*(tensor.clone() for tensor in inputs.state))
        self._restore(list(before))
        reference(inputs.state, inputs.failed, launches.batch(0), launches.noise[0], inputs.learning_rate, kinds[0])
        return difference(before, inputs.state, found)

    def _restore(self, tensors: list[torch.Tensor]) -> None:
        for tensor, old in zip(self._launches.inputs.state, tensors, strict=True):
            tensor.copy_(old)


def orders(cycle: Sequence[str | None], count: int) -> set[tuple[str, ...]]:
    """Kinds of `count` updates in a row, from every place in a cycle without a gap within them."""
    rows = (tuple(cycle[(place + step) % len(cycle)] for step in range(count)) for place in range(len(cycle)))
    return {row for row in rows if None not in row}  # type: ignore[misc]
