"""What makes a learner's updates: an engine on a pure update, or modules that learn by themselves. One contract."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from rlz.algorithms.base import Algorithm, Batch
from rlz.algorithms.torch_algorithm import TorchAlgorithm
from rlz.errors import ConfigError
from rlz.learning.compiled import Layout
from rlz.learning.engine import Engine, EnginePlan
from rlz.learning.launches import Rows
from rlz.learning.modules import Modules
from rlz.learning.two_devices import Exchange, TwoDevices


class Trainer(Protocol):
    """Makes updates of one batch size."""

    @property
    def executor(self) -> str:
        """Name of what runs the updates: eager, compiled, ..."""

    @property
    def threads(self) -> int:
        """CPU threads in use."""

    @property
    def settled(self) -> bool:
        """Executor and threads will stay as they are for a while."""

    @property
    def staleness(self) -> int:
        """Updates by which the actor that the newest update saw was behind."""

    @property
    def done(self) -> int:
        """Updates so far, those before a resume included."""

    noise_state: bytes

    def start(self) -> None:
        """Begin what goes on beside the updates."""

    def update(self, batch: Batch, learning_rate: float) -> Tensor | None:
        """One update; |TD errors| [batch] for a batch with weights. Raises NonFiniteError."""

    def take_metrics(self) -> Tensor:
        """Mean of each metric [names] over the updates since the last call, NaN where none measured it."""

    def actor_parameters(self) -> Tensor:
        """Newest parameters of what acts, in the order of its manifest; valid until the next update."""

    def state_dict(self) -> dict[str, Tensor]:
        """Everything that is learned, by name, after every update so far; valid until the next one."""

    def failure(self, batch: Batch | None) -> dict[str, Tensor]:
        """Everything that the update that failed was made from, by name."""

    def close(self) -> None:
        """Give back what it holds."""


@dataclass(frozen=True)
class TrainerSite:
    """Where and how a trainer runs: of one batch size.

    Attributes
    ----------
    layout : of the fields of its batches.
    devices : one, or those of critics and actor.
    exchange : between these.
    seed : of the noise in the updates.
    plan : executor and threads.
    log : takes one line for people.
    replay : rows on the device, if there are.
    """

    layout: tuple[Layout, ...]
    devices: tuple[torch.device, ...]
    exchange: Exchange
    seed: int
    plan: EnginePlan
    log: Callable[[str], None]
    replay: Rows | None = None


class Learned(Protocol):
    """What a run learns; trainers of several batch sizes may take turns on it."""

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        """Take what a trainer's `state_dict` gave. Raises CheckpointError naming what does not fit."""

    def trainer(self, site: TrainerSite) -> Trainer:
        """A trainer of it."""


class PureState:
    """The state of an algorithm with a pure update."""

    def __init__(self, algorithm: Algorithm[Any], device: torch.device, seed: int) -> None:
        self._algorithm = algorithm
        initial = algorithm.init(torch.Generator().manual_seed(seed))
        self._state = type(initial)(*(tensor.to(device) for tensor in initial))

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        """See `Learned`."""
        self._algorithm.load_state_dict(self._state, tensors)

    def trainer(self, site: TrainerSite) -> Engine | TwoDevices:
        """See `Learned`."""
        common = {"layout": site.layout, "seed": site.seed, "plan": site.plan, "log": site.log}
        if len(site.devices) == 1:
            device = site.devices[0]
            return Engine(self._algorithm, self._state, device=device, replay=site.replay, **common)  # type: ignore[arg-type]
        devices = site.devices[0], site.devices[1]
        return TwoDevices(self._algorithm, self._state, devices=devices, exchange=site.exchange, **common)  # type: ignore[arg-type]


class ModuleState:
    """The modules and optimisers of a `TorchAlgorithm`, set up on their device."""

    def __init__(
        self, algorithm: TorchAlgorithm[Any], device: torch.device, seed: int, metrics: tuple[str, ...]
    ) -> None:
        self._algorithm = algorithm
        self._metrics = metrics
        self._done, self._rate = 0, algorithm.learning_rate
        algorithm.device = device
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            with torch.device(device):
                algorithm.setup()
        self._rates = [float(group["lr"]) for group in Modules.groups(algorithm)]

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        """See `Learned`."""
        own = dict(tensors)
        self._done, self._rate = int(own.pop(Modules.UPDATES)), float(own.pop(Modules.RATE))
        self._algorithm.load_state_dict(None, own)

    def trainer(self, site: TrainerSite) -> Modules:
        """See `Learned`."""
        if len(site.devices) > 1:
            raise ConfigError("--devices needs a pure update, whose halves rlz can place apart. Use --device")
        return Modules(
            algorithm=self._algorithm,
            metrics=self._metrics,
            seed=site.seed,
            threads=site.plan.threads,
            fixed=site.plan.fixed,
            rates=self._rates,
            done=self._done,
            rate=self._rate,
            log=site.log,
            layout=site.layout,
            rows=site.replay,
        )


def learned(algorithm: Algorithm[Any], device: torch.device, seed: int, metrics: tuple[str, ...]) -> Learned:
    """What an algorithm learns, fresh from a seed, on a device."""
    if isinstance(algorithm, TorchAlgorithm):
        return ModuleState(algorithm, device, seed, metrics)
    return PureState(algorithm, device, seed)
