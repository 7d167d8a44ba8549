"""The programs that measure one side alone, with tiny networks."""

import json
import sys

import pytest
from machines import config

from rlz.bench.children import Child
from rlz.hardware.profile_model import MatrixProduct, Memory, Sampling, Transport, UpdateRate


def test_a_sampler_alone() -> None:
    job = json.dumps(config(hidden="8").model_dump(mode="json"))
    with Child([sys.executable, "-m", "rlz.hardware.sampling", job]) as child:
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
    from rlz.hardware.updates import Bench

    seen: list[int] = []

    def flops(device: str, dtype: str, rows: int, width: int) -> float:
        if dtype == "bf16":
            seen.append(rows)
        return rows * 1e6 / (slower if dtype == "bf16" else 1.0)

    bench = Bench(config(hidden="8", batch_size=16, compile=False), [1], 0.01)
    monkeypatch.setattr(bench, "_flops", flops)
    tasks = {task.name: task for task in bench.tasks()}
    product = tasks["matrix products on cpu, bf16, 1 thread"].work()
    assert product is not None
    assert seen == shapes
    assert product["product"]["flops"] == pytest.approx(shapes[-1] * 1e6 / slower)
    monkeypatch.setattr("rlz.hardware.updates.rate", lambda *_: (100.0, 0.1))
    found = tasks["updates on cpu, eager, bf16, batch 16, 1 thread"].work()
    assert (found is not None) == bool(updates)


@pytest.mark.slow
def test_updates_alone() -> None:
    run = config(hidden="8", batch_size=16, compile=False)
    job = json.dumps({"config": run.model_dump(mode="json"), "threads": [1], "seconds": 0.02})
    lines = []
    with Child([sys.executable, "-m", "rlz.hardware.updates", job]) as child:
        while (line := child.line(90.0)) is not None:
            lines.append(line)
    planned = lines[0]["plan"]
    assert planned[0] == "updates on cpu, eager, fp32, batch 16, 1 thread"
    updates = [UpdateRate.model_validate(line["update"]) for line in lines if "update" in line]
    assert {rate.batch_size for rate in updates} == {16, 1024, 8192}
    products = [MatrixProduct.model_validate(line["product"]) for line in lines if "product" in line]
    assert [product.dtype for product in products] == ["fp32", "bf16"]
    assert all(product.flops > 0 for product in products)
    assert [line["done"] for line in lines if "done" in line] + [
        line["error"].partition(":")[0] for line in lines if "error" in line and line["error"].startswith("updates on")
    ] == planned
