"""The trainer of a `TorchAlgorithm`: eager updates of modules, as the algorithm's file states them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from rlz.acting.flat import pack
from rlz.algorithms.base import Batch
from rlz.algorithms.torch_algorithm import TD_ERRORS, TorchAlgorithm
from rlz.errors import ConfigError, NonFiniteError
from rlz.learning.compiled import Layout
from rlz.learning.launches import Rows
from rlz.learning.metrics import Means
from rlz.learning.threads import ThreadTuner, tuner
from rlz.system.cores import cores


class Modules:
    """Runs `learn` of a `TorchAlgorithm`; a trainer as `Engine` is one.

    Parameters
    ----------
    algorithm : set up, its modules on their device.
    metrics : names that the run has columns for; `learn` may give others no more.
    seed : of torch's own generator during updates.
    threads : CPU threads, as in `EnginePlan`; `fixed`: one.
    rates : learning rate of each group of the optimisers after `setup`.
    done, rate : updates before, and the learning rate that they ended with.
    layout : of the fields of every batch.
    rows : that `launch` draws from.
    """

    UPDATES, RATE = "updates", "learning_rate"
    """Names of these among the tensors."""

    executor = "eager"
    staleness = 0

    def __init__(
        self,
        algorithm: TorchAlgorithm[Any],
        metrics: tuple[str, ...],
        *,
        seed: int,
        threads: int | str,
        fixed: bool,
        rates: list[float],
        done: int,
        rate: float,
        log: Callable[[str], None],
        layout: tuple[Layout, ...],
        rows: Rows | None,
    ) -> None:
        self._algorithm = algorithm
        self._batch_size = layout[0][0][0]
        self._rows = rows
        self._metrics = metrics
        self._done, self._rate = done, rate
        self._log = log
        self._tuner = ThreadTuner([1]) if fixed else tuner(threads, cores())
        self._rates = rates
        self._generator = torch.Generator().manual_seed(seed).get_state()
        self._means = Means(torch.zeros(len(metrics), dtype=torch.float64))

    @property
    def threads(self) -> int:
        """CPU threads in use."""
        return self._tuner.threads

    @property
    def settled(self) -> bool:
        """The number of threads will stay as it is for a while."""
        return self._tuner.settled

    @property
    def noise_state(self) -> bytes:
        """State of torch's own generator between updates; can be set."""
        return bytes(self._generator.numpy())

    @noise_state.setter
    def noise_state(self, state: bytes) -> None:
        self._generator = torch.frombuffer(bytearray(state), dtype=torch.uint8).clone()

    def start(self) -> None:
        """Nothing has to be prepared."""

    def launch(self, count: int, learning_rate: float) -> None:
        """`count` updates on rows on the device. Raises as `update`."""
        assert self._rows is not None, "modules without rows on their device"
        indices = torch.zeros(count, self._batch_size, dtype=torch.int64)
        with self._drawing():
            self._rows.draw(indices, torch.default_generator)
        for chosen in indices.to(self._algorithm.device):
            self.update(self._rows.gather(chosen), learning_rate)

    def update(self, batch: Any, learning_rate: float) -> Tensor | None:
        """One update; |TD errors| [batch] where `learn` gives them.

        Raises
        ------
        NonFiniteError
            A metric is not finite.
        """
        if learning_rate != self._rate:  # else a scheduler of the algorithm's own may have set another
            part = learning_rate / self._algorithm.learning_rate
            for group, rate in zip(self.groups(self._algorithm), self._rates, strict=False):
                group["lr"] = rate * part
            self._rate = learning_rate
        begin = time.perf_counter()
        with self._drawing():
            given = dict(self._algorithm.learn(batch, self._done + 1))
        errors = given.pop(TD_ERRORS, None)
        self._means.add(self._row(given).unsqueeze(0))
        self._done += 1
        line = self._tuner.record(time.perf_counter() - begin)
        if self._tuner.threads != torch.get_num_threads():
            torch.set_num_threads(self._tuner.threads)
        if line is not None:
            self._log(line)
        return None if errors is None or getattr(batch, "weight", None) is None else errors.detach()

    def check(self) -> None:
        """Nothing is in flight."""

    def settle(self) -> None:
        """Modules keep their state themselves."""

    def take_metrics(self) -> Tensor:
        """Means since the last call, NaN for what was not measured."""
        return self._means.take()

    def actor_parameters(self) -> Tensor:
        """What acts, packed: uint8."""
        return torch.from_numpy(pack(self._algorithm.actor()))

    @property
    def done(self) -> int:
        """Updates so far."""
        return self._done

    def state_dict(self) -> dict[str, Tensor]:
        """Every tensor of the algorithm by name, the count of updates, and their learning rate."""
        rate = torch.tensor(self._rate, dtype=torch.float64)
        return self._algorithm.state_dict() | {self.UPDATES: torch.tensor(self._done), self.RATE: rate}

    def failure(self, batch: Batch | None) -> dict[str, Tensor]:
        """The batch of an update that failed, and everything that the algorithm keeps, by name."""
        fields = {} if batch is None else batch._asdict()
        inputs = {f"batch.{name}": value for name, value in fields.items() if value is not None}
        return inputs | {f"state.{name}": tensor for name, tensor in self._algorithm.state_dict().items()}

    def close(self) -> None:
        """Nothing is held."""

    @staticmethod
    def groups(algorithm: TorchAlgorithm[Any]) -> Iterator[dict[str, Any]]:
        """Groups of parameters of its optimisers."""
        for _, part in algorithm.parts():
            if isinstance(part, torch.optim.Optimizer):
                yield from part.param_groups

    def _row(self, given: Mapping[str, Any]) -> Tensor:
        if unknown := given.keys() - set(self._metrics):
            raise ConfigError(
                f"learn gave {', '.join(sorted(unknown))}, which its first call did not ({', '.join(self._metrics)}). "
                "List such names in the class: metrics = ('loss', ...)"
            )
        values = [float(given[name]) if name in given else math.nan for name in self._metrics]
        for name, value in zip(self._metrics, values, strict=True):
            if name in given and not math.isfinite(value):
                raise NonFiniteError(f"{name} is {value}")
        return torch.tensor(values, dtype=torch.float64)

    @contextmanager
    def _drawing(self) -> Iterator[None]:
        """Lend torch's own generator to the algorithm: in serial mode others draw from it in this process."""
        others = torch.get_rng_state()
        torch.set_rng_state(self._generator)
        try:
            yield
        finally:
            self._generator = torch.get_rng_state()
            torch.set_rng_state(others)
