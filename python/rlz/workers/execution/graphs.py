"""CUDA graphs of launches: the whole of it, draws included, is started with one call from the host.

Not run on a GPU yet. The tests check everything but the capture itself, which is `cuda_graph`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from rlz.workers.execution.executors import EagerExecutor, Executor, difference
from rlz.workers.execution.launches import Launches

WARM_UP = 3
"""Updates of each kind before the capture: libraries choose their kernels and allocate their workspaces."""

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
    # Other threads may use the device meanwhile, a checkpoint for instance.
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        work()
    torch.cuda.current_stream(generator.device).wait_stream(stream)
    return graph.replay


class GraphedLaunches:
    """Launches as graphs: for each place in the cycle of kinds one of a single update, and one of `most`.

    Parameters
    ----------
    launches, executor
        What to capture.
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
        self, launches: Launches, executor: Executor, reference: EagerExecutor, capture: Capture = cuda_graph
    ) -> None:
        self._launches = launches
        self._replays: dict[tuple[int, int], Callable[[], None]] = {}
        inputs = launches.inputs
        before, random = [tensor.clone() for tensor in inputs.state], inputs.generator.get_state()
        try:
            for place in range(len(launches.cycle)):
                for _ in range(WARM_UP):
                    launches.run(executor, place, 1)
            for place in range(len(launches.cycle)):
                for count in sorted({1, launches.most}):
                    work = partial(launches.run, executor, place, count)
                    self._replays[place, count] = capture(work, inputs.generator)
            for place in range(len(launches.cycle)):
                if reason := self._disagreement(place, reference):
                    raise ValueError(f"{launches.kind(place)} update: {reason}")
        finally:
            self._restore(before)
            inputs.failed.zero_()
            inputs.generator.set_state(random)

    def run(self, done: int, count: int) -> None:
        """As `Launches.run`, with `count` 1 or `most`."""
        self._replays[done % len(self._launches.cycle), count]()

    def _disagreement(self, place: int, reference: EagerExecutor) -> str | None:
        """Where one update of a graph differs from the reference on the very rows and noise that the graph drew."""
        launches, inputs = self._launches, self._launches.inputs
        before = type(inputs.state)(*(tensor.clone() for tensor in inputs.state))
        self.run(place, 1)
        found = type(before)(*(tensor.clone() for tensor in inputs.state))
        self._restore(list(before))
        noise, kind = launches.noise[0], launches.kind(place)
        reference(inputs.state, inputs.failed, launches.batch(0), noise, inputs.learning_rate, kind)
        return difference(before, inputs.state, found)

    def _restore(self, tensors: list[torch.Tensor]) -> None:
        for tensor, old in zip(self._launches.inputs.state, tensors, strict=True):
            tensor.copy_(old)
