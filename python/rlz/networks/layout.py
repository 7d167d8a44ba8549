"""What every layout of parameters in one flat vector is."""

from __future__ import annotations

import math
from functools import cached_property
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from rlz.lazy import Lazy

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = Lazy("torch")


@runtime_checkable
class FlatNetwork(Protocol):
    """Of one network, or of several that follow one gradient. A field of a state with its name has its parameters."""

    @property
    def name(self) -> str:
        """Of the field."""

    @property
    def numel(self) -> int:
        """Length of the flat vector."""

    def named(self, flat: Tensor) -> dict[str, Tensor]:
        """Views of the flat vector by name."""


class TensorLayout:
    """What follows from the tensors of one network."""

    @property
    def layout(self) -> list[tuple[str, tuple[int, ...]]]:
        """Name and shape of every tensor, in flat order."""
        raise NotImplementedError

    @cached_property
    def sizes(self) -> list[int]:
        """Number of floats of every tensor, in flat order."""
        return [math.prod(shape) for _, shape in self.layout]

    @property
    def numel(self) -> int:
        """Length of the flat vector."""
        return sum(self.sizes)

    def unflatten(self, flat: Tensor) -> list[Tensor]:
        """Views of the flat vector [numel] as the tensors of `layout`."""
        parts = torch.split(flat, self.sizes)
        return [part.view(shape) for part, (_, shape) in zip(parts, self.layout, strict=True)]

    def named(self, flat: Tensor) -> dict[str, Tensor]:
        """Views of the flat vector by name."""
        return {name: view for (name, _), view in zip(self.layout, self.unflatten(flat), strict=True)}
