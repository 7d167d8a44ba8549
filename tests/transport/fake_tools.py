"""A log of what a stream, or its fake, answers."""

from collections.abc import Callable
from typing import Any

import numpy as np

ROW = [("obs", "f32", (2,)), ("next_obs", "f32", (2,)), ("reward", "f32", ()), ("discount", "f32", ()), ("n", "u8", ())]
SEED = [1, 2, 3, 4]


class Log:
    """What a script has seen: results, and classes of errors."""

    def __init__(self) -> None:
        self.lines: list[Any] = []

    def __call__(self, call: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Call, note what came of it, and return it; None after an error."""
        try:
            result = call(*args, **options)
        except Exception as error:
            self.lines.append((getattr(call, "__name__", call), type(error).__name__))
            return None
        self.lines.append((getattr(call, "__name__", call), plain(result)))
        return result

    def look(self, stream: Any, *names: str) -> None:
        """Note properties, and results of methods without arguments."""
        for name in names:
            value = getattr(stream, name)
            self.lines.append((name, plain(value() if callable(value) else value)))


def plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.dtype.name, (np.round(value, 9) if value.dtype.kind == "f" else value).tolist()
    if isinstance(value, dict):
        return {key: plain(item) for key, item in sorted(value.items())}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    return value if isinstance(value, int | float | str | bytes | None) else type(value).__name__
