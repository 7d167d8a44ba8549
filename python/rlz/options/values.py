"""From the texts of a command line and the values of TOML to the types of `RunConfig`.

Every function raises a bare ValueError: the message that a user sees is made in `overrides`, from the field.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rlz.options import literals
from rlz.references import PICKLE


def _plain(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("not a number")
    return value


def integral(value: Any) -> Any:
    """Accept 1e6 and "1e6" for an integer as long as nothing is lost."""
    value = _plain(value)
    if isinstance(value, str):
        try:
            return int(value)
        except ValueError:
            value = float(value)  # ValueError: reported as not an integer
    if isinstance(value, float) and not value.is_integer():
        raise ValueError("not a whole number")
    return value


def finite(value: Any) -> float:
    """Accept a number, or its text, that is neither infinite nor NaN."""
    value = float(_plain(value))
    if value != value or value in (float("inf"), float("-inf")):
        raise ValueError("not a finite number")
    return float(value)


def replay_ratio(value: Any) -> float | str:
    """Accept updates per env step, or free."""
    if value == "free":
        return "free"
    number = finite(value)
    if not 0 < number <= 1024:
        raise ValueError("out of range")
    return number


def batch_size(value: Any) -> int | str:
    """Accept rows of an update, auto, or auto_1024, which starts there."""
    if value == "auto":
        return "auto"
    starts = isinstance(value, str) and value.startswith("auto_")
    rows = int(integral(value[5:] if starts else value))
    if not 1 <= rows <= 1_048_576:
        raise ValueError("out of range")
    return f"auto_{rows}" if starts else rows


def learning_rate(value: Any) -> float | str:
    """Accept 3e-4 (constant) or lin_3e-4 (linear to 0)."""
    linear = isinstance(value, str) and value.startswith("lin_")
    if not 0 < finite(value[4:] if linear else value) <= 1:
        raise ValueError("out of range")
    return str(value) if linear else finite(value)


def ent_coef(value: Any) -> float | str:
    """Accept auto, auto_0.1 or a fixed temperature."""
    if value == "auto":
        return "auto"
    if isinstance(value, str) and value.startswith("auto_"):
        if not finite(value[5:]) > 0:
            raise ValueError("out of range")
        return value
    if not finite(value) >= 0:
        raise ValueError("out of range")
    return finite(value)


def target_entropy(value: Any) -> float | str:
    """Accept auto or a number."""
    return "auto" if value == "auto" else finite(value)


def threads(value: Any) -> int | str:
    """Accept a count, auto, or auto_2, which keeps 2 where nothing else is worth a change."""
    if value == "auto":
        return "auto"
    guess = isinstance(value, str) and value.startswith("auto_")
    number = int(integral(value[5:] if guess else value))
    if not 1 <= number <= 1024:
        raise ValueError("out of range")
    return f"auto_{number}" if guess else number


def auto_or(most: int) -> Callable[[Any], int | str]:
    """Accept auto, or a count of at most `most`."""

    def count(value: Any) -> int | str:
        if value == "auto":
            return "auto"
        number = int(integral(value))
        if not 1 <= number <= most:
            raise ValueError("out of range")
        return number

    return count


def device(value: Any) -> str:
    """Accept torch's names of CPU and CUDA devices, or auto; whether it exists is the learner's business."""
    if not isinstance(value, str) or not re.fullmatch(r"auto|cpu|cuda(:\d+)?", value):
        raise ValueError("no such form")
    return value


def devices(value: Any) -> tuple[str, str] | None:
    """Accept "cuda:0,cuda:1" beside a list of two devices; None is one device."""
    if value is None:
        return None
    parts = value.split(",") if isinstance(value, str) else list(value)
    first, second = (device(part.strip() if isinstance(part, str) else part) for part in parts)
    if "auto" in (first, second):
        raise ValueError("no such form")
    return first, second


def widths(value: Any) -> Any:
    """Accept "256,256", "256" and "none" (no hidden layer) beside lists."""
    if isinstance(value, str):
        return () if value == "none" else tuple(integral(part.strip()) for part in value.split(","))
    return tuple(integral(part) for part in value) if isinstance(value, list | tuple) else integral(value)


def check_widths(value: tuple[int, ...]) -> tuple[int, ...]:
    """Check that every layer has a sensible width."""
    if len(value) > 64 or not all(1 <= width <= 65_536 for width in value):
        raise ValueError("out of range")
    return value


def folder_name(value: str | None) -> str | None:
    """Check that the name is one folder, not a path."""
    if value is not None and (value in ("", ".", "..") or "/" in value or "\0" in value):
        raise ValueError("no such form")
    return value


def code_path(value: str | None) -> str | None:
    """Accept "module:name" or "file.py:name"; a file is found from any folder later. Of `rlz.train` also an object."""
    if value is None or value.startswith(PICKLE):
        return value
    where, _, name = value.rpartition(":")
    if not where or not name.isidentifier():
        raise ValueError("not module:name or file.py:name")
    return f"{Path(where).expanduser().absolute()}:{name}" if where.endswith(".py") else value


def wrapper_paths(value: tuple[str, ...]) -> tuple[str, ...]:
    """Check that each is module:Class, or module:Class,key=value,..."""
    for item in value:
        path, *arguments = literals.split(item)
        if not re.fullmatch(r"[\w.]+:[\w.]+", path):
            raise ValueError("no such form")
        literals.pairs(arguments)
    return value


def pairs(value: Any) -> dict[str, Any]:
    """Turn texts such as "healthy_reward=0.5" into a dict, values as in TOML or Python; dicts pass, checked."""
    if isinstance(value, list | tuple):
        return literals.pairs([str(item) for item in value])
    if not isinstance(value, dict):
        raise ValueError("no such form")
    table = {}
    for key, item in value.items():
        if not str(key).isidentifier():
            raise ValueError("no such form")
        try:
            table[key] = literals.decode(item)
        except literals.ToldError as error:
            raise literals.ToldError(f"{key}: {error}") from None
    return table
