"""The engine of a learner: runs updates with the best executor and number of threads that are at hand.

Training starts at once, eagerly and with one thread; the compiled executor is swapped in at an update boundary when it
is ready and agrees with the eager one. On CUDA, updates are launches that are captured as graphs: eager ones at once,
compiled ones when they are there. In a fixed plan (serial mode) the executor is chosen before the first update and
there is one thread, so that the same seed gives the same bits.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rlz._native import dense_instructions
from rlz.algorithms.base import Algorithm, Batch
from rlz.errors import DeviceError, NonFiniteError, in_one_line
from rlz.learning.compiled import CompileJob, Layout, kinds_of
from rlz.learning.executors import EagerExecutor, Executor
from rlz.learning.flag import LateFlag
from rlz.learning.graphs import LOOKS, GraphedLaunches, cuda_graph
from rlz.learning.launches import FedRows, Inputs, Launches, Rows
from rlz.learning.memory import out_of_memory
from rlz.learning.metrics import Means
from rlz.learning.swap import Swap
from rlz.learning.threads import ThreadTuner, tuner
from rlz.system.cores import cores


@dataclass(frozen=True)
class EnginePlan:
    """How updates run.

    Attributes
    ----------
    compile : use the compiled executor when it can be had.
    threads : CPU threads, "auto" to measure, "auto_N" to prefer N.
    fixed : one thread, and the executor chosen before the first update.
    launch : most updates of one launch.
    urgent : compile at this process's own priority, because nobody leaves a core to a lower one.
    precision : of the products, fp32, tf32 or bf16: how far two forms of an update may be apart.
    trial : where memory runs out for a graph or a compiled update, raise. False: leave that out and go on with eager
        updates. Throughput mode tries a batch size with True, because it wants to know that the size does not fit.
    """

    compile: bool = True
    threads: int | str = "auto"
    fixed: bool = False
    launch: int = 1
    urgent: bool = False
    precision: str = "fp32"
    trial: bool = False


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
    replay
        Rows on the device, for `launch`.
    """

    def __init__(
        self,
        algorithm: Algorithm[Any],
        state: Any,
        *,
        layout: tuple[Layout, ...],
        device: torch.device,
        seed: int,
        plan: EnginePlan,
        log: Callable[[str], None],
        cycle: Sequence[str | None] | None = None,
        replay: Rows | None = None,
    ) -> None:
        self._algorithm = algorithm
        self._state = state
        self._plan = plan
        self._log = log
        self._eager = EagerExecutor(algorithm)
        self._executor: Executor = self._eager
        rows = layout[0][0][0]
        self._noise = torch.empty(algorithm.noise_shape(rows), dtype=state[0].dtype, device=device)
        self._rate = 0.0
        self._learning_rate = torch.zeros((), dtype=torch.float64, device=device)
        self._failed = torch.zeros((), dtype=torch.int64, device=device)
        self._flag = LateFlag(self._failed, late=device.type == "cuda")
        generator = torch.Generator(device).manual_seed(seed)
        self._inputs = Inputs(state, self._failed, self._learning_rate, generator)
        self._means = Means(torch.zeros(len(algorithm.metrics), dtype=state[0].dtype, device=device))
        fixed = plan.fixed or device.type != "cpu"
        self._tuner = ThreadTuner([1]) if fixed else tuner(plan.threads, cores())
        torch.set_num_threads(1)
        self._cycle = algorithm.cycle if cycle is None else tuple(cycle)
        self._done = int(state.updates)
        kinds, products = kinds_of(self._cycle), torch.get_float32_matmul_precision()
        # A fixed plan's bits depend on no measurement.
        job = CompileJob(algorithm, layout, str(device), kinds, products, dense=False if plan.fixed else None)
        self._swap: Swap | None = None
        if plan.compile:
            self._swap = Swap(
                job, self._eager, wait=plan.fixed, urgent=plan.urgent, precision=plan.precision, trial=plan.trial
            )
        self._launches: Launches | None = None
        self._graphs: GraphedLaunches | None = None
        self._captured: Executor | None = None
        self._may_graph = device.type == "cuda"
        self._fed: FedRows | None = None
        self._parts: deque[tuple[int, int]] = deque(maxlen=2 * plan.launch)  # (updates before it, updates), newest last
        if replay is not None:
            self._launches = self._make_launches(replay, rows, plan.launch)
        elif self._may_graph:
            self._feed(FedRows(layout, device, algorithm.batch_type), rows)

    @property
    def executor(self) -> str:
        """Name of the executor in use."""
        return self._executor.name

    @property
    def graphed(self) -> bool:
        """Launches are CUDA graphs."""
        return self._graphs is not None

    @property
    def threads(self) -> int:
        """CPU threads in use."""
        return self._tuner.threads

    @property
    def settled(self) -> bool:
        """Executor and threads will stay as they are for a while."""
        return self._swap is None and self._tuner.settled

    @property
    def done(self) -> int:
        """Updates that are sound so far."""
        return int(self._state.updates)

    @property
    def staleness(self) -> int:
        """Updates by which the actor that the newest update of the critics saw was behind: none on one device."""
        return 0

    @property
    def noise_state(self) -> bytes:
        """State of the noise's random stream; can be set."""
        return bytes(self._inputs.generator.get_state().numpy())

    @noise_state.setter
    def noise_state(self, state: bytes) -> None:
        if len(state) != len(self.noise_state):
            self._log("not restored: the random stream of the updates, which is of another type of device")
            return
        self._inputs.generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))

    def start(self) -> None:
        """Begin to compile, beside everything else."""
        if self._swap is not None:
            self._swap.start()

    def prepare(self, draw: Callable[[], Batch]) -> bool:
        """Get ready while another engine updates the state; True once the executor will stay as it is.

        `draw` gives a batch to check the compiled executor with.
        """
        if self._swap is None:
            return True

        def sample() -> Any:
            if self._launches is None:
                self._noise.normal_(generator=self._inputs.generator)
                return draw()
            if self._fed is not None:
                self._fed.feed(draw())
            return self._drawn()

        threads = torch.get_num_threads()
        self._look_at_compilation(self._swap, sample)
        torch.set_num_threads(threads)
        return self._swap is None

    def take_up(self) -> None:
        """Go on with the state as another engine has left it."""
        self._done = int(self._state.updates)
        torch.set_num_threads(self._tuner.threads)

    def update(self, batch: Batch, learning_rate: float) -> Tensor | None:
        """One update; TD errors [batch] on the device, for a batch with weights.

        One that the cycle leaves out uses its noise up all the same, and measures nothing.

        Raises
        ------
        NonFiniteError
            A loss or gradient is not finite; names it. The state is as it was before the update that failed: this one,
            or on CUDA the one before it. `failure` gives the culprits.
        """
        kind = self._cycle[self._done % len(self._cycle)]
        if self._fed is not None and kind is not None:
            assert self._launches is not None
            self.check()  # the batch of an update that failed stays in its place
            self._fed.feed(batch)
            self.launch(1, learning_rate)
            return None if batch.weight is None else self._launches.td_errors
        if self._launches is None:
            self._noise.normal_(generator=self._inputs.generator)
        else:
            self._launches.draw_noise(1)
        self._set_rate(learning_rate)
        if self._swap is not None:
            self._look_at_compilation(self._swap, lambda: batch)
        if kind is None:
            self._done += 1
            return None
        begin = time.perf_counter()
        updated = self._executor(self._state, self._failed, batch, self._noise, self._learning_rate, kind)
        self._raise_failed(int(self._failed))
        self._tune(time.perf_counter() - begin)
        self._means.add(updated.metrics.unsqueeze(0))
        self._done += 1
        return updated.td_errors

    def launch(self, count: int, learning_rate: float) -> None:
        """`count` updates (at most the plan's `launch`) on rows on the device.

        Raises as `update`, on CUDA one launch late: then the newest launch has changed nothing either.
        """
        launches = self._launches
        assert launches is not None, "an engine without rows on its device"
        self._set_rate(learning_rate)
        if self._swap is not None:
            self._look_at_compilation(self._swap, self._drawn)
        self._capture(launches)
        while count:
            part = count if self._graphs is None or count == launches.most else 1
            kinds = self._kinds(part)
            begin = time.perf_counter()
            if self._graphs is None:
                launches.run(self._executor, kinds)
            else:
                self._graphs.run(kinds)
            self._parts.append((self._done, part))
            self._done += part
            count -= part
            self._tune((time.perf_counter() - begin) / part)
        self._flag.post()
        self._raise_failed(self._flag.read())

    def check(self) -> None:
        """Wait for every update so far. Raises NonFiniteError, as `update`, when one was not sound."""
        self._raise_failed(self._flag.read(newest=True))

    def take_metrics(self) -> Tensor:
        """Mean of each metric [names] over the updates since the last call, NaN where none measured it."""
        return self._means.take()

    def settle(self) -> Any:
        """The whole state after every update so far; its tensors are valid until the next one. Raises as `check`."""
        self.check()
        return self._state

    def state_dict(self) -> dict[str, Tensor]:
        """The state by name. Raises as `check`."""
        return self._algorithm.state_dict(self.settle())

    def actor_parameters(self) -> Tensor:
        """Newest flat actor; valid until the next update."""
        flat: Tensor = self._algorithm.published(self._state)
        return flat

    def failure(self, batch: Batch | None) -> dict[str, Tensor]:
        """Everything that the update that failed was made from, by name.

        `batch` is the one of the failed call, where batches come from the host.
        """
        noise = self._noise
        if self._launches is not None:
            index, failed = 0, int(self._state.updates)
            if self._fed is None:  # of a launch of several updates
                first, count = next(part for part in reversed(self._parts) if part[0] <= failed)
                index = min(failed - first, count - 1)  # none failed: the newest
            batch, noise = self._launches.batch(index), self._launches.noise[index]
        assert batch is not None
        inputs = {f"batch.{name}": value for name, value in batch._asdict().items() if value is not None}
        state = {f"state.{name}": tensor for name, tensor in self._algorithm.state_dict(self._state).items()}
        return inputs | {"noise": noise} | state

    def close(self) -> None:
        """End the helper, when it is still compiling, and give the memory of graphs back."""
        self._executor = self._eager
        if self._graphs is not None:
            self._graphs, self._captured = None, None
            if self._failed.is_cuda:
                torch.cuda.empty_cache()
        if self._swap is not None:
            self._swap.close()

    def _raise_failed(self, failed: int) -> None:
        if failed:
            name = self._algorithm.checks[failed - 1]
            raise NonFiniteError(f"{name} is not finite; the parameters were kept as they were before this update")

    def _set_rate(self, learning_rate: float) -> None:
        if learning_rate != self._rate:
            self._learning_rate.fill_(learning_rate)
            self._rate = learning_rate

    def _tune(self, seconds: float) -> None:
        line = self._tuner.record(seconds)
        if self._tuner.threads != torch.get_num_threads():
            torch.set_num_threads(self._tuner.threads)
        if line is not None:
            self._log(line)

    def _kinds(self, count: int) -> tuple[str, ...]:
        """Kinds of the next updates."""
        cycle = [self._cycle[(self._done + step) % len(self._cycle)] for step in range(count)]
        return tuple(kind for kind in cycle if kind is not None)

    def _make_launches(self, rows: Rows, batch_size: int, most: int) -> Launches:
        found = Launches(self._algorithm, self._inputs, rows, batch_size=batch_size, most=most)
        self._means = found.means
        return found

    def _feed(self, rows: FedRows, batch_size: int) -> None:
        """Make updates of batches from the host launches of one update, so that they can be graphs as well."""
        self._fed = rows
        self._launches = self._make_launches(rows, batch_size, 1)
        self._noise = self._launches.noise[0]

    def _drawn(self) -> Any:
        """A batch of a launch, with its noise, to compare executors with."""
        assert self._launches is not None
        self._launches.draw(1)
        self._noise.copy_(self._launches.noise[0])
        return self._launches.batch(0)

    def _capture(self, launches: Launches) -> None:
        """Capture launches of the executor in use; once, and again when it is another one."""
        if not self._may_graph or self._captured is self._executor:
            return
        self.check()  # a capture makes updates that are taken back, and clears the flag
        self._captured = self._executor
        self._graphs = None
        plan, cycle = self._plan, self._cycle
        try:
            self._graphs = GraphedLaunches(launches, self._executor, self._eager, cycle, cuda_graph, plan.precision)
        except DeviceError:
            raise
        except Exception as error:
            if plan.trial and out_of_memory(error):
                raise
            reason = in_one_line(error)
            self._log(
                f"no CUDA graph, {self._executor.name} updates are launched one operation after the other: {reason}"
            )
            return
        self._log(f"{self._executor.name} updates are CUDA graphs now (checked against eager ones)")

    def _look_at_compilation(self, swap: Swap, sample: Callable[[], Batch]) -> None:
        """Use the compiled executor from now on once it is ready; called at an update boundary."""
        if not swap.due():
            return
        self.check()
        looks = 1 if self._launches is None else LOOKS  # elsewhere it is the same batch again
        threads = self._tuner.most, 1
        found = swap.take(self._state, self._learning_rate, lambda: (sample(), self._noise), looks, threads)
        torch.set_num_threads(self._tuner.threads)
        self._swap = None
        if isinstance(found, str):
            self._log(f"compile failed, updates stay eager: {found}")
            return
        self._executor = found
        dense = f", dense layers by rlz with {dense_instructions()}" if found.dense else ""
        self._log(f"updates are compiled now{dense} (checked against an eager one)")
        self._tuner.restart()
