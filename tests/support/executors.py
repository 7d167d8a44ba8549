"""Small algorithms, a batch and a compilation, to run executors on."""

from typing import Any

import torch

from rlz.algorithms.base import Algorithm, Batch
from rlz.algorithms.sac import Sac
from rlz.algorithms.td3 import Td3
from rlz.learning.compiled import CompileJob, kinds_of, layouts
from support.algorithms import made

RATE = torch.tensor(1e-3, dtype=torch.float64)

CPU = torch.device("cpu")


def make_sac(**values: float) -> Sac:
    return made(Sac, 3, 2, hidden=(8,), layer_norm=True, **values)


def make_td3() -> Td3:
    return made(Td3, 3, 2, hidden=(8,), layer_norm=True, n_critics=3)


def make_state(algorithm: Algorithm[Any], seed: int = 1) -> Any:
    return algorithm.init(torch.Generator().manual_seed(seed))


def make_batch(seed: int = 1) -> Batch:
    rows = torch.randn(16, 12, generator=torch.Generator().manual_seed(seed))  # as decoded: views of packed rows
    return Batch(rows[:, :3], rows[:, 3:5].tanh_(), rows[:, 5:8], rows[:, 8], rows[:, 9].fill_(0.99))


def noise(algorithm: Algorithm[Any], seed: int = 2) -> torch.Tensor:
    return torch.randn(algorithm.noise_shape(16), generator=torch.Generator().manual_seed(seed))


def flag() -> torch.Tensor:
    return torch.zeros((), dtype=torch.int64)


def make_job(algorithm: Algorithm[Any], batch: Batch | None = None, device: str = "cpu") -> CompileJob:
    fields = (make_batch() if batch is None else batch).tensors()
    return CompileJob(algorithm, layouts(fields), device, kinds_of(algorithm.cycle))
