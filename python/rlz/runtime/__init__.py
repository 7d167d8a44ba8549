"""The controller: plans a run, starts, watches, restarts and stops its workers, owns everything they share.

Imports neither torch nor gymnasium until a run starts.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlz.runtime.evaluate import evaluate
    from rlz.runtime.train import train

__all__ = ["evaluate", "train"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from importlib import import_module

        return getattr(import_module(f"rlz.runtime.{name}"), name)
    raise AttributeError(f"module 'rlz.runtime' has no attribute {name!r}")
