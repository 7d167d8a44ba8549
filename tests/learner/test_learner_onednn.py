"""Products of a compiled update by oneDNN: the rewritten update is the same function, also as machine code."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from rlz.algorithms.base import ACTOR, CRITIC_TARGET, WHOLE, Batch
from rlz.algorithms.sac import Sac
from rlz.algorithms.td3 import Td3
from rlz.learning import compile_helper
from support.algorithms import made

aten = torch.ops.aten
ROWS, OBS, ACTION = 16, 5, 2
SHAPE = {"hidden": (8, 6), "layer_norm": True, "n_critics": 3}


@pytest.fixture(scope="module")
def onednn() -> Any:
    from rlz.learning import onednn

    return onednn


@pytest.fixture(scope="module")
def trace() -> Any:
    from torch.fx.experimental.proxy_tensor import make_fx

    return make_fx


def sac(bf16: bool = False, **shape: Any) -> Sac:
    found = made(Sac, OBS, ACTION, precision="bf16" if bf16 else "fp32", **SHAPE, **shape)
    found.critic = replace(found.critic, activation="tanh")
    return found


def td3() -> Td3:
    return made(Td3, OBS, ACTION, hidden=(8,))


def inputs(algorithm: Any, dtype: torch.dtype = torch.float32) -> tuple[Any, ...]:
    random = torch.Generator().manual_seed(3)
    state = algorithm.init(random, dtype)
    rows = torch.randn(ROWS, 2 * OBS + ACTION + 2, generator=random, dtype=dtype)
    fields = rows.split([OBS, ACTION, OBS, 1, 1], dim=1)
    batch = Batch(fields[0], fields[1].tanh(), fields[2], fields[3][:, 0], fields[4][:, 0].fill_(0.99))
    noise = torch.randn(algorithm.noise_shape(ROWS), generator=random, dtype=dtype)
    return state, batch, noise, torch.tensor(1e-3, dtype=torch.float64)


def product_nodes(program: Any) -> list[Any]:
    return [node for node in program.graph.nodes if node.target in (aten.mm.default, aten.bmm.default)]


def products(program: Any) -> list[tuple[int, ...]]:
    """Rows, inner size and columns of the products that are left in a program."""
    found = [node.args for node in product_nodes(program)]
    return [(*left.meta["val"].shape[-2:], right.meta["val"].shape[-1]) for left, right in found]


@pytest.mark.parametrize(
    ("algorithm", "kind"), [(sac(), WHOLE), (sac(), ACTOR), (td3(), CRITIC_TARGET), (td3(), WHOLE)], ids=str
)
def test_the_rewritten_update_is_the_same_function(onednn, trace, algorithm, kind):
    given = inputs(algorithm)

    def update(*arguments: Any) -> Any:
        new, metrics, checks, _ = algorithm.update(*arguments, kind)
        return [*new, metrics, checks]

    with torch.no_grad():
        program = trace(update)(*given)
        expected = program(*given)
        assert onednn.rewrite(program) >= 5
        found = program(*given)
    for want, got in zip(expected, found, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5, equal_nan=True)
    assert all(1 in sizes for sizes in products(program)), "only products with a vector are left"


def test_products_in_other_precisions_are_left_alone(onednn, trace):
    for algorithm, dtype in ((sac(bf16=True), torch.float32), (sac(), torch.float64)):
        given = inputs(algorithm, dtype)
        with torch.no_grad():
            program = trace(partial(algorithm.update, kind=WHOLE))(*given)
        others = [node for node in product_nodes(program) if node.meta["val"].dtype != torch.float32]
        assert len(others) > 5
        heads = len(product_nodes(program)) - len(others)  # in float32 whatever the others are in
        assert onednn.rewrite(program) <= heads
        assert all(node in program.graph.nodes for node in others)


def tiny(x: Tensor, weight: Tensor, stack: Tensor) -> tuple[Tensor, ...]:
    """Every form of product that updates have: forwards, of a stack, with transposed operands, with few columns."""
    hidden = torch.relu(x @ weight)
    stacked = torch.relu(hidden.expand(2, *hidden.shape) @ stack)
    slope = stacked @ stack.mT
    return hidden, stacked, slope, hidden.T @ slope[0], x.T @ hidden[:, :3], stacked.mT @ slope


def tiny_inputs() -> tuple[Tensor, ...]:
    random = torch.Generator().manual_seed(5)
    shapes = (ROWS, 5), (5, 4), (2, 4, 6)
    return tuple(torch.randn(shape, generator=random) for shape in shapes)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("broken", [False, True], ids=["rewritten", "fallback"])
def test_machine_code_gives_the_same_and_does_without_where_the_compiler_differs(
    onednn, trace, monkeypatch, capsys, broken
):
    calls = []

    def rewrite(program: Any) -> int:
        calls.append(onednn_rewrite(program))
        if broken:
            raise AttributeError("another compiler")
        return calls[-1]

    onednn_rewrite = onednn.rewrite
    monkeypatch.setattr(onednn, "faster", lambda: True)
    monkeypatch.setattr(onednn, "rewrite", rewrite)
    given = tiny_inputs()
    options = {key: value for key, value in compile_helper.OPTIONS.items() if key != "aot_inductor.package"}
    monkeypatch.setattr(compile_helper, "OPTIONS", options)

    def traced(*, native: bool) -> Any:
        assert not native
        return compile_helper.Traced(trace(tiny)(*given), [])

    library = compile_helper._library(traced, given, torch.device("cpu"), dense=False)
    assert calls == [6]
    assert ("another compiler" in capsys.readouterr().err) == broken
    found = torch._export.aot_load(library, "cpu")(*given)
    for got, want in zip(found, tiny(*given), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_the_choice_is_by_a_clear_margin(onednn, monkeypatch):
    slow = {"mm": 5e-4, "linear": 5e-4}
    now = [0.0]

    def product(name: str) -> Any:
        def run(*_: Tensor) -> None:
            now[0] += slow[name]

        return run

    monkeypatch.setattr(onednn.time, "thread_time", lambda: now[0])
    monkeypatch.setattr(torch, "mm", product("mm"))
    monkeypatch.setattr(onednn, "linear", product("linear"))
    for factor, expected in ((1.0, False), (0.9, False), (0.5, True), (2.0, False)):
        slow["linear"] = factor * slow["mm"]
        onednn.faster.cache_clear()
        assert onednn.faster() is expected
    onednn.faster.cache_clear()
