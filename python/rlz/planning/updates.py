"""Child process of `rlz profile`: updates alone, matrix products and copies, by device, precision and threads. Torch.

The batch is drawn from a small replay buffer as in training, so the compiled update is the one that `rlz train` loads,
and stays in its cache. Measured in the order of what it decides: the parent may end it at any time.
"""

import json
import sys
import time
from collections.abc import Iterator
from itertools import cycle
from typing import Any

import torch

from rlz import envs
from rlz.algorithms.base import Algorithm
from rlz.algorithms.registry import make_algorithm
from rlz.bench.children import say
from rlz.bench.draws import Draw
from rlz.config import RunConfig, run_config
from rlz.errors import RlzError
from rlz.learning.auto_precision import auto_precision
from rlz.learning.batches import Batches
from rlz.learning.compiled import Compilation, CompileJob, kinds_of, layouts
from rlz.learning.device_replay import DeviceReplay
from rlz.learning.engine import Engine, EnginePlan
from rlz.learning.executors import EagerExecutor
from rlz.learning.precision import capability
from rlz.networks import dense
from rlz.planning.products import Products, has
from rlz.planning.tasks import Task, run, threads_in_words

WARM_UP = 3

BATCH_SIZES = (1024, 8192)
"""Measured beside that of the configuration."""

BEHIND_ALL = 19
"""Nice value of a compiler beside measurements; it gets the cores that these leave."""

OTHER = {"fp32": "bf16", "tf32": "bf16", "bf16": "fp32"}
"""Precision that is measured beside the run's."""


class Bench:
    """Everything that can be measured, for one configuration."""

    def __init__(self, config: RunConfig, threads: list[int], seconds: float) -> None:
        self._config = config
        self._threads = threads
        self._seconds = seconds
        self._env_spec = envs.inspect_env(config, on_note=lambda _: None)
        self._products = Products(256, threads)
        self._compilations: dict[tuple[str, int], Compilation] = {}
        self._loaded: dict[tuple[str, int], Any] = {}

    def prepare(self) -> None:
        """Start to compile the run's update, where it is not in the cache; others are measured meanwhile."""
        if self._config.compile:
            precision = "bf16" if self._config.precision == "bf16" else "fp32"
            algorithm, draw = self._algorithm(precision), Draw(self._env_spec, self._config.replay().batch)
            self._compilation(algorithm, draw).start(nice=BEHIND_ALL)

    def tasks(self) -> list[Task]:
        """In the order of what they decide: executor and threads, device, then what only explains."""
        size = self._config.replay().batch
        precision = "bf16" if self._config.precision == "bf16" else "fp32"
        cards = [(card, found) for card in self._products.cards[:1] if has(card, found := self._precision_on(card))]
        executors = ("eager", "compiled") if self._config.compile else ("eager",)
        main = []
        for executor in executors:
            main += [self._on_cpu(executor, precision, size, count) for count in self._threads]
            main += [self._on_card(card, executor, found, size, launch)
                     for card, found in cards for launch in self._launches(card, size)]  # fmt: skip
        more = [self._on_cpu(executor, precision, batch, count)
                for batch in BATCH_SIZES if batch != size for count in self._threads[-1:]
                for executor in executors]  # fmt: skip
        more += [self._on_card(card, "eager", found, batch, self._launches(card, batch)[-1])
                 for card, found in cards for batch in BATCH_SIZES if batch != size]  # fmt: skip
        more += [self._on_cpu(executor, OTHER[precision], size, self._threads[-1])
                 for executor in (executors if dense.has_bf16() else ["eager"])]  # fmt: skip
        more += [self._on_card(card, executor, OTHER[found], size, self._launches(card, size)[-1])
                 for card, found in cards if has(card, OTHER[found])
                 for executor in (executors if OTHER[found] == "bf16" else ["eager"])]  # fmt: skip
        products = self._products.tasks()
        # Where bf16 is emulated, its products tell so, before whole updates would.
        first = [*products, *main] if precision == "bf16" else [*main, *products]
        return [*first, *more, *self._products.copies()]

    def _precision_on(self, card: str) -> str:
        """That of the run on a card, which may not have it."""
        precision = self._config.precision
        return auto_precision([capability(torch.device(card))]) if precision == "auto" else precision

    # -- updates ---------------------------------------------------------------------------------------------------

    def _on_cpu(self, executor: str, precision: str, batch_size: int, threads: int) -> Task:
        name = f"updates on cpu, {executor}, {precision}, batch {batch_size}, {threads_in_words(threads)}"

        def work() -> dict[str, Any] | None:
            if ("cpu", precision) in self._products.emulated:
                return None
            begin = time.perf_counter()
            algorithm, draw = self._algorithm(precision), Draw(self._env_spec, batch_size)
            torch.set_num_threads(threads)
            update = self._executor(algorithm, draw, executor, patient=batch_size == self._config.replay().batch)
            found, ready = rate(update, algorithm, draw, self._seconds, begin)
            figures = self._rate("cpu", executor, precision, batch_size, threads, found, ready)
            figures["update"]["dense"] = getattr(update, "dense", False)
            return figures

        return Task(name, work)

    def _executor(self, algorithm: Algorithm[Any], draw: "Draw", executor: str, *, patient: bool) -> Any:
        """An executor.

        Raises
        ------
        RlzError
            A compiled one that is not in the cache and not worth the wait, or cannot be compiled.
        """
        if executor == "eager":
            return EagerExecutor(algorithm)
        key = repr(algorithm), draw.batch_size
        if key not in self._loaded:
            compilation = self._compilation(algorithm, draw)
            if not compilation.ready and not patient:
                raise RlzError("not compiled before, and only the batch size of the run is worth the wait")
            try:
                compilation.start(nice=0)
                compilation.finished(wait=True)
                why_not = compilation.error and RlzError(f"cannot be compiled: {compilation.error}")
                self._loaded[key] = why_not or compilation.load()
            finally:
                compilation.close()
        found = self._loaded[key]
        if isinstance(found, RlzError):
            raise found
        return found

    def _compilation(self, algorithm: Algorithm[Any], draw: "Draw") -> Compilation:
        key = repr(algorithm), draw.batch_size
        if key not in self._compilations:
            job = CompileJob(algorithm, layouts(draw().tensors()), "cpu", kinds_of(algorithm.cycle))
            self._compilations[key] = Compilation(job)
        return self._compilations[key]

    def _launches(self, card: str, batch_size: int) -> list[int]:
        """Updates of a launch to measure: one, and as many as a run on the card would take by itself."""
        options = {"device": card, "batch_size": batch_size, "mode": "async", "updates_per_launch": "auto"}
        return sorted({1, self._config.model_copy(update=options).launch()})

    def _on_card(self, card: str, executor: str, precision: str, batch_size: int, launch: int) -> Task:
        """Updates of a whole engine as in a run: CUDA graphs, rows from a mirror or from pinned memory."""

        def work() -> dict[str, Any]:
            begin = time.perf_counter()
            torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
            try:
                algorithm, draw = self._algorithm(precision), Draw(self._env_spec, batch_size)
                updates = OnDevice(self._config, algorithm, draw, torch.device(card), executor, precision, launch)
                try:
                    found, ready = updates.rate(self._seconds, begin)
                finally:
                    updates.close()
            finally:
                torch.set_float32_matmul_precision("highest")
            return self._rate(card, executor, precision, batch_size, 1, found, ready, launch)

        name = f"updates on {card}, {executor}, {precision}, batch {batch_size}, {launch} in a launch"
        return Task(name, work)

    def _algorithm(self, precision: str) -> Algorithm[Any]:
        config = self._config
        return make_algorithm(config.algo, config.model_dump(), self._env_spec).in_precision(precision)

    @staticmethod
    def _rate(
        device: str,
        executor: str,
        precision: str,
        batch_size: int,
        threads: int,
        per_second: float,
        ready: float,
        launch: int = 1,
    ) -> dict[str, Any]:
        rates = {"updates_per_s": per_second, "frames_per_s": per_second * batch_size, "ready_s": ready}
        what = {"device": device, "executor": executor, "precision": precision, "batch_size": batch_size}
        return {"update": {**what, "threads": threads, "launch": launch, **rates}}


class OnDevice:
    """Updates of an engine with rows as in a run on a card: from a mirror, or drawn ahead into pinned memory.

    Parameters
    ----------
    config : says whether there may be a mirror.
    launch : updates of a launch, with a mirror.
    """

    def __init__(
        self,
        config: RunConfig,
        algorithm: Algorithm[Any],
        draw: Draw,
        device: torch.device,
        executor: str,
        precision: str,
        launch: int,
    ) -> None:
        self._device, self._executor, self._launch = device, executor, launch
        mirrored = config.replay_device != "host" and config.replay_refusal() is None
        self._mirror = DeviceReplay(draw.replay, draw.decoder, device) if mirrored else None
        self._batches = Batches(
            sampler=draw.sampler,
            decoder=draw.decoder,
            batch_size=draw.batch_size,
            stride=draw.replay.stride,
            device=device,
            ahead=True,
        )
        initial = algorithm.init(torch.Generator().manual_seed(1))
        self._engine = Engine(
            algorithm=algorithm,
            state=type(initial)(*(tensor.to(device) for tensor in initial)),
            layout=layouts(draw().tensors()),
            device=device,
            seed=1,
            plan=EnginePlan(executor == "compiled", threads=1, fixed=True, launch=launch, precision=precision),
            log=lambda line: say({"note": line}),
            replay=self._mirror,
        )
        self._engine.start()

    def rate(self, seconds: float, begin: float) -> tuple[float, float]:
        """Updates per second over a window, and the time from `begin` until the first were done.

        Raises
        ------
        RlzError
            The updates were not of the executor that was asked for.
        """
        for _ in range(WARM_UP):
            self._run()
        self._engine.check()
        ready, start, updates = time.perf_counter() - begin, time.perf_counter(), 0
        while time.perf_counter() - start < seconds:
            updates += self._run()
        self._engine.check()
        found = updates / (time.perf_counter() - start)
        if self._engine.executor != self._executor:
            raise RlzError(f"the updates were {self._engine.executor}")
        return found, ready

    def close(self) -> None:
        """End threads and helper."""
        self._engine.close()
        self._batches.close()

    def _run(self) -> int:
        if self._mirror is not None:
            self._mirror.follow()
            self._engine.launch(self._launch, 3e-4)
            return self._launch
        batch = self._batches.next(timeout=None)
        assert batch is not None
        self._engine.update(batch, 3e-4)
        return 1


def rate(update: Any, algorithm: Algorithm[Any], draw: Draw, seconds: float, begin: float) -> tuple[float, float]:
    """Updates per second on the CPU over a window, draws included; and the time from `begin` until three were done."""
    state = algorithm.init(torch.Generator().manual_seed(1))
    learning_rate = torch.full((), 3e-4, dtype=torch.float64)
    failed = torch.zeros((), dtype=torch.int64)
    noise = torch.empty(algorithm.noise_shape(draw.batch_size))
    kinds: Iterator[str] = cycle(algorithm.cycle)

    def run(most: int, until: float) -> int:
        done = 0
        while done < most and time.perf_counter() < until:
            update(state, failed, draw(), noise.normal_(), learning_rate, next(kinds))
            done += 1
        return done

    run(WARM_UP, float("inf"))
    ready = time.perf_counter() - begin
    start = time.perf_counter()
    updates = run(10**9, start + seconds)
    return updates / (time.perf_counter() - start), ready


def main(config: dict[str, Any], threads: list[int], seconds: float) -> None:
    """Compile what is not in the cache; once there is a line on stdin, measure everything that is planned."""
    torch.set_flush_denormal(True)  # as a learner
    bench = Bench(run_config(config), threads, seconds)
    bench.prepare()
    sys.stdin.readline()
    run(bench.tasks())


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
