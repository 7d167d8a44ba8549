"""Steps in their order, a report of each that a machine can read, and the end at the first hard failure. No torch."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Numbers = dict[str, Any]


class SkippedError(Exception):
    """A step cannot be made here; says why. That is no failure."""


@dataclass(frozen=True)
class Step:
    """Something to check or measure.

    Attributes
    ----------
    work : returns numbers; raises where it fails.
    hard : what follows is worth nothing without it.
    card : only a card can tell.
    seconds : that it needs; with less time left it is skipped.
    """

    name: str
    work: Callable[[], Numbers]
    hard: bool = False
    card: bool = False
    seconds: float = 5.0


class Report:
    """What came of the steps, written after each.

    Parameters
    ----------
    path : of the JSON file: `header`'s keys, `steps` (each with `name`, `status`, `seconds`, `numbers`, `error`),
        `stopped_at` (the hard failure, or null) and `passed`.
    clock : seconds; for tests.
    """

    def __init__(self, path: Path, header: Numbers, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self.found: dict[str, Any] = {**header, "steps": [], "stopped_at": None, "passed": False}

    def run(self, steps: Sequence[Step], *, card: bool, budget: float) -> bool:
        """Make the steps; whether all went well. `budget`: seconds for everything."""
        until = self._clock() + budget
        for step in steps:
            status = self._make(step, card, until)
            if status == "failed" and step.hard:
                self.found["stopped_at"] = step.name
                break
        statuses = [one["status"] for one in self.found["steps"]]
        self.found["passed"] = "failed" not in statuses and "passed" in statuses
        self._write()
        counts = ", ".join(f"{statuses.count(status)} {status}" for status in dict.fromkeys(statuses))
        print(f"report: {self._path}: {counts}", flush=True)
        return bool(self.found["passed"])

    def _make(self, step: Step, card: bool, until: float) -> str:
        begin = self._clock()
        one: dict[str, Any] = {"name": step.name, "status": "passed", "numbers": {}, "error": None}
        try:
            if step.card and not card:
                raise SkippedError("needs a card")
            if until - begin < step.seconds:
                raise SkippedError(f"{max(0.0, until - begin):.0f} s left, {step.seconds:.0f} needed")
            one["numbers"] = step.work()
        except SkippedError as reason:
            one |= {"status": "skipped", "error": str(reason)}
        except Exception as error:
            one |= {"status": "failed", "error": f"{type(error).__name__}: {' '.join(str(error).split())[:600]}"}
        one["seconds"] = round(self._clock() - begin, 2)
        self.found["steps"].append(one)
        self._write()
        print(
            f"{one['status']:8}{step.name} ({one['seconds']:.1f} s): {one['error'] or shown(one['numbers'])}",
            flush=True,
        )
        return str(one["status"])

    def _write(self) -> None:
        scratch = self._path.with_suffix(".tmp")
        scratch.write_text(json.dumps(self.found, indent=1) + "\n")
        scratch.replace(self._path)


def shown(numbers: Numbers) -> str:
    """Numbers in one line."""
    values = ((key, f"{value:.4g}" if isinstance(value, float) else value) for key, value in numbers.items())
    return ", ".join(f"{key} {value}" for key, value in values) or "no numbers"
