"""`--device auto`: the faster one by measurement; what a card cannot do means the CPU, and is said. Cards are fakes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from rlz.algorithms.base import Algorithm
from rlz.errors import DeviceError
from rlz.learning import device_choice, graphs
from rlz.learning.device_choice import card_seconds, cpu_seconds, fastest_device, find_device, refusal
from rlz.workers import learner as learner_module
from support.executors import make_batch, make_sac, make_td3
from support.learner import Run, config

CPU, CARD = torch.device("cpu"), torch.device("cuda", 0)
both = pytest.mark.parametrize("algorithm", [make_sac(), make_td3()], ids=["sac", "td3"])


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_choice, "MEASURE_S", 0.05)


def choose(lines: list[str], precision: str = "auto") -> torch.device:
    return fastest_device(make_sac(), make_batch(), precision=precision, launch=4, log=lines.append)


@both
def test_an_update_is_timed(algorithm: Algorithm[Any]) -> None:
    before = torch.get_num_threads()
    assert 1e-6 < cpu_seconds(algorithm, make_batch()) < 1.0
    assert torch.get_num_threads() == before


@both
def test_a_card_is_timed_with_launches_of_an_engine(monkeypatch: pytest.MonkeyPatch, algorithm: Algorithm[Any]) -> None:
    """The CPU in its place: everything but the capture."""
    launches: list[int] = []
    run = device_choice.Engine.launch

    def noted(engine: Any, count: int, rate: float) -> None:
        launches.append(count)
        run(engine, count, rate)

    monkeypatch.setattr(device_choice.Engine, "launch", noted)
    assert 1e-6 < card_seconds(algorithm, make_batch(), CPU, precision="fp32", launch=6) < 1.0
    assert set(launches) == {6}


@pytest.fixture
def precisions(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Which precision was switched on by device, for a card that has all of them."""
    seen: dict[str, str] = {}

    def use(precision: str, devices: list[torch.device]) -> str:
        (device,) = devices
        if precision == "tf32" and device == CPU:
            raise DeviceError("--precision tf32: the CPU has no tf32")
        seen[str(device)] = {"auto": "fp32" if device == CPU else "tf32"}.get(precision, precision)
        return seen[str(device)]

    monkeypatch.setattr(device_choice, "use_precision", use)
    monkeypatch.setattr(device_choice, "cpu_seconds", lambda *_: 1e-3)
    return seen


@pytest.mark.parametrize(("cuda", "chosen"), [(2e-3, "cpu"), (1e-4, "cuda:0")])
def test_the_faster_one_is_taken_and_both_are_told(
    monkeypatch: pytest.MonkeyPatch, precisions: dict[str, str], cuda: float, chosen: str
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(device_choice, "card_seconds", lambda *_, **given: asked.append(given) or cuda)
    lines: list[str] = []
    assert choose(lines) == torch.device(chosen)
    assert lines == [f"--device auto: {chosen} (updates/s before compilation, cpu: 1000, cuda:0: {1 / cuda:.0f})"]
    assert precisions == {"cpu": "fp32", "cuda:0": "tf32"}, "each is measured in what it will compute in"
    assert asked == [{"precision": "tf32", "launch": 4}]


@pytest.mark.parametrize(
    "error",
    [
        torch.AcceleratorError("CUDA error: no kernel image is available for execution on the device"),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 MiB"),
        RuntimeError("CUDA error: CUDA-capable device(s) is/are busy or unavailable"),
        DeviceError("cuda:0 cannot be used any more: an illegal memory access"),
    ],
)
def test_a_card_that_fails_means_the_cpu_and_is_quoted(
    monkeypatch: pytest.MonkeyPatch, precisions: dict[str, str], error: Exception
) -> None:
    def fails(*_: object, **__: object) -> float:
        raise error

    monkeypatch.setattr(device_choice, "card_seconds", fails)
    lines: list[str] = []
    assert choose(lines) == CPU
    assert len(lines) == 1
    assert lines[0].startswith("--device auto: cpu, because cuda:0 cannot be used: ")
    assert str(error) in lines[0]


def test_what_only_one_device_has_decides(monkeypatch: pytest.MonkeyPatch, precisions: dict[str, str]) -> None:
    monkeypatch.setattr(device_choice, "card_seconds", lambda *_, **__: 1.0)  # slow
    lines: list[str] = []
    assert choose(lines, "tf32") == CARD
    assert lines == ["--device auto: cuda:0, because cpu cannot be used: --precision tf32: the CPU has no tf32"]

    def fails(*_: object, **__: object) -> float:
        raise RuntimeError("no kernel image")

    monkeypatch.setattr(device_choice, "card_seconds", fails)
    with pytest.raises(DeviceError, match=r"no tf32; RuntimeError: no kernel image"):
        choose(lines, "tf32")


def test_memory_that_runs_out_in_a_capture_is_told_by_the_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> Callable[[], None]:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("rlz.learning.engine.cuda_graph", fails)
    monkeypatch.setattr(graphs, "usable", lambda _: True)
    init = device_choice.Engine.__init__

    def graphed(engine: Any, *arguments: Any, **values: Any) -> None:
        init(engine, *arguments, **values)
        engine._may_graph = True

    monkeypatch.setattr(device_choice.Engine, "__init__", graphed)
    with pytest.raises(torch.OutOfMemoryError):
        card_seconds(make_sac(), make_batch(), CPU, precision="fp32", launch=2)


# -- finding one ---------------------------------------------------------------------------------------------------


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert find_device("auto") == find_device("cpu") == CPU
    with pytest.raises(DeviceError, match="--device cuda:1: torch finds no CUDA device here;"):
        find_device("cuda:1")
    with pytest.raises(DeviceError, match="not a device"):
        find_device("gpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(device_choice, "refusal", lambda: None)
    assert find_device("auto") == find_device("cuda") == CARD
    assert find_device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(DeviceError, match="cuda:0 to cuda:1"):
        find_device("cuda:2")


def test_a_driver_without_a_card_is_asked_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fake: the driver's files. What CUDA says is real, here that there is no driver."""
    monkeypatch.setattr(device_choice, "has_driver", lambda: True)
    if torch.cuda.is_available():
        pytest.skip("there is a card")
    lines: list[str] = []
    assert find_device("auto", lines.append) == CPU
    assert lines[0].startswith("--device auto: cpu, because CUDA cannot be used: RuntimeError: ")
    assert "driver" in lines[0]
    with pytest.raises(DeviceError, match=r"torch finds no CUDA device here \(RuntimeError: .*driver"):
        find_device("cuda")


def test_a_full_card_is_seen_by_a_small_product() -> None:
    assert refusal(CPU) is None
    assert "not compiled with XPU" in str(refusal(torch.device("xpu", 0)))


def test_without_a_card_nothing_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> torch.device:
        raise AssertionError("measured")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(learner_module, "fastest_device", fails)
    assert Run(tmp_path, config(device="auto")).learner()._parts.devices[0] == CPU


@pytest.mark.parametrize("options", [{}, {"prioritized": True}, {"replay_device": "host"}])
def test_with_a_card_the_measurement_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(device_choice, "refusal", lambda: None)
    monkeypatch.setattr(learner_module, "fastest_device", lambda *_, **__: CPU)
    assert Run(tmp_path, config(device="auto", **options)).learner()._parts.devices[0] == CPU
