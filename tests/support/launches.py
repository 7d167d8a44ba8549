"""Launches, and engines that make them, on the CPU: a capture is the work itself."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from rlz.algorithms.base import Algorithm
from rlz.learning.batches import Decoder
from rlz.learning.compiled import CompileJob, layouts
from rlz.learning.device_replay import DeviceReplay
from rlz.learning.engine import Engine, EnginePlan
from rlz.learning.executors import EagerExecutor
from rlz.learning.launches import Inputs, Launches
from support.executors import CPU
from support.learner import make

ROWS, MOST = 16, 4

Work = Callable[[], None]


def rows_on(device: torch.device) -> DeviceReplay:
    replay = make(100, 1)
    writer, draw = replay.writer([0], worker=3), np.random.default_rng(1)
    for _ in range(60):
        obs, next_obs = draw.standard_normal((2, 3)).astype(np.float32)
        action = np.tanh(draw.standard_normal(2)).astype(np.float32)
        writer.append(0, [obs, action, next_obs, float(draw.standard_normal()), 0.99], version=0)
    found = DeviceReplay(replay, Decoder(replay.fields), device)
    found.follow()
    return found


def on(device: torch.device, algorithm: Algorithm[Any]) -> Any:
    state = algorithm.init(torch.Generator().manual_seed(1))
    return type(state)(*(tensor.to(device) for tensor in state))


def make_launches(algorithm: Algorithm[Any], device: torch.device = CPU) -> Launches:
    inputs = Inputs(
        on(device, algorithm),
        torch.zeros((), dtype=torch.int64, device=device),
        torch.full((), 1e-3, dtype=torch.float64, device=device),
        torch.Generator(device).manual_seed(2),
    )
    return Launches(algorithm, inputs, rows_on(device), batch_size=ROWS, most=MOST)


def make_engine(algorithm: Algorithm[Any], lines: list[str], device: torch.device = CPU, **plan: Any) -> Engine:
    rows = rows_on(device)
    return Engine(
        algorithm,
        on(device, algorithm),
        layout=layouts(rows.gather(torch.zeros(ROWS, dtype=torch.int64, device=device)).tensors()),
        device=device,
        seed=3,
        plan=EnginePlan(**{"compile": False, "threads": 1, "launch": MOST, **plan}),
        log=lines.append,
        replay=rows,
    )


def kinds(algorithm: Algorithm[Any], done: int, count: int) -> tuple[str, ...]:
    return tuple(algorithm.cycle[(done + step) % len(algorithm.cycle)] for step in range(count))


def plain(work: Work, generator: torch.Generator) -> Work:
    return work


class Compiled(EagerExecutor):
    """Stands for compiled code, which needs half a minute to make."""

    name = "compiled"
    dense = False


class Made:
    """A compilation that has ended."""

    error = None

    def __init__(self, job: CompileJob) -> None:
        self.job = job

    def finished(self, *, wait: bool) -> bool:
        return True

    def load(self) -> Compiled:
        return Compiled(self.job.algorithm)

    def start(self, *, nice: int) -> None: ...
    def close(self) -> None: ...
