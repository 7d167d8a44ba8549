"""Matrix products of a compiled update by oneDNN, where it is faster than torch's default on this CPU.

torch multiplies float32 matrices with MKL, which keeps to AVX2 on processors that are not Intel's. oneDNN is in the
same package and uses AVX-512 on all of them, but torch offers it for layers with constant weights alone
(`mkldnn::_linear_pointwise`, x W^T). So the traced update is rewritten: each product becomes one of that form, with
transposed views where needed, and a batched product one for each network of the stack.

Imports torch's compiler: for its helper process only.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._inductor import ir
from torch._inductor.lowering import register_lowering
from torch._inductor.mkldnn_ir import LinearUnary, _create_output_node
from torch.fx import GraphModule, Node

WORTHWHILE = 1.2
"""oneDNN must be so many times faster: far enough from 1 that each compilation on a machine decides alike."""

PROBE = 256
"""Rows and columns of the product that decides."""

aten = torch.ops.aten

_library = torch.library.Library("rlz", "DEF")  # type: ignore[no-untyped-call]
_library.define("linear(Tensor x, Tensor weight) -> Tensor")  # type: ignore[no-untyped-call]


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """Product of x [rows, in] and the transpose of weight [out, in], both of any strides: [rows, out], by oneDNN."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")
    return product


def _shape(x: Tensor, weight: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[0])


for _kernel, _key in ((linear, "CPU"), (_shape, "Meta")):
    _library.impl("linear", _kernel, _key)  # type: ignore[no-untyped-call]


@register_lowering(torch.ops.rlz.linear.default, type_promotion_kind=None)
def _lower(x: Any, weight: Any) -> Any:
    """The compiler's own form of this call, without its demand that weights are constant and contiguous.

    Inputs must be contiguous: here in a loop of the compiler's, on all threads; else torch copies them on one.
    """
    x = ir.ExternKernel.require_contiguous(ir.ExternKernel.realize_input(x))
    weight = ir.ExternKernel.realize_input(weight)
    size = [x.get_size()[0], weight.get_size()[0]]
    layout = ir.FixedLayout(device=x.get_device(), dtype=x.get_dtype(), size=size)
    call = LinearUnary(layout=layout, inputs=[x, weight], constant_args=[None, "none", [-1], ""])
    return ir.TensorBox.create(_create_output_node(call))  # type: ignore[no-untyped-call]


@cache
def faster() -> bool:
    """Whether oneDNN multiplies float32 matrices `WORTHWHILE` times faster than torch's default, on one thread."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    left, right = torch.randn(2, PROBE, PROBE)

    def seconds(product: Callable[[Tensor, Tensor], Tensor]) -> float:
        begin = time.thread_time()
        for _ in range(5):
            product(left, right)
        return time.thread_time() - begin

    rounds = [(seconds(torch.mm), seconds(linear)) for _ in range(20)]
    default, onednn = (min(times) for times in zip(*rounds, strict=True))
    return bool(onednn * WORTHWHILE < default)


def rewrite(program: GraphModule) -> int:
    """Replace the float32 products of a traced update (`aten.mm`, `aten.bmm`), in place; returns how many."""
    graph, replaced = program.graph, 0

    def transposed(node: Node) -> Node:
        return graph.call_function(aten.t.default, (node,))

    def product(left: Node, right: Node, a: Tensor, b: Tensor) -> Node:
        if a.stride(0) == 1 and b.shape[1] < a.shape[0]:
            # A gradient of weights with few columns, from a left side that is transposed already: oneDNN is up to
            # twice as fast with the columns as rows.
            turned = graph.call_function(torch.ops.rlz.linear.default, (transposed(right), left))
            contiguous: dict[str, Any] = {"memory_format": torch.contiguous_format}
            return graph.call_function(aten.clone.default, (transposed(turned),), contiguous)
        return graph.call_function(torch.ops.rlz.linear.default, (left, transposed(right)))

    for node in list(graph.nodes):
        if node.target not in (aten.mm.default, aten.bmm.default):
            continue
        left, right = node.args
        a, b = left.meta["val"], right.meta["val"]
        if a.dtype != torch.float32 or 1 in (*a.shape[-2:], b.shape[-1]):
            continue  # the compiler makes products with a vector part of its own loops
        with graph.inserting_before(node):
            if node.target == aten.mm.default:
                new = product(left, right, a, b)
            else:
                members = []
                for member in range(len(a)):
                    one, other = (graph.call_function(aten.select.int, (side, 0, member)) for side in (left, right))
                    members.append(product(one, other, a[member], b[member]))
                new = graph.call_function(aten.stack.default, (members,))
        node.replace_all_uses_with(new)
        graph.erase_node(node)
        replaced += 1
    graph.lint()
    program.recompile()
    return replaced
