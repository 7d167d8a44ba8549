"""What the steps on a card are made of: Ant-v4's sizes, rows on the device, launches, graphs, engines, times."""

from __future__ import annotations

import argparse
import os
import platform
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import numpy as np
import torch

from rlz._native import Replay
from rlz.algorithms.sac import Sac
from rlz.envs.spaces import EnvSpec
from rlz.errors import DeviceError
from rlz.learning.batches import Decoder
from rlz.learning.compiled import layouts
from rlz.learning.device_replay import DeviceReplay
from rlz.learning.engine import Engine, EnginePlan
from rlz.learning.executors import EagerExecutor, Executor
from rlz.learning.graphs import GraphedLaunches, cuda_graph
from rlz.learning.launches import Inputs, Launches
from rlz.learning.precision import use_precision
from rlz.system.cores import cores

OBS, ACTION, HIDDEN = 27, 8, (256, 256)  # Ant-v4

Work = Callable[[], None]


class Bench:
    """Options, and what steps are made of."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.quick: bool = options.quick
        self.options = options
        self.device = torch.device(options.device)
        self.cuda = self.device.type == "cuda"
        torch.set_num_threads(1)  # of the CPU, on which this only tries the code
        self.cell_s = 0.02 if self.quick else 0.6
        self.batches = (32,) if self.quick else (256, 8192, 131_072)
        self.hidden = (16,) if self.quick else HIDDEN
        self.rows = self._rows(500 if self.quick else 1_000_000)

    def sync(self) -> None:
        """Wait for the device."""
        if self.cuda:
            torch.cuda.synchronize(self.device)

    def seconds(self, work: Work, repeats: int = 3) -> float:
        """Median time of one call, over loops with a synchronisation at both ends."""
        for _ in range(3):
            work()
        self.sync()
        found = []
        for _ in range(repeats):
            count, begin = 0, time.perf_counter()
            while time.perf_counter() - begin < self.cell_s / repeats:
                for _ in range(4):  # not so many that the queue of launches grows without end
                    work()
                count += 4
                self.sync()
            found.append((time.perf_counter() - begin) / count)
        return median(found)

    def algorithm(self, precision: str, kind: Any = Sac) -> Any:
        """SAC or TD3 of Ant-v4's sizes."""
        return kind(kind.Settings(hidden=self.hidden), EnvSpec.of_sizes(OBS, ACTION)).in_precision(precision)

    def launches(self, algorithm: Any, batch: int, most: int) -> Launches:
        """Launches with a state of their own."""
        inputs = Inputs(
            on(self.device, algorithm.init(torch.Generator().manual_seed(1))),
            torch.zeros((), dtype=torch.int64, device=self.device),
            torch.full((), 3e-4, dtype=torch.float64, device=self.device),
            torch.Generator(self.device).manual_seed(2),
        )
        return Launches(algorithm, inputs, self.rows, batch_size=batch, most=most)

    def graphs(
        self,
        launches: Launches,
        precision: str,
        executor: Executor | None = None,
        cycle: tuple[str, ...] | None = None,
    ) -> GraphedLaunches:
        """CUDA graphs, checked against eager updates; the work itself on a CPU."""
        eager = EagerExecutor(launches.algorithm)
        kinds = cycle or launches.algorithm.cycle
        capture = cuda_graph if self.cuda else uncaptured
        return GraphedLaunches(launches, executor or eager, eager, kinds, capture, precision)

    def engine(self, precision: str = "fp32", batch: int = 256, launch: int = 8, **plan: Any) -> Engine:
        """An engine as of a run, with the mirror's rows; its random stream always the same."""
        algorithm = self.algorithm(precision)
        rows = self.rows.gather(torch.zeros(batch, dtype=torch.int64, device=self.device))
        values = {"compile": False, "threads": 1, "launch": launch, "precision": precision, **plan}
        return Engine(
            *(algorithm, on(self.device, algorithm.init(torch.Generator().manual_seed(1)))),
            layout=layouts(rows.tensors()),
            device=self.device,
            seed=3,
            plan=EnginePlan(**values),
            log=lambda line: print(f"  {line}", flush=True),
            replay=self.rows,
        )

    def _rows(self, count: int) -> DeviceReplay:
        """Random transitions, in shared memory and on the device."""
        fields: list[Any] = [("obs", "f32", (OBS,)), ("action", "f32", (ACTION,)), ("next_obs", "f32", (OBS,))]
        fields += [("reward", "f32", ()), ("discount", "f32", ())]
        replay = Replay.create(fields, buffer_size=count, lanes=1, run_id=1)
        draw = np.random.default_rng(1)
        rows = np.zeros((count, replay.stride // 4), np.float32)
        for name, _, shape, offset in replay.fields:
            size = int(np.prod(shape))
            values = draw.standard_normal((count, size), dtype=np.float32)
            values = {"action": np.tanh(values), "discount": np.full_like(values, 0.99)}.get(name, values)
            rows[:, offset // 4 : offset // 4 + size] = values
        replay.restore_rows(0, rows.view(np.uint8), np.zeros(count, np.uint64), worker=1)
        found = DeviceReplay(replay, Decoder(replay.fields), self.device)
        begin = time.perf_counter()
        found.follow()
        self.sync()
        print(f"mirror of {count} rows filled in {time.perf_counter() - begin:.2f} s", flush=True)
        return found

    def machine(self) -> dict[str, Any]:
        """For the report's head."""
        card = torch.cuda.get_device_name(self.device) if self.cuda else None
        return {
            "date": time.strftime("%Y-%m-%d"),
            "card": card,
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "cores": cores(),
            "processor": platform.processor() or platform.machine(),
            "load": os.getloadavg()[0],
        }


def uncaptured(work: Work, generator: torch.Generator) -> Work:
    """In the place of a graph, on a CPU."""
    return work


def on(device: torch.device, state: Any, dtype: torch.dtype | None = None) -> Any:
    """State on a device, its floats in another type."""
    moved = (tensor.to(device, dtype if tensor.is_floating_point() else None, copy=True) for tensor in state)
    return type(state)(*moved)


def precisions(bench: Bench) -> Iterator[str]:
    """Each precision that the device has, switched on."""
    for precision in ("bf16", "tf32", "fp32"):
        try:
            use_precision(precision, [bench.device])
        except DeviceError:
            continue
        yield precision
    torch.set_float32_matmul_precision("highest")
