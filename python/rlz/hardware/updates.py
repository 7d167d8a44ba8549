"""Child process of `rlz profile`: updates alone, matrix products and copies, by device, precision and threads. Torch.

The batch is drawn from a small replay buffer as in training, so the compiled update is the one that `rlz train` loads,
and stays in its cache. Prints {"next": what} before and an object after each measurement, in the order of what it
decides: the parent may end it at any time, and knows from {"plan": [what, ...]} what is missing.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from itertools import cycle
from typing import Any

import numpy as np
import torch

from rlz import envs
from rlz._native import Replay
from rlz.algorithms.base import Batch, OffPolicy
from rlz.algorithms.registry import algorithm_class
from rlz.bench.children import say
from rlz.config import RunConfig
from rlz.envs.spaces import EnvSpec
from rlz.errors import in_one_line
from rlz.workers.execution.batches import Decoder
from rlz.workers.execution.compiled import Compilation, Job, kinds_of, layouts
from rlz.workers.execution.engine import Engine, EnginePlan
from rlz.workers.execution.executors import EagerExecutor
from rlz.workers.execution.precision import AMPERE

ROWS = 4096
WARM_UP = 3

BATCH_SIZES = (1024, 8192)
"""Measured beside that of the configuration."""

PRODUCT_ROWS = 1024
SMALL_ROWS = 8

HOPELESS = 4.0
"""A dtype whose products take so many times longer than those of float32 is not looked at any further."""

COPY_BYTES = 1 << 26

DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16}


class Task:
    """A measurement: its name for people, and the work, which gives JSON values or None where it makes no sense."""

    def __init__(self, name: str, work: Callable[[], dict[str, Any] | None]) -> None:
        self.name = name
        self.work = work


class Bench:
    """Everything that can be measured, for one configuration."""

    def __init__(self, config: RunConfig, threads: list[int], seconds: float) -> None:
        self._config = config
        self._threads = threads
        self._seconds = seconds
        self._env_spec = envs.inspect_env(config, on_note=lambda _: None)
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        self._cards = [f"cuda:{index}" for index in range(count)]
        self._emulated: set[tuple[str, str]] = set()  # dtypes that a measurement has shown to be hopeless
        self._loaded: dict[tuple[str, int], Any] = {}

    def tasks(self) -> list[Task]:
        """In the order of what they decide: executor and threads, device, then what only explains."""
        size = self._config.first_batch_size()
        cards = self._cards[:1]
        precision = "bf16" if self._config.precision == "bf16" else "fp32"
        on_card = self._config.precision if self._config.precision in ("fp32", "bf16") else "tf32"
        executors = ("eager", "compiled") if self._config.compile else ("eager",)
        main = []
        for executor in executors:
            main += [self._on_cpu(executor, precision, size, count) for count in self._threads]
            main += [self._on_card(card, executor, on_card, size) for card in cards]
        shapes = [("cpu", "fp32", count) for count in self._threads]
        shapes += [("cpu", "bf16", count) for count in self._threads[:1]]
        shapes += [(card, dtype, 1) for card in cards for dtype in ("fp32", "tf32", "bf16")]
        products = [self._product(*shape) for shape in shapes]
        more = [self._on_cpu(executor, precision, batch, count)
                for batch in BATCH_SIZES if batch != size for count in self._threads[-1:]
                for executor in executors]  # fmt: skip
        more += [self._on_card(card, "eager", on_card, batch) for card in cards for batch in BATCH_SIZES]
        other = "fp32" if precision == "bf16" else "bf16"
        more += [self._on_cpu("eager", other, size, self._threads[-1])]
        more += [self._on_card(card, "eager", other, size) for card in cards]
        links = [("cpu", card) for card in self._cards] + [(card, "cpu") for card in self._cards]
        links += [(one, two) for one in self._cards for two in self._cards if one != two]
        return main + products + more + [self._copy(*link) for link in links]

    # -- updates ---------------------------------------------------------------------------------------------------

    def _on_cpu(self, executor: str, precision: str, batch_size: int, threads: int) -> Task:
        name = f"updates on cpu, {executor}, {precision}, batch {batch_size}, {threads} thread{'s' * (threads > 1)}"

        def work() -> dict[str, Any] | None:
            if ("cpu", precision) in self._emulated:
                return None
            begin = time.perf_counter()
            algorithm, draw = self._algorithm(precision), Draw(self._env_spec, batch_size)
            torch.set_num_threads(threads)
            update = self._executor(algorithm, draw, executor, wait=batch_size == self._config.first_batch_size())
            if update is None:
                return None
            found, ready = rate(update, algorithm, draw, self._seconds, begin)
            return self._rate("cpu", executor, precision, batch_size, threads, found, ready)

        return Task(name, work)

    def _executor(self, algorithm: OffPolicy, draw: "Draw", executor: str, *, wait: bool) -> Any:
        """An executor; None for a compiled one that is not in the cache and not worth the wait."""
        if executor == "eager":
            return EagerExecutor(algorithm)
        key = repr(algorithm), draw.batch_size
        if key not in self._loaded:
            job = Job(algorithm, layouts(draw("cpu").tensors()), "cpu", kinds_of(algorithm.cycle))
            compilation = Compilation(job)
            if not compilation.ready and not wait:
                return None
            try:
                compilation.start(urgent=True)
                compilation.finished(wait=True)
                if compilation.error is not None:
                    say({"error": f"updates cannot be compiled for cpu: {compilation.error}"})
                self._loaded[key] = None if compilation.error else compilation.load()
            finally:
                compilation.close()
        return self._loaded[key]

    def _on_card(self, card: str, executor: str, precision: str, batch_size: int) -> Task:
        """Updates of a whole engine, with CUDA graphs where they can be had."""

        def work() -> dict[str, Any] | None:
            if not self._has(card, precision):
                return None
            begin = time.perf_counter()
            torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
            try:
                algorithm, draw = self._algorithm(precision), Draw(self._env_spec, batch_size)
                device = torch.device(card)
                initial = algorithm.init(torch.Generator().manual_seed(1))
                state = type(initial)(*(tensor.to(device) for tensor in initial))
                engine = Engine(
                    *(algorithm, state),
                    layout=layouts(draw(card).tensors()),
                    device=device,
                    seed=1,
                    plan=EnginePlan(compile=executor == "compiled", threads=1, fixed=True),
                    log=lambda line: say({"note": line}),
                )
                engine.start()

                def update(*arguments: Any) -> None:
                    engine.update(arguments[2], 3e-4)

                try:
                    found, ready = rate(update, algorithm, draw, self._seconds, begin, card)
                    if engine.executor != executor:
                        return None
                finally:
                    engine.close()
            finally:
                torch.set_float32_matmul_precision("highest")
            return self._rate(card, executor, precision, batch_size, 1, found, ready)

        return Task(f"updates on {card}, {executor}, {precision}, batch {batch_size}", work)

    def _algorithm(self, precision: str) -> OffPolicy:
        config = self._config.model_copy(update={"precision": precision})
        return algorithm_class(config.algo).from_config(config, self._env_spec)

    @staticmethod
    def _rate(
        device: str, executor: str, precision: str, batch_size: int, threads: int, per_second: float, ready: float
    ) -> dict[str, Any]:
        rates = {"updates_per_s": per_second, "frames_per_s": per_second * batch_size, "ready_s": ready}
        what = {"device": device, "executor": executor, "precision": precision, "batch_size": batch_size}
        return {"update": {**what, "threads": threads, **rates}}

    # -- matrix products and copies --------------------------------------------------------------------------------

    def _product(self, device: str, dtype: str, threads: int) -> Task:
        """Activations [rows, width] times a layer's weights [width, width]."""

        def work() -> dict[str, Any] | None:
            if not self._has(device, dtype) or (device, dtype) in self._emulated:
                return None
            width = max(self._config.hidden, default=256)
            torch.set_num_threads(threads)
            torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
            try:
                # Small ones first: where a dtype is emulated, even one product of full size takes seconds.
                flops = self._flops(device, dtype, SMALL_ROWS, width)
                if dtype != "fp32" and flops * HOPELESS < self._flops(device, "fp32", SMALL_ROWS, width):
                    self._emulated.add((device, dtype))
                else:
                    flops = self._flops(device, dtype, PRODUCT_ROWS, width)
            finally:
                torch.set_float32_matmul_precision("highest")
            return {"product": {"device": device, "dtype": dtype, "threads": threads, "flops": flops}}

        return Task(f"matrix products on {device}, {dtype}, {threads} thread{'s' * (threads > 1)}", work)

    @staticmethod
    def _flops(device: str, dtype: str, rows: int, width: int) -> float:
        left = torch.ones(rows, width, dtype=DTYPES[dtype], device=device)
        right = torch.ones(width, width, dtype=DTYPES[dtype], device=device)
        out = left @ right
        each = 8 if device == "cpu" else 200
        calls, begin = 0, 0.0
        while True:
            if not calls:
                _wait(device)
                begin = time.perf_counter()
            for _ in range(1 if not calls else each):
                torch.mm(left, right, out=out)
                calls += 1
            _wait(device)
            passed = time.perf_counter() - begin
            if passed >= 0.1:
                return 2.0 * rows * width * width * calls / passed

    @staticmethod
    def _has(device: str, dtype: str) -> bool:
        if device == "cpu":
            return dtype != "tf32"
        return dtype == "fp32" or torch.cuda.get_device_capability(device) >= AMPERE

    def _copy(self, source: str, target: str) -> Task:
        def work() -> dict[str, Any]:
            pinned = "cpu" in (source, target)
            tensors = [
                torch.empty(COPY_BYTES, dtype=torch.uint8, device=place, pin_memory=pinned and place == "cpu")
                for place in (source, target)
            ]
            card = target if source == "cpu" else source
            calls, begin = -1, 0.0
            while calls < 1 or time.perf_counter() - begin < 0.1:
                if calls < 0:
                    begin = time.perf_counter()  # the first one warms up
                tensors[1].copy_(tensors[0], non_blocking=True)
                _wait(card)
                calls += 1
                if not calls:
                    begin = time.perf_counter()
            bytes_per_s = COPY_BYTES * calls / (time.perf_counter() - begin)
            return {"copy": {"source": source, "target": target, "bytes_per_s": bytes_per_s}}

        return Task(f"copies from {source} to {target}", work)


class Draw:
    """Draws batches from a small buffer of random rows (values in [-1, 1]) to a device, as the learner does."""

    def __init__(self, env_spec: EnvSpec, batch_size: int) -> None:
        self.batch_size = batch_size
        replay = Replay.create(env_spec.fields(), buffer_size=ROWS, lanes=1, run_id=1)
        rows = np.zeros((ROWS, replay.stride), np.uint8)
        rng = np.random.default_rng(1)
        for name, dtype, shape, offset in replay.fields:
            if dtype == "f32":
                size = int(np.prod(shape, dtype=int))
                values = np.full((ROWS, size), 0.99) if name == "discount" else rng.uniform(-1, 1, (ROWS, size))
                rows[:, offset : offset + 4 * size] = values.astype(np.float32).view(np.uint8)
        replay.restore_rows(0, rows, np.zeros(ROWS, np.uint64), worker=1)
        self._sampler = replay.sampler(seed=[1, 2, 3, 4])
        self._decoder = Decoder(replay.fields)
        self._rows = torch.empty(batch_size, replay.stride, dtype=torch.uint8)

    def __call__(self, device: str) -> Batch:
        """A batch."""
        self._sampler.sample(self._rows.numpy())
        return self._decoder(self._rows if device == "cpu" else self._rows.to(device))


def rate(
    update: Any, algorithm: OffPolicy, draw: Draw, seconds: float, begin: float, device: str = "cpu"
) -> tuple[float, float]:
    """Updates per second over a window, draws included; and the time from `begin` until three had warmed it up."""
    initial = algorithm.init(torch.Generator().manual_seed(1))
    state = type(initial)(*(tensor.to(device) for tensor in initial))
    learning_rate = torch.full((), 3e-4, dtype=torch.float64, device=device)
    failed = torch.zeros((), dtype=torch.int64, device=device)
    noise = torch.empty(algorithm.noise_shape(draw.batch_size), device=device)
    kinds: Iterator[str] = cycle(algorithm.cycle)

    def run(most: int, until: float) -> int:
        done = 0
        while done < most and time.perf_counter() < until:
            update(state, failed, draw(device), noise.normal_(), learning_rate, next(kinds))
            done += 1
        _wait(device)
        return done

    run(WARM_UP, float("inf"))
    ready = time.perf_counter() - begin
    start = time.perf_counter()
    updates = run(10**9, start + seconds)
    return updates / (time.perf_counter() - start), ready


def _wait(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize(device)


def main(config: dict[str, Any], threads: list[int], seconds: float) -> None:
    """Measure everything that is planned. A task that raises is an error of its own, not of all."""
    torch.set_flush_denormal(True)  # as a learner
    tasks = Bench(RunConfig.model_validate(config), threads, seconds).tasks()
    say({"plan": [task.name for task in tasks]})
    for task in tasks:
        say({"next": task.name})
        try:
            found = task.work()
        except Exception as error:
            say({"error": f"{task.name}: {in_one_line(error, 200)}"})
            continue
        say({"done": task.name, **(found or {})})


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
