"""Multi-layer perceptrons as functions of one flat parameter vector, alone or N of them stacked in one batched product.

Flat parameters make one Adam step, one Polyak step and one publication a single pass over memory. `split` is used to
cut the vector because its gradient is one concatenation, where slices would each add a vector of zeros.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Self

from rlz.lazy import Lazy
from rlz.networks.layout import TensorLayout
from rlz.networks.products import product
from rlz.networks.spec import mlp_layout

if TYPE_CHECKING:
    import torch
    import torch.nn.functional as F
    from torch import Tensor

    from rlz.networks import dense
else:
    torch, F, dense = Lazy("torch"), Lazy("torch.nn.functional"), Lazy("rlz.networks.dense")

ACTIVATIONS = "relu", "tanh", "silu", "elu"
"""Names in `torch.nn.functional` of what may follow a hidden layer."""
LAYER_NORM_EPS = 1e-5


@dataclass(frozen=True)
class Mlp(TensorLayout):
    """Layout and forward pass of an MLP; the parameters live elsewhere, in a flat vector of `numel` floats.

    Attributes
    ----------
    members
        None for one network (weights [in, out]); N for N networks of the same shape (weights [N, in, out]).
    layer_norm
        Normalise each hidden layer before its activation.
    bf16
        Multiply matrices in bfloat16, forwards and backwards; inputs, outputs and everything between are as without.
        The output layer is left out: its result is a Q value or an action, and bfloat16 keeps 8 bits of it.
    """

    name: str
    inputs: int
    hidden: tuple[int, ...]
    outputs: int
    activation: str = "relu"
    layer_norm: bool = False
    members: int | None = None
    bf16: bool = False

    def __post_init__(self) -> None:
        if self.activation not in ACTIVATIONS:
            raise ValueError(f"activation {self.activation!r} is not one of {', '.join(ACTIVATIONS)}")

    def in_precision(self, precision: str) -> Self:
        """The same layout with products in "fp32" or "bf16"."""
        return replace(self, bf16=precision == "bf16")

    @cached_property
    def layout(self) -> list[tuple[str, tuple[int, ...]]]:
        """Name and shape of every tensor, in flat order."""
        stack = () if self.members is None else (self.members,)
        one = mlp_layout(self.inputs, self.hidden, self.outputs, layer_norm=self.layer_norm)
        return [(f"{self.name}.{name}", (*stack, *shape)) for name, shape in one]

    def init(self, generator: torch.Generator | None = None, dtype: torch.dtype | None = None) -> Tensor:
        """Fresh flat parameters [numel] on the CPU, distributed as torch.nn.Linear's: U(-1/sqrt(in), 1/sqrt(in))."""
        flat = torch.empty(self.numel, dtype=dtype or torch.float32)
        bound = 0.0
        for name, tensor in self.named(flat).items():
            if "norm" in name:
                tensor.fill_(1.0 if name.endswith("weight") else 0.0)
                continue
            if name.endswith("weight"):
                bound = 1.0 / math.sqrt(tensor.shape[-2])  # the bias of the layer follows and has the same bound
            tensor.uniform_(-bound, bound, generator=generator)
        return flat

    def __call__(self, flat: Tensor, x: Tensor, *, first: int | None = None) -> Tensor:
        """Outputs of x [batch, inputs]: [batch, outputs], or [members, batch, outputs] when stacked.

        `first` runs only the first so many members of a stack.
        """
        if x.dim() == 2 and dense.usable(flat, x) and (dense.has_bf16() or not self.bf16):
            y = dense.stack(flat, x, self._numbers(first))
            return y if self.members is not None else y.squeeze(0)
        activation: Callable[[Tensor], Tensor] = getattr(F, self.activation)
        tensors = iter(self.unflatten(flat))
        if self.members is not None:
            tensors = (tensor[:first] for tensor in tensors)
            x = x.expand(len(range(self.members)[:first]), *x.shape)
        for _ in self.hidden:
            x = self._linear(x, next(tensors), next(tensors), bf16=self.bf16)
            if self.layer_norm:
                x = F.layer_norm(x, x.shape[-1:], eps=LAYER_NORM_EPS)
                x = x * self._row(next(tensors)) + self._row(next(tensors))
            x = activation(x)
        return self._linear(x, next(tensors), next(tensors), bf16=False)

    def _numbers(self, first: int | None) -> list[int]:
        """The shape for `dense.stack`."""
        members = 1 if self.members is None else self.members
        activation = ACTIVATIONS.index(self.activation)
        used = len(range(members)[:first])
        flags = int(self.layer_norm), int(self.bf16)
        return [members, used, self.inputs, self.outputs, activation, *flags, *self.hidden]

    def _row(self, vector: Tensor) -> Tensor:
        return vector if self.members is None else vector.unsqueeze(1)

    def _linear(self, x: Tensor, weight: Tensor, bias: Tensor, *, bf16: bool) -> Tensor:
        # Not addmm or baddbmm: a separate bias is fused with the activation by the compiler.
        if bf16:
            # Casts instead of torch.autocast: no setting of the thread decides what this function computes.
            return product(x.bfloat16(), weight.bfloat16()).to(x.dtype) + self._row(bias)
        return product(x, weight) + self._row(bias)
