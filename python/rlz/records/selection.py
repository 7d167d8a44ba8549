"""Choosing among runs by what is known of them: any setting, metric, or column of `rlz runs`."""

import re
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from rlz.errors import UsageError
from rlz.records.runs import RunInfo

COLUMNS = {
    "steps": "env_steps",
    "of": "total_timesteps",
    "steps/s": "env_steps_per_s",
    "last": "last_return",
    "best": "best_return",
    "held-out": "held_out_return",
}
"""Attributes of a run by the heading of their column."""

_OWN = ("run", "name", "status", "algo", "env", "seed", "started", "wall_s", *COLUMNS.values())
_CONDITION = re.compile(r"(?P<key>[^=<>!]+)(?P<sign>!=|<=|>=|==|=|<|>)(?P<value>.*)")

_NOT_COMPARED = ("name", "runs_dir")


def value_of(run: RunInfo, key: str) -> Any:
    """What is known of a run by that name; None where nothing is."""
    key = COLUMNS.get(key, key)
    if key in _OWN:
        return run.name if key == "run" else getattr(run, key)
    return run.values.get(key, run.values.get(key.replace("-", "_")))


def sort_runs(runs: Sequence[RunInfo], key: str) -> list[RunInfo]:
    """Largest number first, then texts by the alphabet, then runs that have no such value."""
    check_key(runs, key)

    def order(run: RunInfo) -> tuple[int, float, str]:
        value = value_of(run, key)
        if isinstance(value, int | float):
            return (0, -float(value), "") if value == value else (2, 0.0, "")
        return (2, 0.0, "") if value is None else (1, 0.0, str(value))

    return sorted(runs, key=order)


def where(runs: Sequence[RunInfo], conditions: Sequence[str]) -> list[RunInfo]:
    """Runs that meet every condition, such as `algo=NAME`, `best>100`, `status!=failed`."""
    for condition in conditions:
        runs = [run for run in runs if _meets(run, *_parsed(runs, condition))]
    return list(runs)


def key_of(condition: str) -> str:
    """The name that a condition is about."""
    return (found.group("key") if (found := _CONDITION.fullmatch(condition)) else condition).strip()


def check_key(runs: Sequence[RunInfo], key: str) -> None:
    """Raise where no run has such a value."""
    known = {*COLUMNS, *_OWN, *(name for run in runs for name in run.values)}
    if runs and key not in known and key.replace("-", "_") not in known:
        near = get_close_matches(key, sorted(known), 3)
        hint = f" Nearest: {', '.join(near)}." if near else ""
        raise UsageError(f"{key}: no run has such a setting or metric.{hint} Columns: {', '.join(COLUMNS)}")


def _parsed(runs: Sequence[RunInfo], condition: str) -> tuple[str, str, str]:
    found = _CONDITION.fullmatch(condition)
    if found is None:
        raise UsageError(f"--where {condition}: expected NAME=VALUE, or one of != < <= > >= in the place of =")
    key, sign, value = (found.group(part).strip() for part in ("key", "sign", "value"))
    check_key(runs, key)
    if sign in ("<", "<=", ">", ">=") and _number(value) is None:
        raise UsageError(f"--where {condition}: {sign} compares numbers, and {value!r} is none")
    return key, sign, value


def _meets(run: RunInfo, key: str, sign: str, value: str) -> bool:
    found, number = value_of(run, key), _number(value)
    mine = None if found is None or isinstance(found, bool) else _number(str(found))
    if sign in ("=", "==", "!="):
        same = mine == number if mine is not None and number is not None else str(found).lower() == value.lower()
        return same == (sign != "!=")
    if mine is None or number is None:
        return False
    return {"<": mine < number, "<=": mine <= number, ">": mine > number, ">=": mine >= number}[sign]


def _number(text: str) -> float | None:
    try:
        return float(text.replace(",", "").replace("_", ""))
    except ValueError:
        return None


def differences(a: RunInfo, b: RunInfo, names: Sequence[str]) -> list[tuple[str, Any, Any]]:
    """Name, value of a, value of b, of those names (settings of their configurations) in which the runs differ."""
    both = [(name, a.values.get(name), b.values.get(name)) for name in names if name not in _NOT_COMPARED]
    return [(name, one, other) for name, one, other in both if one != other]
