"""The engine of a learner: runs updates with the best executor and number of threads that are at hand.

Training starts at once, eagerly and with one thread; the compiled executor is swapped in at an update boundary when it
is ready and agrees with the eager one. In a fixed plan (serial mode) the executor is chosen before the first update and
there is one thread, so that the same seed gives the same bits.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor

from rlz.algorithms.base import Batch, OffPolicy
from rlz.errors import NonFiniteError
from rlz.workers.execution.compiled import Compilation, Job, Layout, kinds_of
from rlz.workers.execution.executors import EagerExecutor, Executor, Updated, disagreement
from rlz.workers.execution.threads import ThreadTuner, candidates, cores

POLL_S = 0.5
"""Seconds between looks at the helper that compiles."""


@dataclass(frozen=True)
class EnginePlan:
    """How updates run.

    Attributes
    ----------
    compile : use the compiled executor when it can be had.
    threads : CPU threads, "auto" to measure.
    fixed : one thread, and the executor chosen before the first update.
    """

    compile: bool = True
    threads: int | str = "auto"
    fixed: bool = False


class Engine:
    """Runs an algorithm's updates on a state.

    Parameters
    ----------
    algorithm, state
        What to update; the state's tensors are on `device` and are changed in place.
    layout
        Layouts of the fields of every batch to come.
    seed
        Of the noise in the updates.
    log
        Takes one line for people.
    cycle
        Kinds of the updates in their order, the algorithm's own unless it is a side of two. None: no update.
    """

    def __init__(
        self,
        algorithm: OffPolicy,
        state: Any,
        *,
        layout: tuple[Layout, ...],
        device: torch.device,
        seed: int,
        plan: EnginePlan,
        log: Callable[[str], None],
        cycle: Sequence[str | None] | None = None,
    ) -> None:
        self._algorithm = algorithm
        self._state = state
        self._plan = plan
        self._log = log
        self._eager = EagerExecutor(algorithm)
        self._executor: Executor = self._eager
        self._generator = torch.Generator(device).manual_seed(seed)
        rows = layout[0][0][0]
        self._noise = torch.empty(algorithm.noise_shape(rows), dtype=state[0].dtype, device=device)
        self._learning_rate = torch.zeros((), dtype=torch.float64, device=device)
        self._failed = torch.zeros((), dtype=torch.int64, device=device)
        fixed = plan.fixed or device.type != "cpu"
        self._tuner = ThreadTuner(
            [1] if fixed else candidates(plan.threads, cores()),
            preferred=None if isinstance(plan.threads, str) else plan.threads,
        )
        torch.set_num_threads(1)
        self._cycle = algorithm.cycle if cycle is None else tuple(cycle)
        self._done = int(state.updates)
        job = Job(algorithm, layout, str(device), kinds_of(self._cycle), torch.get_float32_matmul_precision())
        self._compilation = Compilation(job) if plan.compile else None
        self._poll_at = 0.0

    @property
    def executor(self) -> str:
        """Name of the executor in use."""
        return self._executor.name

    @property
    def threads(self) -> int:
        """CPU threads in use."""
        return self._tuner.threads

    @property
    def staleness(self) -> int:
        """Updates by which the actor that the newest update of the critics saw was behind: none on one device."""
        return 0

    @property
    def noise_state(self) -> bytes:
        """State of the noise's random stream; can be set."""
        return bytes(self._generator.get_state().numpy())

    @noise_state.setter
    def noise_state(self, state: bytes) -> None:
        self._generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))

    def start(self) -> None:
        """Begin to compile, beside everything else."""
        if self._compilation is not None:
            self._compilation.start(urgent=self._plan.fixed)

    def update(self, batch: Batch, learning_rate: float) -> Updated:
        """One update; metrics and TD errors are on the device.

        One that the cycle leaves out uses its noise up all the same, and measures nothing.

        Raises
        ------
        NonFiniteError
            A loss or gradient is not finite; names it. The state is as it was before; `failure` gives the culprits.
        """
        self._noise.normal_(generator=self._generator)
        self._learning_rate.fill_(learning_rate)
        if self._compilation is not None:
            self._look_at_compilation(batch)
        kind = self._cycle[self._done % len(self._cycle)]
        if kind is None:
            self._done += 1
            return Updated(torch.full((len(self._algorithm.metric_names),), math.nan, device=self._noise.device), None)
        begin = time.perf_counter()
        updated = self._executor(self._state, self._failed, batch, self._noise, self._learning_rate, kind)
        self._done += 1
        failed = int(self._failed)
        self._tune(time.perf_counter() - begin)
        if failed:
            name = self._algorithm.check_names[failed - 1]
            raise NonFiniteError(f"{name} is not finite; the parameters were kept as they were before this update")
        return updated

    def settle(self) -> Any:
        """The whole state after every update so far; its tensors are valid until the next one."""
        return self._state

    def actor_parameters(self) -> Tensor:
        """Newest flat actor; valid until the next update."""
        return self._algorithm.actor_parameters(self._state)

    def failure(self, batch: Batch) -> dict[str, Tensor]:
        """Everything that the last update was made from, by name."""
        inputs = {f"batch.{name}": value for name, value in batch._asdict().items() if value is not None}
        state = {f"state.{name}": tensor for name, tensor in self._algorithm.state_dict(self._state).items()}
        return inputs | {"noise": self._noise} | state

    def close(self) -> None:
        """End the helper, when it is still compiling."""
        self._executor = self._eager
        if self._compilation is not None:
            self._compilation.close()

    def _tune(self, seconds: float) -> None:
        line = self._tuner.record(seconds)
        if self._tuner.threads != torch.get_num_threads():
            torch.set_num_threads(self._tuner.threads)
        if line is not None:
            self._log(line)

    def _look_at_compilation(self, batch: Batch) -> None:
        """Swap the compiled executor in once it is ready; called at an update boundary."""
        compilation, now = self._compilation, time.monotonic()
        assert compilation is not None
        if not self._plan.fixed:
            if now < self._poll_at:
                return
            self._poll_at = now + POLL_S
        if not compilation.finished(wait=self._plan.fixed):
            return
        reason = compilation.error
        if reason is None:
            reason = self._try_compiled(compilation, batch)
        compilation.close()
        self._compilation = None
        if reason is not None:
            self._log(f"compile failed, updates stay eager: {reason}")

    def _try_compiled(self, compilation: Compilation, batch: Batch) -> str | None:
        try:
            compiled = compilation.load()
            reason = None
            for threads, kind in product((self._tuner.most, 1), compilation.job.kinds):
                torch.set_num_threads(threads)
                reason = reason or disagreement(
                    self._eager, compiled, self._state, batch, self._noise, self._learning_rate, kind
                )
        except Exception as error:
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        torch.set_num_threads(self._tuner.threads)
        if reason is not None:
            compilation.discard()
            return reason
        self._executor = compiled
        self._log("updates are compiled now (checked against an eager one)")
        self._tuner.restart()
        return None
