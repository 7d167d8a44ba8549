"""The rows of a rollout where updates draw them from: on the trainer's device, in another order in each launch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rlz.learning.compiled import Layout, layouts


class RolloutRows:
    """Rows of one rollout, packed so that a batch is gathered by one operation; its fields are views.

    Parameters
    ----------
    like : one or more prepared rows, a NamedTuple of tensors [n, ...] of float32 or int64.
    rows : of a rollout.
    device : of the rows.
    """

    def __init__(self, like: Any, rows: int, device: torch.device) -> None:
        self._type = type(like)
        self._rows = rows
        self._fields: list[tuple[int, int, torch.dtype, Sequence[int]]] = []  # begin, end in floats
        begin = 0
        wide = [field for field in like if field.dtype == torch.int64]
        if any(field.dtype not in (torch.float32, torch.int64) for field in like):
            raise ValueError(f"rows of {[field.dtype for field in like]}; expected float32 and int64")
        places = {}
        for field in [*wide, *(field for field in like if field.dtype == torch.float32)]:  # the wide ones are aligned
            size = math.prod(field.shape[1:]) * field.element_size() // 4
            places[id(field)] = (begin, begin + size, field.dtype, tuple(field.shape[1:]))
            begin += size
        self._fields = [places[id(field)] for field in like]
        self._packed = torch.zeros(rows, begin + begin % 2, device=device)
        self._gathered: dict[int, tuple[Tensor, Any]] = {}  # by rows: a batch, and its fields, which are views of it

    def take(self, prepared: Any) -> None:
        """Take the place of the rollout before."""
        for field, (begin, end, _, _) in zip(prepared, self._fields, strict=True):
            self._packed[:, begin:end] = field.reshape(self._rows, -1).contiguous().view(torch.float32)

    def layout(self, batch_size: int) -> tuple[Layout, ...]:
        """Of the fields of a batch."""
        return layouts(tuple(self._place(batch_size)[1]))

    def draw(self, indices: Tensor, generator: torch.Generator) -> None:
        """Fill `indices` [updates, batch]: no row twice, every order as likely as any other."""
        # Of random numbers, because a captured graph has no room for what `randperm` does on a card.
        order = torch.rand(self._rows, generator=generator, device=indices.device).argsort()
        indices.copy_(order[: indices.numel()].view_as(indices))

    def gather(self, indices: Tensor) -> Any:
        """The rows at `indices` [batch], until the next so many are gathered."""
        into, fields = self._place(len(indices))
        torch.index_select(self._packed, 0, indices, out=into)
        return fields

    def _place(self, batch_size: int) -> tuple[Tensor, Any]:
        """Where a batch is gathered: always the same, because making its views takes longer than to fill them."""
        if batch_size not in self._gathered:
            into = torch.zeros(batch_size, self._packed.shape[1], device=self._packed.device)
            self._gathered[batch_size] = into, self._cut(into)
        return self._gathered[batch_size]

    def _cut(self, rows: Tensor) -> Any:
        return self._type(
            *(rows[:, begin:end].view(dtype).view(-1, *shape) if shape else rows[:, begin:end].view(dtype)[:, 0]
              for begin, end, dtype, shape in self._fields)
        )  # fmt: skip
