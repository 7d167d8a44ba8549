"""Launches as graphs. On the CPU a "graph" is the work itself: everything but the capture is tested there."""

from itertools import pairwise
from typing import Any

import pytest
import torch

from rlz.algorithms.base import Algorithm, Batch
from rlz.errors import NonFiniteError
from rlz.learning import engine as engine_module
from rlz.learning import swap as swap_module
from rlz.learning.compiled import layouts
from rlz.learning.device_replay import DeviceReplay
from rlz.learning.engine import Engine, EnginePlan
from rlz.learning.executors import EagerExecutor
from rlz.learning.graphs import GraphedLaunches, orders
from rlz.learning.launches import FedRows
from support.executors import make_batch, make_sac, make_td3
from support.launches import MOST, ROWS, Made, Work, kinds, make_engine, make_launches, on, plain

CPU = torch.device("cpu")
both = pytest.mark.parametrize("algorithm", [make_sac(), make_td3()], ids=["sac", "td3"])
gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device"),
]


@both
def test_a_launch_is_its_updates_one_after_the_other(algorithm: Algorithm[Any]) -> None:
    one, other = make_launches(algorithm), make_launches(algorithm)
    eager = EagerExecutor(algorithm)
    one.run(eager, kinds(algorithm, 5, MOST))
    other.draw(MOST)
    metrics = []
    for index, kind in enumerate(kinds(algorithm, 5, MOST)):
        inputs = other.inputs
        metrics.append(
            eager(
                inputs.state, inputs.failed, other.batch(index), other.noise[index], inputs.learning_rate, kind
            ).metrics
        )
    torch.testing.assert_close(one.means.take(), torch.stack(metrics).nanmean(0), equal_nan=True)
    assert one.means.take().isnan().all(), "taken"
    assert all(torch.equal(a, b) for a, b in zip(one.inputs.state, other.inputs.state, strict=True))
    assert len(set(one.indices.flatten().tolist())) > ROWS, "each update has rows of its own"


@both
def test_capturing_leaves_state_and_random_stream_as_they_were(algorithm: Algorithm[Any]) -> None:
    launches, untouched = make_launches(algorithm), make_launches(algorithm)
    eager = EagerExecutor(algorithm)
    graphs = GraphedLaunches(launches, eager, eager, algorithm.cycle, plain)
    for done, count in ((0, 4), (4, 1), (5, 1), (6, 4)):
        graphs.run(kinds(algorithm, done, count))
        untouched.run(eager, kinds(algorithm, done, count))
    assert all(torch.equal(a, b) for a, b in zip(launches.inputs.state, untouched.inputs.state, strict=True))
    assert int(launches.inputs.state.updates) == 10


def test_there_are_no_more_graphs_than_orders_of_kinds() -> None:
    assert orders(("a",), 8) == {("a",) * 8}
    assert orders(["a"] * 999 + ["b"], 2) == {("a", "a"), ("a", "b"), ("b", "a")}
    assert orders((None, "b"), 1) == {("b",)}


@both
@pytest.mark.parametrize("weights", [False, True])
def test_updates_of_batches_from_the_host_are_the_same_in_a_graph(
    monkeypatch: pytest.MonkeyPatch, algorithm: Algorithm[Any], weights: bool
) -> None:
    monkeypatch.setattr(engine_module, "cuda_graph", plain)

    def batch(step: int) -> Batch:
        found = make_batch(step)
        return (
            found._replace(weight=torch.rand(16, generator=torch.Generator().manual_seed(step))) if weights else found
        )

    layout, lines = layouts(batch(0).tensors()), []
    plan = EnginePlan(compile=False, threads=1)
    settings: dict[str, Any] = {"layout": layout, "device": CPU, "seed": 3, "plan": plan, "log": lines.append}
    for cycle in (algorithm.cycle, algorithm.sides[1].cycle):
        eager, graphed = (Engine(algorithm, on(CPU, algorithm), cycle=cycle, **settings) for _ in range(2))
        graphed._feed(FedRows(layout, CPU), 16)
        graphed._may_graph = True
        for step in range(6):
            want, got = eager.update(batch(step), 1e-3), graphed.update(batch(step), 1e-3)
            assert torch.equal(eager.take_metrics().nan_to_num(-1), graphed.take_metrics().nan_to_num(-1))
            if want is not None:
                assert got is not None
                assert torch.equal(want, got)
        assert graphed.graphed
        assert all(torch.equal(a, b) for a, b in zip(eager.settle(), graphed.settle(), strict=True))
        want_failure, got_failure = (engine.failure(batch(5)) for engine in (eager, graphed))
        assert all(torch.equal(want_failure[name], got_failure[name]) for name in want_failure)


def test_a_graph_that_does_something_else_is_not_used() -> None:
    algorithm = make_sac()
    launches = make_launches(algorithm)
    before = [tensor.clone() for tensor in launches.inputs.state]

    def wrong(work: Work, generator: torch.Generator) -> Work:
        def replay() -> None:
            work()
            launches.inputs.state.critic.mul_(1.001)

        return replay

    with pytest.raises(ValueError, match="whole update: critic differs by"):
        GraphedLaunches(launches, EagerExecutor(algorithm), EagerExecutor(algorithm), algorithm.cycle, wrong)
    assert all(torch.equal(a, b) for a, b in zip(launches.inputs.state, before, strict=True))


def test_an_engine_uses_graphs_for_every_size_of_a_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "cuda_graph", plain)
    algorithm, lines = make_td3(), []
    graphed, eager = make_engine(algorithm, lines), make_engine(algorithm, [])
    graphed._may_graph = True
    for count in (1, 4, 3, 4):
        graphed.launch(count, 1e-3)
        for _ in range(count):
            eager.launch(1, 1e-3)
        assert torch.equal(graphed.take_metrics().isnan(), eager.take_metrics().isnan()), "the kinds keep their order"
    assert graphed.graphed
    assert not eager.graphed
    assert lines == ["eager updates are CUDA graphs now (checked against eager ones)"]
    assert int(graphed.settle().updates) == 12
    assert int(graphed.settle().actor_updates) == 6


@both
def test_compiled_updates_are_captured_anew(monkeypatch: pytest.MonkeyPatch, algorithm: Algorithm[Any]) -> None:
    monkeypatch.setattr(engine_module, "cuda_graph", plain)
    monkeypatch.setattr(swap_module, "Compilation", Made)
    lines: list[str] = []
    engine = make_engine(algorithm, lines, compile=True)
    engine._may_graph = True
    assert engine._swap is not None
    engine._swap._poll_at = float("inf")
    engine.launch(4, 1e-3)
    engine._swap._poll_at = 0.0
    engine.launch(3, 1e-3)
    assert lines == [
        "eager updates are CUDA graphs now (checked against eager ones)",
        "updates are compiled now (checked against an eager one)",
        "compiled updates are CUDA graphs now (checked against eager ones)",
    ]
    assert engine.executor == "compiled"
    assert int(engine.settle().updates) == 7


def test_an_engine_goes_on_without_graphs_when_they_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(work: Work, generator: torch.Generator) -> Work:
        raise RuntimeError("operation not permitted\nwhen stream is capturing")

    monkeypatch.setattr(engine_module, "cuda_graph", fails)
    algorithm, lines = make_sac(), []
    engine, plain_one = make_engine(algorithm, lines), make_engine(algorithm, [])
    engine._may_graph = True
    for _ in range(3):
        for one in (engine, plain_one):
            one.launch(4, 1e-3)
        assert torch.equal(engine.take_metrics(), plain_one.take_metrics())
    assert lines == [
        "no CUDA graph, eager updates are launched one operation after the other: RuntimeError: operation not "
        "permitted when stream is capturing"
    ]


def test_the_rows_of_the_update_that_failed_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "cuda_graph", plain)
    engine = make_engine(make_sac(), [])
    engine._may_graph = True
    rows = engine._launches
    assert rows is not None
    assert isinstance(rows.rows, DeviceReplay)
    for _ in range(100):
        engine.launch(4, 1e-3)
        rows.rows._rows[7].view(torch.float32)[8] = float("inf")  # the reward of one row
        try:
            engine.launch(4, 1e-3)
        except NonFiniteError:
            break
        rows.rows._rows[7].view(torch.float32)[8] = 0.0
    failure = engine.failure(None)
    assert failure["batch.reward"].isinf().any()


@both
class TestOnCuda:
    pytestmark = gpu

    def test_graphs_agree_with_eager_launches(self, algorithm: Algorithm[Any]) -> None:
        device, lines = torch.device("cuda", 0), []
        engine, eager = make_engine(algorithm, lines, device), make_engine(algorithm, [], device)
        eager._may_graph = False
        for count in (4, 1, 3, 4):
            for one in (engine, eager):
                one.launch(count, 1e-3)
        assert engine.graphed, lines
        assert int(engine.settle().updates) == 12
        assert all(torch.isfinite(tensor).all() for tensor in engine.settle() if tensor.is_floating_point())

    def test_draws_in_a_graph_differ_from_launch_to_launch(self, algorithm: Algorithm[Any]) -> None:
        engine = make_engine(algorithm, [], torch.device("cuda", 0))
        launches = engine._launches
        assert launches is not None
        seen = []
        for _ in range(3):
            engine.launch(4, 1e-3)
            seen.append((launches.indices.clone(), launches.noise.clone()))
        assert engine.graphed
        for (a, x), (b, y) in pairwise(seen):
            assert not torch.equal(a, b)
            assert not torch.equal(x, y)
        assert int(launches.indices.max()) < 60

    def test_updates_of_batches_from_the_host_are_graphs_too(self, algorithm: Algorithm[Any]) -> None:
        device, lines = torch.device("cuda", 0), []
        batch = make_batch()._replace(weight=torch.rand(16))
        batch = Batch(*(tensor.to(device) for tensor in batch.tensors()))
        settings: dict[str, Any] = {"layout": layouts(batch.tensors()), "device": device, "seed": 3}
        settings |= {"plan": EnginePlan(compile=False), "log": lines.append}
        graphed, eager = (Engine(algorithm, on(device, algorithm), **settings) for _ in range(2))
        eager._may_graph = False
        for _ in range(4):
            got, want = graphed.update(batch, 1e-3), eager.update(batch, 1e-3)
            assert got is not None
            assert want is not None
            torch.testing.assert_close(got, want, rtol=1e-2, atol=1e-3)
        assert graphed.graphed, lines
        assert not eager.graphed
