"""Dense layers by `rlz._native` (`rust/core/src/dense`): operators that run whole stacks of MLPs, Adam and Polyak in
one call each.

Networks and optimiser steps use them inside `with operators():`, which is how an update is traced that is compiled for
this CPU. Their gradients are operators too, so what is traced is one call for a stack's outputs and one for its
gradients, and everything else of a loss stays torch code. Outside they are what torch makes of them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor

from rlz import _native

LEAST = 1024
"""Numbers below which Adam and Polyak are left to torch: a temperature, for instance."""

SMALL = 1 << 16
"""Numbers below which a copy takes no longer than the call of the threads that would share it."""

_active = False


@contextmanager
def operators() -> Iterator[None]:
    """Inside, networks and optimiser steps on float32 tensors of the CPU are operators of `rlz._native`."""
    global _active
    before, _active = _active, True
    try:
        yield
    finally:
        _active = before


def has_bf16() -> bool:
    """The processor multiplies bf16, so that the operators have networks in bf16 too."""
    return _native.dense_bf16()


def commits(old: Tensor, new: Tensor) -> bool:
    """`commit` writes such a tensor of a state: large and flat."""
    return usable(old, new) and old.dim() == 1 and old.numel() >= LEAST and old.is_contiguous() and new.is_contiguous()


def usable(*tensors: Tensor) -> bool:
    """Inside `operators`, and these are tensors that the operators take."""
    return _active and all(
        tensor.dtype == torch.float32
        and tensor.device.type == "cpu"
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        for tensor in tensors
    )


def stack(flat: Tensor, x: Tensor, shape: Sequence[int]) -> Tensor:
    """Outputs [used, batch, outputs] of a stack of MLPs for x [batch, inputs], differentiable in both.

    `shape`: members, used (the first of them), inputs, outputs, index of the activation (relu, tanh, silu, elu), layer
    norm and bf16 (0 or 1 each), hidden sizes; flat parameters are in the order of `rlz.networks.mlp`. With bf16 the
    factors of the hidden layers' products are rounded; sums, what is between and the head are float32.
    """
    x = x if x.stride(-1) == 1 else x.contiguous()
    if torch.is_grad_enabled() and (flat.requires_grad or x.requires_grad):
        outputs: Tensor = _Stack.apply(flat, x, list(shape))
        return outputs
    y, _ = torch.ops.rlz.dense_forward(flat, x, list(shape), False)
    return y  # type: ignore[no-any-return]


class _Stack(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, flat: Tensor, x: Tensor, shape: list[int]) -> Tensor:
        y, kept = torch.ops.rlz.dense_forward(flat, x, shape, True)
        ctx.save_for_backward(flat, kept)
        ctx.shape = shape
        return y  # type: ignore[no-any-return]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        flat, kept = ctx.saved_tensors
        weights, inputs, _ = ctx.needs_input_grad
        columns = ctx.shape[2] if inputs else 0
        dflat, dx = torch.ops.rlz.dense_backward(flat, kept, dy.contiguous(), ctx.shape, weights, 0, columns)
        return dflat if weights else None, dx if inputs else None, None


# -- operators -------------------------------------------------------------------------------------------------------

_library = torch.library.Library("rlz", "FRAGMENT")  # type: ignore[no-untyped-call]

SCHEMAS = (
    "dense_forward(Tensor flat, Tensor x, int[] shape, bool keep) -> (Tensor y, Tensor kept)",
    "dense_backward(Tensor flat, Tensor kept, Tensor dy, int[] shape, bool weights, int first, int columns)"
    " -> (Tensor dflat, Tensor dx)",
    "dense_adam(Tensor p, Tensor mean, Tensor square, Tensor gradient, Tensor constants)"
    " -> (Tensor p, Tensor mean, Tensor square)",
    "dense_polyak(Tensor target, Tensor online, float tau) -> Tensor",
)
for _schema in SCHEMAS:
    _library.define(_schema, tags=(torch.Tag.needs_exact_strides,))  # type: ignore[no-untyped-call]


@cache
def library() -> ctypes.CDLL:
    """The functions of `rust/bindings/src/dense.rs`, which compiled updates then find by name as well."""
    return ctypes.CDLL(_native.__file__, mode=ctypes.RTLD_GLOBAL)


def ready(operator: Any, *inputs: Any) -> Callable[[], None]:
    """The C function behind `dense_forward` or `dense_backward` with all that it gets, for as often as one likes.

    It takes as long as in a compiled update; the operator spends ten times as much on a small network in Python.
    """
    like, arguments = _STACKS[operator]
    return _ready(*arguments(*inputs, *like(*inputs)))


def _call(name: str, *arguments: Any) -> None:
    _ready(name, *arguments)()


def _ready(name: str, *arguments: Any) -> Callable[[], None]:
    """Tensors go as addresses, lists of them as arrays of addresses, None as null."""
    function, converted = getattr(library(), f"rlz_dense_{name}"), [_argument(argument) for argument in arguments]

    def call(kept: Any = arguments) -> None:  # what the addresses are of
        if function(*converted):
            raise RuntimeError(f"dense_{name} failed; its message is above")

    return call


def _argument(argument: Any) -> Any:
    if isinstance(argument, Tensor):
        return ctypes.c_void_p(argument.data_ptr())
    if isinstance(argument, list):
        if argument and isinstance(argument[0], Tensor):
            return (ctypes.c_void_p * len(argument))(*(tensor.data_ptr() for tensor in argument))
        return (ctypes.c_int64 * len(argument))(*argument)
    if isinstance(argument, int):
        return ctypes.c_int64(argument)
    return ctypes.c_float(argument) if isinstance(argument, float) else argument


def _forward_like(flat: Tensor, x: Tensor, shape: list[int], keep: bool) -> tuple[Tensor, Tensor]:
    _, used, _, outputs, *_ = shape
    rows = x.shape[0]
    return x.new_empty(used, rows, outputs), x.new_empty(rows * _native.dense_kept(shape) if keep else 0)


def _forward(flat: Tensor, x: Tensor, shape: list[int], keep: bool) -> tuple[Tensor, Tensor]:
    y, kept = _forward_like(flat, x, shape, keep)
    _call(*_forward_arguments(flat, x, shape, keep, y, kept))
    return y, kept


def _forward_arguments(flat: Tensor, x: Tensor, shape: list[int], keep: bool, y: Tensor, kept: Tensor) -> Any:
    step = x.stride(0) if x.shape[0] > 1 else x.shape[1]
    return "forward", shape, len(shape), x.shape[0], flat, x, step, y, kept if keep else None


def _backward_like(
    flat: Tensor, kept: Tensor, dy: Tensor, shape: list[int], weights: bool, first: int, columns: int
) -> tuple[Tensor, Tensor]:
    dflat = torch.empty_like(flat) if weights else flat.new_empty(0)
    return dflat, flat.new_empty((dy.shape[1], columns) if columns else (0,))


def _backward(
    flat: Tensor, kept: Tensor, dy: Tensor, shape: list[int], weights: bool, first: int, columns: int
) -> tuple[Tensor, Tensor]:
    dflat, dx = _backward_like(flat, kept, dy, shape, weights, first, columns)
    _call(*_backward_arguments(flat, kept, dy, shape, weights, first, columns, dflat, dx))
    return dflat, dx


def _backward_arguments(
    flat: Tensor,
    kept: Tensor,
    dy: Tensor,
    shape: list[int],
    weights: bool,
    first: int,
    columns: int,
    dflat: Tensor,
    dx: Tensor,
) -> Any:
    into = dflat if weights else None, dx if columns else None
    return "backward", shape, len(shape), dy.shape[1], flat, kept, dy, *into, first, columns


def _adam_like(
    p: Tensor, mean: Tensor, square: Tensor, gradient: Tensor, constants: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(p), torch.empty_like(p), torch.empty_like(p)


def _adam(
    p: Tensor, mean: Tensor, square: Tensor, gradient: Tensor, constants: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    new = _adam_like(p, mean, square, gradient, constants)
    _call("adam", len(p), constants, [p, mean, square], gradient, list(new))
    return new


def _polyak_like(target: Tensor, online: Tensor, tau: float) -> Tensor:
    return torch.empty_like(target)


def _polyak(target: Tensor, online: Tensor, tau: float) -> Tensor:
    new = torch.empty_like(target)
    _call("polyak", len(target), target, online, float(tau), new)
    return new


def use_threads(threads: int) -> None:
    """Threads of all operators and of `commit` from now on, in this process."""
    _native.dense_threads(threads)


def commit(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy flat contiguous float32 tensors, each source into its target."""
    if not targets:
        return  # the layers of an update have written all of the state themselves
    if sum(len(target) for target in targets) < SMALL:
        torch._foreach_copy_(list(targets), list(sources))
        return
    _call("commit", len(targets), [len(target) for target in targets], list(targets), list(sources))


for _name, _run, _like in (
    ("dense_forward", _forward, _forward_like),
    ("dense_backward", _backward, _backward_like),
    ("dense_adam", _adam, _adam_like),
    ("dense_polyak", _polyak, _polyak_like),
):
    _library.impl(_name, _run, "CPU")  # type: ignore[no-untyped-call]
    _library.impl(_name, _like, "Meta")  # type: ignore[no-untyped-call]

_STACKS: dict[Any, Any] = {
    torch.ops.rlz.dense_forward.default: (_forward_like, _forward_arguments),
    torch.ops.rlz.dense_backward.default: (_backward_like, _backward_arguments),
}
