"""Dense layers of a compiled update by `rlz._native`, where they are faster than the products that torch has.

An update is traced with the operators of `rlz.networks.dense`. In the compiler's C++ each of them is a function that
takes torch's tensor handles, allocates what it gives back, and calls the C function of the same name with addresses.

Imports torch's compiler: for its helper process only.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from rlz.learning import onednn
from rlz.networks import dense

WORTHWHILE = 1.15
"""Time of all dense layers, relative to their bare products by torch, below which they are used. What torch has beside
the products (bias, activation, their gradients, transposed copies) took a quarter of the time of the products."""

ROUNDS = 10

aten = torch.ops.aten


def dense_calls(program: GraphModule) -> list[Node]:
    """The calls of dense layers in a traced update."""
    targets = torch.ops.rlz.dense_forward.default, torch.ops.rlz.dense_backward.default
    return [node for node in program.graph.nodes if node.target in targets]


def narrow(program: GraphModule) -> None:
    """Let gradients of inputs be of those columns alone that are used, in place: actions and no observations."""
    graph = program.graph
    for node in dense_calls(program):
        arguments: Any = node.args
        if node.target != torch.ops.rlz.dense_backward.default or not arguments[6]:
            continue
        # All columns are wanted as traced; a part is taken by a slice of the second result.
        results = [user for user in node.users if user.args[1] == 1]
        for unused in [user for result in results for user in result.users if not user.users]:
            graph.erase_node(unused)
        slices = [user for result in results for user in result.users]
        if any(user.target != aten.slice.Tensor or user.args[1] != 1 for user in slices):
            continue
        ranges: set[Any] = {user.args[2:] for user in slices}
        if len(ranges) != 1:
            continue
        ((first, last, *step),) = ranges
        if step not in ([], [1]):
            continue
        last = min(last, arguments[6])
        node.args = (*arguments[:5], first, last - first)
        for user in slices:
            whole: Any = user.args[0]
            user.replace_all_uses_with(whole)
            graph.erase_node(user)
        for result in results:
            result.meta["val"] = result.meta["val"][:, first:last].contiguous()
    graph.lint()
    program.recompile()


def faster(program: GraphModule) -> bool:
    """Whether the dense layers of a traced update are fast enough on one thread of this machine."""
    float32 = onednn.linear if onednn.faster() else _product
    native, others = 0.0, 0.0
    for node in dense_calls(program):
        inputs = [_example(argument) for argument in node.args]
        bf16 = bool(_shape(node)[6])
        dtype, product = (torch.bfloat16, _product) if bf16 else (torch.float32, float32)
        bare = [(torch.randn(m, k, dtype=dtype), torch.randn(n, k, dtype=dtype)) for m, k, n in _products(node)]

        def by_torch(pairs: list[tuple[Tensor, Tensor]], product: Callable[[Tensor, Tensor], Tensor]) -> None:
            for left, right in pairs:
                product(left, right)

        works: Any = dense.ready(node.target, *inputs), partial(by_torch, bare, product)
        times = [tuple(map(_seconds, works)) for _ in range(ROUNDS)]
        native += min(mine for mine, _ in times)
        others += min(theirs for _, theirs in times)
    return native < WORTHWHILE * others


def _product(left: Tensor, right: Tensor) -> Tensor:
    return left @ right.T


def _seconds(work: Callable[[], Any]) -> float:
    begin = time.thread_time()
    work()
    return time.thread_time() - begin


def _example(argument: Any) -> Any:
    if not isinstance(argument, Node):
        return argument
    value = argument.meta["val"]
    example = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
    return example.uniform_(-0.1, 0.1)


def _shape(node: Node) -> Any:
    return node.args[2 if node.target == torch.ops.rlz.dense_forward.default else 3]


def _products(node: Node) -> list[tuple[int, int, int]]:
    """Rows, inner size and columns of each product that a call stands for."""
    arguments: Any = node.args
    forward = node.target == torch.ops.rlz.dense_forward.default
    _, used, inputs, outputs, _, _, _, *hidden = _shape(node)
    rows = arguments[1 if forward else 2].meta["val"].shape[0 if forward else 1]
    sizes = [inputs, *hidden, outputs]
    found = []
    for layer, (width, out) in enumerate(pairwise(sizes)):
        if forward:
            found += [(rows, width, out)] * used
            continue
        found += [(width, rows, out)] * used if arguments[4] else []
        columns = width if layer else arguments[6]
        found += [(rows, out, columns)] * used if columns else []
    return found


_OPENING = """
    auto address = [](AtenTensorHandle tensor) {
        void* data = nullptr;
        aoti_torch_get_data_ptr(tensor, &data);
        return static_cast<float*>(data);
    };
    auto size = [](AtenTensorHandle tensor, int64_t dim) {
        int64_t* sizes = nullptr;
        aoti_torch_get_sizes(tensor, &sizes);
        return sizes[dim];
    };
    auto make = [](std::initializer_list<int64_t> sizes, AtenTensorHandle* made) {
        int64_t strides[3], step = 1;
        for (size_t dim = sizes.size(); dim-- > 0; step *= sizes.begin()[dim]) strides[dim] = step;
        return aoti_torch_empty_strided(sizes.size(), sizes.begin(), strides, aoti_torch_dtype_float32(),
                                        aoti_torch_device_type_cpu(), 0, made);
    };
    (void)size;
    #define RLZ_TRY(call) if (auto status = (call)) return status
"""

_FORWARD = """
    int64_t* strides = nullptr;
    aoti_torch_get_strides(x, &strides);
    const int64_t rows = size(x, 0);
    RLZ_TRY(make({shape[1], rows, shape[3]}, y));
    RLZ_TRY(make({keep ? rows * %KEPT% : 0}, kept));
    return rlz_dense_forward(shape, count, rows, address(flat), address(x), rows > 1 ? strides[0] : shape[2],
                             address(*y), keep ? address(*kept) : nullptr);
"""

_BACKWARD = """
    const int64_t rows = size(dy, 1);
    RLZ_TRY(make({weights ? size(flat, 0) : 0}, dflat));
    RLZ_TRY(columns ? make({rows, columns}, dx) : make({0}, dx));
    return rlz_dense_backward(shape, count, rows, address(flat), address(kept), address(dy),
                              weights ? address(*dflat) : nullptr, columns ? address(*dx) : nullptr, first,
                              columns);
"""

_ADAM = """
    for (auto made : {new_p, new_mean, new_square}) RLZ_TRY(make({size(p, 0)}, made));
    const float* old[] = {address(p), address(mean), address(square)};
    float* fresh[] = {address(*new_p), address(*new_mean), address(*new_square)};
    return rlz_dense_adam(size(p, 0), address(constants), old, address(gradient), fresh);
"""

_POLYAK = """
    RLZ_TRY(make({size(target, 0)}, made));
    return rlz_dense_polyak(size(target, 0), address(target), address(online), static_cast<float>(tau), address(*made));
"""

_T = "AtenTensorHandle"


def _function(name: str, arguments: str, body: str) -> str:
    signature = f"AOTITorchError aoti_torch_cpu_{name}({arguments})"
    return f"{signature} {{{_OPENING}{body}}}"


def shims() -> dict[torch._ops.OpOverload, list[str]]:
    """For the compiler's option `aot_inductor.custom_ops_to_c_shims`."""
    ops = torch.ops.rlz
    return {
        ops.dense_forward.default: [
            "int rlz_dense_forward(const int64_t*, size_t, size_t, const float*, const float*, size_t, float*, float*)",
            "size_t rlz_dense_kept(const int64_t*, size_t)",
            _function(
                "dense_forward",
                f"{_T} flat, {_T} x, const int64_t* shape, int64_t count, int32_t keep, {_T}* y, {_T}* kept",
                _FORWARD.replace("%KEPT%", "static_cast<int64_t>(rlz_dense_kept(shape, count))"),
            ),
        ],
        ops.dense_backward.default: [
            "int rlz_dense_backward(const int64_t*, size_t, size_t, const float*, const float*, "
            "const float*, float*, float*, size_t, size_t)",
            _function(
                "dense_backward",
                f"{_T} flat, {_T} kept, {_T} dy, const int64_t* shape, int64_t count, int32_t weights, int64_t first, "
                f"int64_t columns, "
                f"{_T}* dflat, {_T}* dx",
                _BACKWARD,
            ),
        ],
        ops.dense_adam.default: [
            "int rlz_dense_adam(size_t, const float*, const float* const*, const float*, float* const*)",
            _function(
                "dense_adam",
                f"{_T} p, {_T} mean, {_T} square, {_T} gradient, {_T} constants, "
                f"{_T}* new_p, {_T}* new_mean, {_T}* new_square",
                _ADAM,
            ),
        ],
        ops.dense_polyak.default: [
            "int rlz_dense_polyak(size_t, const float*, const float*, float, float*)",
            _function("dense_polyak", f"{_T} target, {_T} online, double tau, {_T}* made", _POLYAK),
        ],
    }
