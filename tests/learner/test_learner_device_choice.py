"""`--device auto`: the faster one by measurement, and nothing is measured without a card."""

from pathlib import Path
from typing import Any

import pytest
import torch
from learner_tools import Run, config
from test_learner_executors import make_batch, make_sac, make_td3

from rlz.algorithms.base import Algorithm
from rlz.learning import device_choice
from rlz.learning.device_choice import fastest_device, seconds_per_update
from rlz.workers import learner as learner_module

CPU = torch.device("cpu")


@pytest.mark.parametrize("algorithm", [make_sac(), make_td3()], ids=["sac", "td3"])
def test_an_update_is_timed(monkeypatch: pytest.MonkeyPatch, algorithm: Algorithm[Any]) -> None:
    monkeypatch.setattr(device_choice, "MEASURE_S", 0.05)
    before = torch.get_num_threads()
    assert 1e-6 < seconds_per_update(algorithm, make_batch(), CPU, graphs=True) < 1.0
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(("cpu", "cuda", "chosen"), [(1e-3, 2e-3, "cpu"), (1e-3, 1e-4, "cuda:0")])
def test_the_faster_one_is_taken_and_both_are_told(
    monkeypatch: pytest.MonkeyPatch, cpu: float, cuda: float, chosen: str
) -> None:
    def measured(algorithm: Algorithm[Any], batch: object, device: torch.device, *, graphs: bool) -> float:
        return cpu if device.type == "cpu" else cuda

    monkeypatch.setattr(device_choice, "seconds_per_update", measured)
    lines: list[str] = []
    assert fastest_device(make_sac(), make_batch(), graphs=True, log=lines.append) == torch.device(chosen)
    assert lines == [
        f"--device auto: {chosen} (updates/s before compilation, cpu: {1 / cpu:.0f}, cuda:0: {1 / cuda:.0f})"
    ]


def test_without_a_card_nothing_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> torch.device:
        raise AssertionError("measured")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(learner_module, "fastest_device", fails)
    assert Run(tmp_path, config(device="auto")).learner()._device == CPU


def test_with_a_card_the_measurement_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(learner_module, "fastest_device", lambda *_, **__: CPU)
    assert Run(tmp_path, config(device="auto")).learner()._device == CPU


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device")
def test_an_update_is_timed_on_a_card() -> None:
    seconds = [seconds_per_update(make_sac(), make_batch(), torch.device("cuda", 0), graphs=on) for on in (False, True)]
    assert seconds[1] < seconds[0], "a graph saves launches"
