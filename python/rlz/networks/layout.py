"""What every layout of parameters in one flat vector is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor


@runtime_checkable
class Layout(Protocol):
    """Of one network, or of several that follow one gradient. A field of a state with its name has its parameters."""

    @property
    def name(self) -> str:
        """Of the field."""

    @property
    def numel(self) -> int:
        """Length of the flat vector."""

    def named(self, flat: Tensor) -> dict[str, Tensor]:
        """Views of the flat vector by name."""
