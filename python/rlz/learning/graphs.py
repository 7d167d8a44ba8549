"""CUDA graphs of launches: the whole of it, draws included, is started with one call from the host.

Not run on a GPU yet. The tests check everything but the capture itself, which is `cuda_graph`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from rlz.errors import DeviceError, in_one_line
from rlz.learning.executors import EagerExecutor, Executor, difference
from rlz.learning.launches import Launches

WARM_UP = 3
"""Updates of each kind before the capture: libraries choose their kernels and allocate their workspaces."""

LOOKS = 3
"""Looks at other rows before two forms of an update count as different: where a gradient of a single number, such as
the temperature's, is near 0, rounding is a large part of it."""

_CAPTURING = threading.Lock()

Capture = Callable[[Callable[[], None], torch.Generator], Callable[[], None]]
"""(work, the random stream that it uses) -> what replays it."""


def cuda_graph(work: Callable[[], None], generator: torch.Generator) -> Callable[[], None]:
    """Capture work that has been warmed up; on a stream of its own.

    cuBLAS keeps one workspace per stream: graphs captured on one stream and replayed side by side would share it, and
    have stalled for minutes.

    Raises
    ------
    Exception
        What the work raised: the end of a capture that has failed raises another error, which says less.
    """
    stream = torch.cuda.Stream(generator.device)  # type: ignore[no-untyped-call]
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(generator)
    stream.wait_stream(torch.cuda.current_stream(generator.device))
    first: list[Exception] = []

    def watched() -> None:
        try:
            work()
        except Exception as error:
            first.append(error)
            raise

    try:
        # Other threads may use the device meanwhile, for a checkpoint for instance. Captures take turns: each one
        # begins by waiting for the whole device, which another one would not allow.
        with _CAPTURING, torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            watched()
    except Exception as error:
        raise (first[0] if first else error) from None
    torch.cuda.current_stream(generator.device).wait_stream(stream)
    return graph.replay


def usable(device: torch.device) -> bool:
    """Whether a device still works after an error. Some errors stay: every later call of the process fails as well."""
    if device.type != "cuda":
        return True
    for _ in range(2):  # the first call may tell, and so forget, an error that does not stay
        try:
            torch.cuda.synchronize(device)
        except RuntimeError:
            continue
        return True
    return False


class GraphedLaunches:
    """Launches as graphs: one for each kind of update alone, and for each order of `most` of them in the cycle.

    Parameters
    ----------
    launches, executor
        What to capture.
    cycle
        Kinds of the updates in their order; None: no update.
    reference
        Runs the updates of each graph to compare with.
    capture
        What captures (tests).
    precision
        Of the products; sets how far a graph may be from the reference.

    Raises
    ------
    ValueError
        A graph's updates differ from the reference; says where.
    DeviceError
        The device cannot be used any more.
    Exception
        Whatever torch raises when the work cannot be captured.

    State, metrics and random stream are afterwards as they were before.
    """

    def __init__(
        self,
        launches: Launches,
        executor: Executor,
        reference: EagerExecutor,
        cycle: Sequence[str | None],
        capture: Capture = cuda_graph,
        precision: str = "fp32",
    ) -> None:
        self._launches = launches
        self._precision = precision
        self._replays: dict[tuple[str, ...], Callable[[], None]] = {}
        inputs = launches.inputs
        singles = orders(cycle, 1)
        before, random = [tensor.clone() for tensor in inputs.state], inputs.generator.get_state()
        sums = launches.means.sums.clone()
        try:
            for kinds in singles:
                for _ in range(WARM_UP):
                    launches.run(executor, kinds)
            for kinds in sorted(singles | orders(cycle, launches.most), key=len):
                self._replays[kinds] = capture(partial(launches.run, executor, kinds), inputs.generator)
            for kinds in self._replays:
                self._compare(kinds, reference)
        except Exception as error:
            if not usable(device := inputs.failed.device):
                raise DeviceError(f"{device} cannot be used any more: {in_one_line(error)}") from error
            inputs.renew_generator(random)
            self._restore(before, sums)
            raise
        inputs.generator.set_state(random)
        self._restore(before, sums)

    def run(self, kinds: tuple[str, ...]) -> None:
        """As `Launches.run`, of one update or of `most`."""
        self._replays[kinds]()

    def _compare(self, kinds: tuple[str, ...], reference: EagerExecutor) -> None:
        for _ in range(LOOKS):
            reason = self._disagreement(kinds, reference)
            if reason is None:
                return
        updates = f"{kinds[0]} update" if len(kinds) == 1 else f"{len(kinds)} updates"
        raise ValueError(f"{updates}: {reason}")

    def _disagreement(self, kinds: tuple[str, ...], reference: EagerExecutor) -> str | None:
        """Where a graph's updates differ from the reference on the very rows and noise that the graph drew."""
        launches, inputs = self._launches, self._launches.inputs
        before = type(inputs.state)(*(tensor.clone() for tensor in inputs.state))
        self.run(kinds)
        found = type(before)(*(tensor.clone() for tensor in inputs.state))
        self._set_state(before)
        for index, kind in enumerate(kinds):
            rows, noise = launches.batch(index), launches.noise[index]
            reference(inputs.state, inputs.failed, rows, noise, inputs.learning_rate, kind)
        return difference(before, inputs.state, found, self._precision)

    def _restore(self, state: Sequence[Tensor], sums: Tensor) -> None:
        self._set_state(state)
        self._launches.means.sums.copy_(sums)
        self._launches.inputs.failed.zero_()

    def _set_state(self, state: Sequence[Tensor]) -> None:
        for tensor, old in zip(self._launches.inputs.state, state, strict=True):
            tensor.copy_(old)


def orders(cycle: Sequence[str | None], count: int) -> set[tuple[str, ...]]:
    """Kinds of `count` updates in a row, from every place in a cycle without a gap within them."""
    rows = (tuple(cycle[(place + step) % len(cycle)] for step in range(count)) for place in range(len(cycle)))
    return {row for row in rows if None not in row}  # type: ignore[misc]
