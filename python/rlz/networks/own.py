"""A user's torch modules in the place of perceptrons, as functions of one flat parameter vector like `mlp.py`'s."""

from __future__ import annotations

import hashlib
import inspect
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from rlz.errors import ConfigError
from rlz.lazy import Lazy
from rlz.networks.layout import TensorLayout
from rlz.networks.mlp import Mlp
from rlz.references import label, load

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
else:
    torch = Lazy("torch")


@dataclass(frozen=True)
class OwnNetwork(TensorLayout):
    """A network of a user's class, or a stack of them; see `Mlp`, whose place it takes.

    The class is called as `Net(inputs, outputs)`. Its module maps [batch, inputs] to [batch, outputs] and draws
    nothing at random. All that it keeps between calls are its parameters.

    Attributes
    ----------
    source : name of the class, `file.py:Net` or `module:Net`.
    members : None for one network, N for N networks with parameters of their own.
    digest : of the file of the class; machine code is found again by it.
    """

    name: str
    source: str
    inputs: int
    outputs: int
    members: int | None = None
    digest: str = ""

    @classmethod
    def of(cls, source: str, name: str, inputs: int, outputs: int, members: int | None = None) -> Self:
        """Make it and try it once. Raises ConfigError for a class that does not fit, its own error as the cause."""
        _template(source, inputs, outputs)
        return cls(name, source, inputs, outputs, members, _digest(source))

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Of a pickle. The module is made now: in the compiler's process the first call of it is a trace."""
        self.__dict__.update(state)
        _template(self.source, self.inputs, self.outputs)

    def in_precision(self, precision: str) -> Self:
        """The same network; its products are its own, so there is none in bf16."""
        if precision == "bf16":
            raise ConfigError(f"--precision bf16: {label(self.source)} has no form in bf16. Use fp32, tf32 or auto.")
        return self

    @cached_property
    def layout(self) -> list[tuple[str, tuple[int, ...]]]:
        """Name and shape of every tensor, in flat order: that of the module's parameters."""
        stack = () if self.members is None else (self.members,)
        module = _template(self.source, self.inputs, self.outputs)
        return [(f"{self.name}.{name}", (*stack, *value.shape)) for name, value in module.named_parameters()]

    def init(self, generator: torch.Generator | None = None, dtype: torch.dtype | None = None) -> Tensor:
        """Fresh flat parameters [numel] on the CPU, each member as its class makes it."""
        flat = torch.empty(self.numel, dtype=dtype or torch.float32)
        views = list(self.named(flat).values())
        with torch.random.fork_rng(devices=[]):
            for member in range(self.members or 1):
                torch.manual_seed(int(torch.randint(2**62, (), generator=generator)))
                fresh = load(self.source)(self.inputs, self.outputs)
                for view, value in zip(views, fresh.parameters(), strict=True):
                    (view if self.members is None else view[member]).copy_(value.detach())
        return flat

    def __call__(self, flat: Tensor, x: Tensor, *, first: int | None = None) -> Tensor:
        """Outputs of x [batch, inputs]: [batch, outputs], or [members, batch, outputs] when stacked.

        `first` runs only the first so many members of a stack.
        """
        module = _template(self.source, self.inputs, self.outputs)
        named = {name.removeprefix(f"{self.name}."): view for name, view in self.named(flat).items()}
        call = torch.func.functional_call
        if self.members is None:
            found: Tensor = call(module, named, (x,))
            return found
        parts = range(self.members)[:first]
        return torch.stack([call(module, {name: view[m] for name, view in named.items()}, (x,)) for m in parts])


Network = Mlp | OwnNetwork
"""Functions of a flat parameter vector."""


@cache
def _template(source: str, inputs: int, outputs: int) -> nn.Module:
    """One module of the class, tried on two rows; its own parameters are never used."""
    name = label(source)
    try:
        kind = load(source)
    except ConfigError as error:
        raise ConfigError(f"--network {error}") from error.__cause__
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        try:
            module = kind(inputs, outputs)
        except Exception as error:
            raise ConfigError(
                f"--network {name}: {name}({inputs}, {outputs}) raised {type(error).__name__}: {error}. It is called "
                "with its inputs and outputs, once for each network"
            ) from error
        if not isinstance(module, torch.nn.Module):
            raise ConfigError(f"--network {name} gave a {type(module).__name__}, expected a torch.nn.Module")
        parameters = dict(module.named_parameters())
        if kept := [entry for entry in module.state_dict(keep_vars=True) if entry not in parameters]:
            raise ConfigError(
                f"--network {name}: {', '.join(kept[:3])} is kept beside its own parameters (a buffer such as a "
                "running mean, or a parameter under two names), which an update does not carry. Use layers without, "
                "such as LayerNorm for BatchNorm"
            )
        if other := [entry for entry, value in parameters.items() if value.dtype != torch.float32]:
            raise ConfigError(f"--network {name}: {other[0]} is {parameters[other[0]].dtype}, expected torch.float32")
        rows = torch.zeros(2, inputs)
        try:
            given, again = module(rows), module(rows)
        except Exception as error:
            raise ConfigError(
                f"--network {name} raised {type(error).__name__} for inputs [2, {inputs}]: {error}"
            ) from error
    if getattr(given, "shape", None) != (2, outputs):
        shape = list(given.shape) if hasattr(given, "shape") else f"a {type(given).__name__}"
        raise ConfigError(f"--network {name} gave {shape} for inputs [2, {inputs}], expected [2, {outputs}]")
    if not torch.equal(given, again):
        raise ConfigError(f"--network {name} draws at random (dropout?): it gave two results for the same inputs")
    return module


def _digest(source: str) -> str:
    file = inspect.getsourcefile(load(source)) or ""
    text = Path(file).read_bytes() if file and Path(file).is_file() else source.encode()
    return hashlib.sha256(text).hexdigest()[:16]
