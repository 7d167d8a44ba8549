"""Products of a layer's input and weights in the form in which a card makes them fast; elsewhere plain ones.

Tensor cores take factors whose sides are multiples of 8, so sides are padded with zeros, which add nothing. The
gradient of the weights sums over the whole batch: one product of few rows and columns and a long sum leaves most of a
card idle, blocks of the batch side by side do not (27 against 155 to 445 TFLOP/s on an H200 for a stack of two, bf16).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlz.lazy import Lazy

if TYPE_CHECKING:
    import torch
    import torch.nn.functional as F
    from torch import Tensor
else:
    torch, F = Lazy("torch"), Lazy("torch.nn.functional")

MULTIPLE = 8

BLOCK_ROWS, MOST_BLOCKS = 512, 32
"""Of the batch, for the gradient of the weights."""


def product(x: Tensor, weight: Tensor) -> Tensor:
    """X [..., batch, in] times weight [..., in, out], leading sides alike: [..., batch, out]."""
    return on_card(x, weight) if x.is_cuda else torch.matmul(x, weight)


def on_card(x: Tensor, weight: Tensor) -> Tensor:
    """The same in the form for cards; on any device (tests)."""
    rows, columns = weight.shape[-2:]
    missing = -rows % MULTIPLE, -columns % MULTIPLE
    if columns == 1:
        missing = missing[0], 0  # a product with a vector
    if any(missing):
        x, weight = F.pad(x, (0, missing[0])), F.pad(weight, (0, missing[1], 0, missing[0]))
    found: Tensor = _with_blocks().apply(x, weight)
    return found[..., :columns] if missing[1] else found


def blocks(batch: int) -> int:
    """Equal parts of a batch whose gradients of the weights are summed."""
    return next(count for count in range(max(1, min(MOST_BLOCKS, batch // BLOCK_ROWS)), 0, -1) if batch % count == 0)


def _with_blocks() -> Any:
    """The autograd function; made at its first use, because torch is imported then."""
    global _function
    if _function is None:

        class Product(torch.autograd.Function):
            @staticmethod
            def forward(context: Any, x: Tensor, weight: Tensor) -> Tensor:
                context.save_for_backward(x, weight)
                return torch.matmul(x, weight)

            @staticmethod
            def backward(context: Any, slope: Tensor) -> Any:
                x, weight = context.saved_tensors
                of_x = torch.matmul(slope, weight.mT) if context.needs_input_grad[0] else None
                return of_x, _of_weight(x, slope) if context.needs_input_grad[1] else None

        _function = Product
    return _function


_function: Any = None


def _of_weight(x: Tensor, slope: Tensor) -> Tensor:
    count = blocks(x.shape[-2])
    if count == 1:
        return torch.matmul(x.mT, slope)
    left, right = (tensor.reshape(*tensor.shape[:-2], count, -1, tensor.shape[-1]) for tensor in (x, slope))
    return torch.matmul(left.mT, right).sum(-3)
