"""Dense layers of `rlz._native` as operators: the same networks, steps and updates as torch makes."""

from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rlz.algorithms.base import ACTOR, CRITIC_TARGET, WHOLE, Batch
from rlz.algorithms.optim import adam, gradient, polyak
from rlz.algorithms.sac import Sac
from rlz.algorithms.td3 import Td3
from rlz.learning.compiled import CompileJob
from rlz.learning.executors import EagerExecutor
from rlz.networks import dense
from rlz.networks.mlp import ACTIVATIONS, Mlp
from support.algorithms import made

ROWS, OBS, ACTION = 33, 7, 3


@pytest.fixture(scope="module")
def native() -> Any:
    from rlz.learning import native

    return native


def sac() -> Sac:
    return made(Sac, OBS, ACTION, hidden=(40, 40), n_critics=3)


def td3() -> Td3:
    found = made(Td3, OBS, ACTION, hidden=(48,), layer_norm=True)
    found.critic = replace(found.critic, activation="silu")
    found.actor = replace(found.actor, activation="tanh")
    return found


def inputs(algorithm: Any, dtype: torch.dtype) -> tuple[Any, ...]:
    random = torch.Generator().manual_seed(3)
    state = algorithm.init(random, torch.float64)
    rows = torch.randn(ROWS, 2 * OBS + ACTION + 2, generator=random, dtype=torch.float64)
    noise = torch.randn(algorithm.noise_shape(ROWS), generator=random, dtype=torch.float64)
    state = type(state)(*(tensor.to(dtype) if tensor.is_floating_point() else tensor for tensor in state))
    fields = rows.to(dtype).split([OBS, ACTION, OBS, 1, 1], dim=1)
    batch = Batch(fields[0], fields[1].tanh(), fields[2], fields[3][:, 0], fields[4][:, 0].fill_(0.99))
    return state, batch, noise.to(dtype), torch.tensor(1e-3, dtype=torch.float64)


@pytest.mark.parametrize(("members", "first"), [(None, None), (1, None), (5, None), (3, 2)])
@pytest.mark.parametrize("hidden", [(), (9,), (40, 7, 33)], ids=str)
def test_networks_and_their_gradients_agree_with_float64(members, first, hidden):
    for activation, norm in product(ACTIVATIONS, (False, True)):
        network = Mlp("net", OBS, hidden, 2, activation, norm, members)
        random = torch.Generator().manual_seed(1)
        flat = network.init(random, torch.float64)
        x = torch.randn(ROWS, OBS + 2, generator=random, dtype=torch.float64)[:, 1:-1]  # views of wider rows
        weight = torch.randn(2, generator=random, dtype=torch.float64)
        results = []
        for tensors, operators in (((flat, x, weight), False), ((flat.float(), x.float(), weight.float()), True)):
            flat_, x_, weight_ = (tensor.detach().requires_grad_() for tensor in tensors)
            if operators:
                with dense.operators():
                    y = network(flat_, x_, first=first)
                    without = network(flat_.detach(), x_.detach(), first=first)
                assert torch.equal(y, without)
                assert y.grad_fn is not None
                assert "_Stack" in type(y.grad_fn.next_functions[0][0] if members is None else y.grad_fn).__name__
            else:
                y = network(flat_, x_, first=first)
            (y * weight_).square().sum().backward()
            results.append((y.detach(), flat_.grad, x_.grad))
        for want, got in zip(*results, strict=True):
            size = float(want.abs().max())
            torch.testing.assert_close(got.double(), want, rtol=0, atol=3e-5 * size)


class _Rounded(torch.autograd.Function):
    """A product in float64 whose factors are rounded to bf16, forwards and backwards."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        x, weight = x.bfloat16().double(), weight.bfloat16().double()
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx: Any, slope: torch.Tensor) -> Any:
        (x, weight), slope = ctx.saved_tensors, slope.bfloat16().double()
        return slope @ weight.mT, x.mT @ slope


class RoundedMlp(Mlp):
    """What bf16 means: the float64 network with the factors of its hidden layers rounded, and nothing else."""

    def _linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *, bf16: bool) -> torch.Tensor:
        return (_Rounded.apply(x, weight) if bf16 else x @ weight) + self._row(bias)


@pytest.mark.skipif(not dense.has_bf16(), reason="this processor has no products of bf16")
@pytest.mark.parametrize("members", [None, 3])
def test_networks_in_bf16_round_the_factors_and_nothing_else(members):
    """The rounded float64 network is the reference, because a plain one says little.

    A factor is off by up to 2^-8, and where that turns the sign of a ReLU's input, a whole term of the gradient comes
    or goes: float64 with rounded factors is up to 0.2 away from float64 without, in gradients of so few rows. From the
    rounded one float32 sums are 1e-7 apart. They may round a number on its way to the next layer to the other side:
    2^-8 of one of 33 x 40, 1e-4 of all of them. The limit allows three.
    """
    for activation, norm in product(ACTIVATIONS, (False, True)):
        plain = Mlp("net", OBS, (40, 33), 2, activation, norm, members)
        rounded = RoundedMlp("net", OBS, (40, 33), 2, activation, norm, members, bf16=True)
        random = torch.Generator().manual_seed(1)
        flat = plain.init(random, torch.float64)
        x = torch.randn(ROWS, OBS, generator=random, dtype=torch.float64)
        weight = torch.randn(2, generator=random, dtype=torch.float64)
        results = []
        networks = (plain, torch.float64), (rounded, torch.float64), (plain.in_precision("bf16"), torch.float32)
        for mlp, dtype in networks:
            flat_, x_, weight_ = (tensor.to(dtype, copy=True).requires_grad_() for tensor in (flat, x, weight))
            with dense.operators():
                y = mlp(flat_, x_)
            (y * weight_).square().sum().backward()
            assert {y.dtype, flat_.grad.dtype, x_.grad.dtype} == {dtype}
            results.append((y.detach(), flat_.grad, x_.grad))
        for without, want, got in zip(*results, strict=True):
            near, far = (float((got.double() - other).norm() / other.norm()) for other in (want, without))
            assert near < 3e-4 < far, (activation, norm, near, far)


def test_optimiser_steps_agree_with_float64():
    random = torch.Generator().manual_seed(1)
    p, mean, grad, online = (torch.randn(5001, generator=random, dtype=torch.float64) for _ in range(4))
    square, step, rate = mean.square() * 1e-3, torch.tensor(7), torch.tensor(1e-3, dtype=torch.float64)
    expected = [*adam(p, mean, square, grad, step, rate), polyak(p, online, 0.005)]
    p_, mean_, square_, grad_, online_ = (tensor.float() for tensor in (p, mean, square, grad, online))
    with dense.operators():
        assert dense.usable(p_)
        found = [*adam(p_, mean_, square_, grad_, step, rate), polyak(p_, online_, 0.005)]
    for want, got in zip(expected, found, strict=True):
        assert got.dtype == torch.float32
        torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-6)


def test_what_the_operators_do_not_take_stays_with_torch(monkeypatch):
    monkeypatch.setattr("rlz._native.dense_bf16", lambda: False)  # as where the processor has no such products
    network = Mlp("net", OBS, (9,), 2)
    flat, x = network.init(), torch.randn(ROWS, OBS)
    assert not dense.usable(flat)
    with dense.operators():
        assert not dense.usable(flat.double())
        assert not dense.usable(flat.to("meta"))
        half = Mlp("net", OBS, (9,), 2, bf16=True)
        assert torch.equal(half(flat, x), torch.relu(
            torch.matmul(x.bfloat16(), half.unflatten(flat)[0].bfloat16()).float() + half.unflatten(flat)[1]
        ) @ half.unflatten(flat)[2] + half.unflatten(flat)[3])  # fmt: skip
        many = torch.func.vmap(network, in_dims=(None, 0))(flat, torch.stack([x, 2 * x]))
    torch.testing.assert_close(many[1], network(flat, 2 * x))


def test_a_loss_may_use_a_network_twice():
    network = Mlp("net", OBS, (40,), 2)
    flat, x = network.init(torch.Generator().manual_seed(1)), torch.randn(ROWS, OBS)

    def loss(flat: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = network(flat, x) * network(flat, 2 * x)
        return y.sum(), y

    want, value, _ = gradient(loss, flat)
    with dense.operators():
        got, same, _ = gradient(loss, flat)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(same, value, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("algorithm", "kind"), [(sac(), WHOLE), (sac(), ACTOR), (td3(), CRITIC_TARGET), (td3(), WHOLE)], ids=str
)
def test_a_traced_update_is_the_same_function(native, algorithm, kind):
    from torch.fx.experimental.proxy_tensor import make_fx

    expected = algorithm.update(*inputs(algorithm, torch.float64), kind)
    given = inputs(algorithm, torch.float32)

    def update(*arguments: Any) -> Any:
        new, metrics, checks, _ = algorithm.update(*arguments, kind)
        return [*new, metrics, checks]

    with torch.no_grad(), dense.operators():
        program = make_fx(update)(*given)
    assert native.dense_calls(program)
    assert not [node for node in program.graph.nodes if node.target in (torch.ops.aten.mm, torch.ops.aten.bmm)]
    native.narrow(program)
    parts = [node.args[5:] for node in native.dense_calls(program) if len(node.args) == 7]
    wanted = [part for part in parts if part[1]]
    assert wanted == ([] if kind == CRITIC_TARGET else [(OBS, ACTION)]), "the actor's loss asks for actions alone"
    *new, metrics, checks = program(*given)
    for want, got in zip((*expected.state, expected.metrics, expected.checks), (*new, metrics, checks), strict=True):
        torch.testing.assert_close(got.double(), want.double(), rtol=2e-3, atol=2e-4, equal_nan=True)


def test_the_choice_is_by_what_compiled_updates_call(native, monkeypatch):
    from torch.fx.experimental.proxy_tensor import make_fx

    def through_python(*arguments: Any) -> None:
        raise AssertionError("an operator's way through Python takes longer than the products of a small network")

    algorithm = sac()
    with torch.no_grad(), dense.operators():
        program = make_fx(lambda *given: algorithm.update(*given, WHOLE)[1])(*inputs(algorithm, torch.float32))
    for name in ("_forward", "_backward"):
        monkeypatch.setattr(dense, name, through_python)
    calls = native.dense_calls(program)
    for node in calls:
        arguments = [native._example(argument) for argument in node.args]
        given = [one.clone() if isinstance(one, torch.Tensor) else one for one in arguments]
        dense.ready(node.target, *arguments)()
        for one, before in zip(arguments, given, strict=True):
            assert not isinstance(one, torch.Tensor) or torch.equal(one, before)
    monkeypatch.setattr(torch._ops.OpOverload, "__call__", through_python)
    assert native.faster(program) in (True, False)


def test_the_choice_is_by_the_time_of_all_calls(native, monkeypatch):
    from torch.fx.experimental.proxy_tensor import make_fx

    algorithm = sac()
    with torch.no_grad(), dense.operators():
        program = make_fx(lambda *given: algorithm.update(*given, WHOLE)[1])(*inputs(algorithm, torch.float32))
    for ratio, expected in ((0.9, True), (1.1, True), (1.3, False)):
        times = iter([ratio, 1.0] * 1000)
        monkeypatch.setattr(native, "_seconds", lambda work, times=times: next(times))
        assert native.faster(program) is expected


@pytest.mark.parametrize(
    ("precision", "own", "same"), [("bf16", True, True), ("bf16", False, False), ("fp32", True, False)]
)
def test_a_dense_update_in_bf16_is_compared_with_one_that_rounds_as_it_does(monkeypatch, precision, own, same):
    """torch rounds the sums of bf16 products too, which moves an actor's gradient by a quarter of it."""
    from rlz.learning import swap

    seen = []
    monkeypatch.setattr(swap, "disagreement", lambda *_, **__: seen.append(dense.usable(torch.zeros(1))))
    algorithm = sac()
    job = CompileJob(algorithm, (), "cpu", (WHOLE,))
    swapping = swap.Swap(job, EagerExecutor(algorithm), wait=False, urgent=False, precision=precision, trial=False)
    state, batch, noise, rate = inputs(algorithm, torch.float32)
    assert swapping._disagreement(SimpleNamespace(dense=own), state, rate, batch, noise, [1]) is None
    assert seen == [same]
