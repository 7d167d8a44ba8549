"""The programs that measure one side alone, with tiny networks."""

import json
import sys
from typing import Any

import pytest

from rlz._native import dense_bf16
from rlz.bench.children import Child
from rlz.planning.profile_model import MatrixProduct, Memory, Sampling, Transport, UpdateRate
from support.machines import config


def test_a_sampler_alone() -> None:
    job = json.dumps(config(hidden="8").model_dump(mode="json"))
    with Child([sys.executable, "-m", "rlz.planning.sampling", job]) as child:
        assert child.line(60.0) == {"ready": True}
        costs = child.ask({"do": "costs", "num_envs": [1, 4], "seconds": 0.2}, 60.0)
        rates = [child.ask({"do": "sample", "num_envs": envs, "seconds": 0.1}, 60.0) for envs in (1, 4)]
        transport = Transport.model_validate(child.ask({"do": "transport", "seconds": 0.02}, 60.0))
        memory = child.ask({"do": "memory", "threads": [1, 2], "seconds": 0.02}, 60.0)["memory"]
    sampling = Sampling.model_validate({**costs, "actor": tuple(costs["actor"]), "share_of_bare": 1.0, "rates": ()})
    assert [one.envs for one in sampling.actor] == [1, 4]
    assert 0 < sampling.step_us.median <= sampling.step_us.p95 <= sampling.step_us.worst
    assert sampling.episode_length is None or sampling.episode_length >= 200
    assert all(rate["env_steps_per_s"] > 0 for rate in rates)
    assert (transport.row_bytes, transport.publish_us > 0) == (64, True)
    assert [Memory.model_validate(one).threads for one in memory] == [1, 2]


@pytest.mark.parametrize(("slower", "shapes", "updates"), [(70.0, [8], 0), (1.5, [8, 1024], 1)])
def test_a_dtype_that_is_emulated_is_given_up_early(
    monkeypatch: pytest.MonkeyPatch, slower: float, shapes: list[int], updates: int
) -> None:
    """One small product is enough to know; it is compared with a float32 one of the same size."""
    from rlz.planning.products import Products
    from rlz.planning.updates import Bench

    seen: list[int] = []

    def flops(_: Products, device: str, dtype: str, rows: int) -> float:
        if dtype == "bf16":
            seen.append(rows)
        return rows * 1e6 / (slower if dtype == "bf16" else 1.0)

    monkeypatch.setattr(Products, "_flops", flops)
    bench = Bench(config(hidden="8", batch_size=16, compile=False), [1], 0.01)
    tasks = {task.name: task for task in bench.tasks()}
    product = tasks["matrix products on cpu, bf16, 1 thread"].work()
    assert product is not None
    assert seen == shapes
    assert product["product"]["flops"] == pytest.approx(shapes[-1] * 1e6 / slower)
    monkeypatch.setattr("rlz.planning.updates.rate", lambda *_: (100.0, 0.1))
    found = tasks["updates on cpu, eager, bf16, batch 16, 1 thread"].work()
    assert (found is not None) == bool(updates)


def planned(**options: Any) -> list[str]:
    """Names of what would be measured with two numbers of threads."""
    from rlz.planning.updates import Bench

    return [task.name for task in Bench(config(hidden="8", batch_size=16, **options), [1, 2], 0.01).tasks()]


def test_every_dtype_is_measured_with_every_number_of_threads() -> None:
    names = planned()
    for dtype in ("fp32", "bf16"):
        for threads in ("1 thread", "2 threads"):
            assert f"matrix products on cpu, {dtype}, {threads}" in names


@pytest.mark.parametrize(
    ("capability", "precision", "measured"),
    [
        ((9, 0), "auto", "tf32"),
        ((9, 0), "fp32", "fp32"),
        ((9, 0), "bf16", "bf16"),
        ((7, 5), "auto", "fp32"),
        ((7, 5), "fp32", "fp32"),
        ((7, 5), "tf32", ""),  # the run would refuse it
    ],
)
def test_a_card_is_measured_in_the_precision_of_the_run(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], precision: str, measured: str
) -> None:
    for module in ("rlz.config.schema", "rlz.config.agreement"):  # both look for a driver
        monkeypatch.setattr(f"{module}.has_driver", lambda: True)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: capability)
    names = planned(precision=precision)
    updates = {name.split(", ")[2] for name in names if name.startswith("updates on cuda:0, ") and "batch 16" in name}
    other = {"fp32", "bf16"} if capability >= (8, 0) else set()
    assert updates - other <= {measured}
    for launch in (1, 32):  # updates that the card makes without the host
        assert (f"updates on cuda:0, compiled, {measured}, batch 16, {launch} in a launch" in names) == bool(measured)
    assert ("updates on cuda:0, compiled, bf16, batch 16, 32 in a launch" in names) == (capability >= (8, 0)), "offered"
    products = {name.split(", ")[1] for name in names if name.startswith("matrix products on cuda:0")}
    assert products == ({"fp32", "tf32", "bf16"} if capability >= (8, 0) else {"fp32"})


@pytest.mark.parametrize(
    ("error", "batch", "reason"),
    [(None, 1024, "not compiled before"), ("no compiler", 16, "cannot be compiled: no compiler")],
)
def test_an_update_that_is_not_compiled_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: str | None, batch: int, reason: str
) -> None:
    from rlz.planning import tasks, updates

    class Nothing:
        """A compilation that has nothing in the cache, and fails."""

        ready = False

        def __init__(self, job: object) -> None:
            self.error = error

        def __getattr__(self, name: str) -> Any:
            return lambda *_, **__: None

    monkeypatch.setattr(updates, "Compilation", Nothing)
    bench = updates.Bench(config(hidden="8", batch_size=16), [1], 0.01)
    name = f"updates on cpu, compiled, fp32, batch {batch}, 1 thread"
    for _ in range(2):  # the second time it is known
        tasks.run([task for task in bench.tasks() if task.name == name])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["plan"] for line in lines if "plan" in line] == [[name]] * 2
    said = [line["error"] for line in lines if "error" in line]
    assert len(said) == 2
    assert all(text.startswith(f"{name}: {reason}") for text in said)


def test_a_machine_without_an_environment() -> None:
    job = json.dumps({"width": 8, "threads": [1, 2]})
    with Child([sys.executable, "-m", "rlz.planning.machine", job]) as child:
        lines = []
        while (line := child.line(60.0)) is not None:
            lines.append(line)
        assert child.error() == ""
    assert [Memory.model_validate(line["memory"]).threads for line in lines if "memory" in line] == [1, 2]
    products = [MatrixProduct.model_validate(line["product"]) for line in lines if "product" in line]
    assert {(one.dtype, one.threads) for one in products if one.device == "cpu"} >= {
        ("fp32", 1),
        ("fp32", 2),
        ("bf16", 1),
    }
    assert lines[0]["plan"] == [line["done"] for line in lines if "done" in line]


@pytest.mark.slow
def test_updates_alone() -> None:
    run = config(hidden="8", batch_size=16, compile=False)
    job = json.dumps({"config": run.model_dump(mode="json"), "threads": [1], "seconds": 0.02})
    lines = []
    with Child([sys.executable, "-m", "rlz.planning.updates", job]) as child:
        child.send({"do": "measure"})
        while (line := child.line(90.0)) is not None:
            lines.append(line)
    planned = lines[0]["plan"]
    assert planned[0] == "updates on cpu, eager, fp32, batch 16, 1 thread"
    updates = [UpdateRate.model_validate(line["update"]) for line in lines if "update" in line]
    assert {rate.batch_size for rate in updates} == {16, 1024, 8192}
    products = [MatrixProduct.model_validate(line["product"]) for line in lines if "product" in line]
    own = ["fp32", "bf16"] if dense_bf16() else ["fp32"]
    expected = [("torch", "fp32"), ("torch", "bf16"), *(("rlz", dtype) for dtype in own)]
    assert [(product.library, product.dtype) for product in products] == expected
    assert all(product.flops > 0 for product in products)
    assert all(product.of_peak is not None for product in products if product.dtype in own)
    assert [line["done"] for line in lines if "done" in line] + [
        line["error"].partition(":")[0] for line in lines if "error" in line and line["error"].startswith("updates on")
    ] == planned


@pytest.mark.parametrize(
    ("options", "calls"), [({}, {5}), ({"replay_device": "host"}, set()), ({"prioritized": True}, set())]
)
def test_a_card_is_measured_with_rows_as_in_a_run(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], calls: set[int]
) -> None:
    """The CPU stands for the card: all but graphs and pinned memory."""
    import torch

    from rlz import envs
    from rlz.learning.engine import Engine
    from rlz.planning.updates import Bench, Draw, OnDevice

    seen: set[int] = set()
    launch = Engine.launch

    def noted(engine: Engine, count: int, rate: float) -> None:
        seen.add(count)
        launch(engine, count, rate)

    monkeypatch.setattr(Engine, "launch", noted)
    run = config(hidden="8", batch_size=16, compile=False, **options)
    bench, draw = Bench(run, [1], 0.01), Draw(envs.inspect_env(run, on_note=lambda _: None), 16)
    updates = OnDevice(run, bench._algorithm("fp32"), draw, torch.device("cpu"), "eager", "fp32", 5)
    per_second, ready = updates.rate(0.05, 0.0)
    updates.close()
    assert per_second > 10
    assert ready > 0
    assert seen == calls
