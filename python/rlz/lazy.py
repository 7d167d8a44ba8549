"""A module that is imported when it is first used.

Algorithms and networks state settings, rows and layouts without torch; only their losses need it. So their files can be
read by a controller or a sampler, which must not pay for torch (600 MB and 5 s).
"""

from importlib import import_module
from typing import Any


class Lazy:
    """Stands for a module: `torch = Lazy("torch")`."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        found = getattr(import_module(self._name), attribute)
        setattr(self, attribute, found)
        return found
