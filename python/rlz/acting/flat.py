"""The tensors of a module as one flat array, the form in which the parameter store and `policy.safetensors` know them.

The order is that of `state_dict`: parameters and buffers, packed back to back. A learner packs, an actor unpacks.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rlz.answers import Field
from rlz.dtypes import NATIVE
from rlz.errors import PolicyError


def manifest(module: nn.Module) -> tuple[Field, ...]:
    """Name, dtype and shape of every tensor, in flat order.

    Raises
    ------
    PolicyError
        A tensor has a dtype that cannot be published, for instance bfloat16.
    """
    found = []
    for name, tensor in _tensors(module).items():
        native = NATIVE.get(str(tensor.dtype).removeprefix("torch."))
        if native is None:
            raise PolicyError(
                f"tensor {name!r} of {type(module).__name__} is {tensor.dtype}, which cannot be published"
            )
        found.append((name, native, tuple(tensor.shape)))
    return tuple(found)


def pack(module: nn.Module) -> NDArray[np.uint8]:
    """A copy of all tensors, as published."""
    parts = [_bytes(tensor) for tensor in _tensors(module).values()]
    return np.concatenate(parts) if parts else np.empty(0, np.uint8)


class Unpacked:
    """A module on the CPU whose tensors follow `parameters`, an array that somebody writes published bytes into.

    Tensors that a view can be taken of are views: for a module of float32 alone, taking new parameters is one copy.

    Attributes
    ----------
    parameters : uint8 [nbytes], the tensors back to back. Call `follow` after it was written.
    rest : uint8 [extra], what `parameters` has behind the module's own.
    """

    def __init__(self, module: nn.Module, extra: int = 0) -> None:
        own = pack(module)
        self.parameters = np.concatenate([own, np.zeros(extra, np.uint8)])
        self.rest = self.parameters[len(own) :]
        flat = torch.from_numpy(self.parameters)
        self._copied: list[tuple[Tensor, NDArray[Any]]] = []
        named = dict([*module.named_parameters(), *module.named_buffers()])
        start = 0
        with torch.no_grad():
            for name, value in _tensors(module).items():
                size = value.element_size()
                end = start + size * value.numel()
                if name in named and start % size == 0 and value.numel():
                    value.data = flat[start:end].view(value.dtype).view(value.shape)
                elif value.numel():  # not aligned: an integer of 8 bytes behind an odd number of floats
                    self._copied.append((value.detach(), self.parameters[start:end]))
                start = end

    def follow(self) -> None:
        """Copy what could not be a view."""
        for tensor, part in self._copied:
            _bytes(tensor, writable=True)[:] = part


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    """The very tensors of the module by name, without what a module saves beside them."""
    state = module.state_dict(keep_vars=True)
    return {name: value for name, value in state.items() if isinstance(value, Tensor)}


def _bytes(tensor: Tensor, *, writable: bool = False) -> NDArray[np.uint8]:
    """The bytes of a tensor; a view of it where it is writable."""
    plain = tensor.detach() if writable else tensor.detach().cpu().contiguous()
    flat: NDArray[np.uint8] = plain.reshape(-1).view(torch.uint8).numpy()
    return flat
