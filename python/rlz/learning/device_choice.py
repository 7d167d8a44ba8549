"""Which device a learner with `--device auto` runs on: the faster one. Without a card nothing is measured.

Not run on a GPU yet.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from rlz.algorithms.base import Algorithm, Batch
from rlz.errors import DeviceError, in_one_line
from rlz.learning.compiled import layouts
from rlz.learning.engine import Engine, EnginePlan
from rlz.learning.executors import EagerExecutor
from rlz.learning.launches import FedRows
from rlz.learning.precision import use_precision
from rlz.system.cores import cores
from rlz.system.device import has_driver

MEASURE_S = 0.5
"""Time for the updates of one device."""

WARM_UP = 3

CPU = torch.device("cpu")


def find_device(name: str, log: Callable[[str], None] = lambda _: None) -> torch.device:
    """Torch device of `--device`; for auto CUDA where there is a card (`fastest_device` then measures both).

    Raises
    ------
    DeviceError
        The device does not exist here.
    """
    if name == "cpu":
        return CPU
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        if count == 0 and not has_driver():
            return CPU
        reason = refusal()
        if reason is not None:
            log(f"--device auto: cpu, because CUDA cannot be used: {reason}")
        return torch.device("cuda:0") if reason is None else CPU
    try:
        device = torch.device(name)
    except RuntimeError:
        raise DeviceError(f"--device {name}: not a device; use auto, cpu, cuda or cuda:N") from None
    if device.type != "cuda":
        raise DeviceError(f"--device {name}: use auto, cpu, cuda or cuda:N")
    index = device.index or 0
    if index >= count:
        found = f"cuda:0 to cuda:{count - 1}" if count else "no CUDA device"
        reason = refusal() if count == 0 and has_driver() else None
        raise DeviceError(
            f"--device {name}: torch finds {found} here{f' ({reason})' if reason else ''}; use --device auto or cpu"
        )
    return torch.device("cuda", index)


def refusal(device: torch.device = torch.device("cuda:0")) -> str | None:  # noqa: B008 (a value)
    """What CUDA says when it is asked for a small product, if anything: it knows more than that there is no card."""
    try:
        left = torch.ones(8, 8, device=device)
        (left @ left).sum().item()
    except Exception as error:
        return in_one_line(error)
    return None


def fastest_device(
    algorithm: Algorithm[Any],
    batch: Batch,
    *,
    precision: str,
    launch: int,
    log: Callable[[str], None],
    card: torch.device = torch.device("cuda:0"),  # noqa: B008 (a value)
) -> torch.device:
    """CPU or card, whichever makes an update of this size sooner; one line says what was measured.

    A card on which anything fails, because torch has no kernels for it or others have its memory, is not taken.

    Parameters
    ----------
    batch : on the CPU; its size counts, not its numbers.
    precision : of the run, which a device may not have.
    launch : updates of a launch on the card.

    Raises
    ------
    DeviceError
        Neither has the precision.
    """
    times: dict[torch.device, float] = {}
    refused: dict[torch.device, str] = {}
    for device in (CPU, card):
        try:
            found = use_precision(precision, [device])
            if device == CPU:
                times[device] = cpu_seconds(algorithm, batch)
            else:
                times[device] = card_seconds(algorithm, batch, device, precision=found, launch=launch)
        except DeviceError as error:
            refused[device] = str(error)
        except Exception as error:
            if device == CPU:
                raise
            refused[device] = in_one_line(error)
    if not times:
        raise DeviceError("; ".join(refused.values()))
    fastest = min(times, key=times.__getitem__)
    if refused:
        log(f"--device auto: {fastest}, because {next(iter(refused))} cannot be used: {next(iter(refused.values()))}")
    else:
        measured = ", ".join(f"{device}: {1 / seconds:.0f}" for device, seconds in times.items())
        log(f"--device auto: {fastest} (updates/s before compilation, {measured})")
    return fastest


def cpu_seconds(algorithm: Algorithm[Any], batch: Batch) -> float:
    """Time of one update on the CPU, operation by operation with all cores."""
    state = algorithm.init(torch.Generator().manual_seed(0))
    noise = torch.zeros(algorithm.noise_shape(len(batch.obs)))
    failed = torch.zeros((), dtype=torch.int64)
    rate = torch.full((), 1e-4, dtype=torch.float64)
    executor = EagerExecutor(algorithm)

    def work() -> int:
        for kind in algorithm.cycle:
            executor(state, failed, batch, noise, rate, kind)
        return len(algorithm.cycle)

    threads = torch.get_num_threads()
    torch.set_num_threads(cores())
    try:
        return _seconds(work, lambda: None)
    finally:
        torch.set_num_threads(threads)


def card_seconds(
    algorithm: Algorithm[Any], batch: Batch, device: torch.device, *, precision: str, launch: int = 1
) -> float:
    """Time of one update on a card as in a run, but for its compilation: launches of an engine, as graphs.

    Raises
    ------
    Exception
        Whatever keeps it from running there.
    """
    initial = algorithm.init(torch.Generator().manual_seed(0))
    layout = layouts(batch.tensors())
    engine = Engine(
        algorithm=algorithm,
        state=type(initial)(*(tensor.to(device) for tensor in initial)),
        layout=layout,
        device=device,
        seed=0,
        plan=EnginePlan(compile=False, threads=1, launch=launch, precision=precision, trial=True),
        log=lambda _: None,  # the run's own engine says it again
        replay=FedRows(layout, device, algorithm.batch_type),
    )

    def work() -> int:
        engine.launch(launch, 1e-4)
        return launch

    try:
        return _seconds(work, engine.check)
    finally:
        engine.close()


def _seconds(work: Callable[[], int], done: Callable[[], None]) -> float:
    """Time of one update; `work` makes some and says how many, `done` waits for them."""
    for _ in range(WARM_UP):
        work()
    done()
    count, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < MEASURE_S:
        count += work()
    done()
    return (time.perf_counter() - begin) / count
