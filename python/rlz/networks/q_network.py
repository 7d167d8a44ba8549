"""Values of all choices by one network, or by two: advantages of the choices, and the value of the state."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from rlz.lazy import Lazy
from rlz.networks.own import Network

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = Lazy("torch")


@dataclass(frozen=True)
class QNetwork:
    """Layout; the parameters live elsewhere, in a flat vector of `numel` floats: advantage, value.

    Q = value + advantage - mean advantage (Wang et al. 2016, arXiv 1511.06581, equation 9), so the advantages alone
    rank the choices.

    Attributes
    ----------
    advantage : its outputs are the choices.
    value : None: the advantages are the values.
    """

    name: str
    advantage: Network
    value: Network | None

    @property
    def numel(self) -> int:
        """Length of the flat vector."""
        return sum(network.numel for network in self._networks)

    @property
    def _networks(self) -> list[Network]:
        return [self.advantage] if self.value is None else [self.advantage, self.value]

    def in_precision(self, precision: str) -> Self:
        """The same layout with products in "fp32" or "bf16"."""
        value = None if self.value is None else self.value.in_precision(precision)
        return replace(self, advantage=self.advantage.in_precision(precision), value=value)

    def __call__(self, flat: Tensor, obs: Tensor) -> Tensor:
        """Q of every choice for obs [batch, inputs]: [batch, choices]."""
        if self.value is None:
            return self.advantage(flat, obs)
        advantages, value = torch.split(flat, [self.advantage.numel, self.value.numel])
        advantage = self.advantage(advantages, obs)
        return self.value(value, obs) + advantage - advantage.mean(1, keepdim=True)

    def named(self, flat: Tensor) -> dict[str, Tensor]:
        """Views of the flat vector by name."""
        parts = torch.split(flat, [network.numel for network in self._networks])
        named: dict[str, Tensor] = {}
        for network, part in zip(self._networks, parts, strict=True):
            named |= network.named(part)
        return named

    def init(self, generator: torch.Generator | None = None, dtype: torch.dtype | None = None) -> Tensor:
        """Fresh flat parameters [numel] on the CPU, distributed as torch.nn.Linear's."""
        return torch.cat([network.init(generator, dtype) for network in self._networks])
