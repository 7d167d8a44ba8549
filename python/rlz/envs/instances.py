"""Instances of an environment: what tells one from another in their arguments.

A run makes one instance for each environment of its samplers (index 0, 1, ...), one for the evaluator, and before them
one that is inspected and closed again. Simulators that listen on a port need a port each: `port={5000+index}`.
"""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlz.config import RunConfig

_INDEX = re.compile(r"\{(?:(\d+) *\+ *)?index(?: *\+ *(\d+))?\}")


def evaluator_index(config: "RunConfig") -> int:
    """Index of the evaluator's instance."""
    return config.num_envs


def spare_index(config: "RunConfig") -> int:
    """Index of the instance that is inspected before a run, and of those of `rlz eval` and `rlz.load`."""
    return config.num_envs + 1


def with_index(arguments: Mapping[str, Any], index: int) -> dict[str, Any]:
    """Put an instance's index into its arguments.

    `{index}` and `{5000+index}` as a whole text become an integer; within a text they are replaced.
    """
    return {key: _put(value, index) for key, value in arguments.items()}


def _put(value: Any, index: int) -> Any:
    if isinstance(value, str):
        whole = _INDEX.fullmatch(value)
        return _number(whole, index) if whole else _INDEX.sub(lambda found: str(_number(found, index)), value)
    if isinstance(value, list | tuple):
        return type(value)(_put(item, index) for item in value)
    return with_index(value, index) if isinstance(value, dict) else value


def _number(found: "re.Match[str]", index: int) -> int:
    return index + int(found[1] or 0) + int(found[2] or 0)
