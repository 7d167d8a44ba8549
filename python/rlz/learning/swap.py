"""Swapping the compiled executor in: built beside the eager updates, checked against one of them, then used."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from itertools import product
from typing import Any

import torch
from torch import Tensor

from rlz.algorithms.base import Batch
from rlz.errors import in_one_line
from rlz.learning.compiled import LOW_PRIORITY, Compilation, CompiledExecutor, CompileJob
from rlz.learning.executors import Executor, disagreement
from rlz.learning.memory import out_of_memory
from rlz.networks import dense

POLL_S = 0.5
"""Seconds between looks at the helper that compiles."""


class Swap:
    """The compiled executor of an engine until it is taken or given up.

    Parameters
    ----------
    job : what is compiled.
    eager : runs the updates that the compiled ones are compared with.
    wait : the executor is chosen before the first update; else `due` looks now and then.
    urgent : compile at this process's own priority.
    precision : of the products; sets how far a compiled update may be from an eager one.
    trial : memory that runs out is an error.
    """

    def __init__(
        self, job: CompileJob, eager: Executor, *, wait: bool, urgent: bool, precision: str, trial: bool
    ) -> None:
        self._compilation = Compilation(job)
        self._eager = eager
        self._wait = wait
        self._nice = 0 if wait or urgent else LOW_PRIORITY
        self._precision = precision
        self._trial = trial
        self._poll_at = 0.0

    def start(self) -> None:
        """Begin to compile, beside everything else."""
        self._compilation.start(nice=self._nice)

    def due(self) -> bool:
        """The helper has ended: `take` then, at an update boundary."""
        now = time.monotonic()
        if not self._wait and now < self._poll_at:
            return False
        self._poll_at = now + POLL_S
        return self._compilation.finished(wait=self._wait)

    def take(
        self,
        state: Any,
        learning_rate: Tensor,
        sample: Callable[[], tuple[Batch, Tensor]],
        looks: int,
        threads: Iterable[int],
    ) -> CompiledExecutor | str:
        """The executor, or why there is none; it has been compared on `state`, which stays as it is.

        Parameters
        ----------
        sample : gives a batch and its noise.
        looks : at so many batches before the two count as different.
        threads : numbers of CPU threads at which every kind of update is compared.
        """
        compilation, reason, before = self._compilation, None, torch.get_num_threads()
        if compilation.error is not None:
            compilation.close()
            return compilation.error
        try:
            compiled = compilation.load()
            for _ in range(looks):
                reason = self._disagreement(compiled, state, learning_rate, *sample(), threads)
                if reason is None:
                    return compiled
        except Exception as error:
            if self._trial and out_of_memory(error):
                raise
            compilation.discard()
            return in_one_line(error)
        finally:
            torch.set_num_threads(before)
            compilation.close()
        # The library stays: rounding may be the reason, and whether it matters depends on the rows.
        return f"the compiled one differs, {reason}"

    def close(self) -> None:
        """End the helper, when it is still compiling."""
        self._compilation.close()

    def _disagreement(
        self,
        compiled: CompiledExecutor,
        state: Any,
        learning_rate: Tensor,
        batch: Batch,
        noise: Tensor,
        threads: Iterable[int],
    ) -> str | None:
        for count, kind in product(threads, self._compilation.job.kinds):
            torch.set_num_threads(count)
            update = state, batch, noise, learning_rate, kind
            # torch rounds the sums of bf16 products too: an actor's gradient, which is a small rest of large terms, may
            # be a quarter apart by that alone. So eager updates have the same dense layers there.
            same = compiled.dense and self._precision == "bf16"
            with dense.operators() if same else nullcontext():
                reason = disagreement(self._eager, compiled, *update, precision=self._precision)
            if reason is not None:
                return reason
        return None
