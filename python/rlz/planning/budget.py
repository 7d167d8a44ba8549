"""The time that measuring may take, and what a child process has measured in its part of it."""

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from rlz.bench.children import Child

Progress = Callable[[str, float], None]
"""Called with what is measured next, and the part of the budget that is spent."""


class Budget:
    """The time that measuring may take, and who is told about it."""

    def __init__(self, seconds: float, progress: Progress | None = None) -> None:
        self.seconds = seconds
        self.begin = time.monotonic()
        self._progress = progress

    @property
    def spent(self) -> float:
        """Seconds since the begin."""
        return time.monotonic() - self.begin

    def left(self, part: float = 1.0) -> float:
        """Seconds until a part of the budget is spent, at least 0."""
        return max(0.0, part * self.seconds - self.spent)

    def say(self, text: str) -> None:
        """What is measured next."""
        if self._progress is not None:
            self._progress(text, min(1.0, self.spent / self.seconds))


class Done:
    """What a child of tasks (`rlz.planning.tasks`) has measured, and what of its plan is missing.

    Parameters
    ----------
    name : of everything that it does, for people.
    groups : of figures.
    skipped : errors, and what is missing in the end, are added here.
    """

    def __init__(self, name: str, groups: Sequence[str], skipped: list[str]) -> None:
        self.figures: dict[str, list[Any]] = {group: [] for group in groups}
        self._name = name
        self._plan = [name]
        self._done: set[str] = set()
        self._skipped = skipped

    @property
    def missing(self) -> list[str]:
        """What was neither measured nor is explained by an error."""
        failed = {text.partition(": ")[0] for text in self._skipped}
        return [name for name in self._plan if name not in self._done | failed]

    def follow(self, child: Child, clock: Budget, until: Callable[[], float]) -> None:
        """Take figures until the child ends, or its part of the budget is spent."""
        for line in lines(child, clock, until, self._skipped, self._name):
            self._plan = line.get("plan", self._plan)
            if "next" in line:
                clock.say(line["next"])
            if "done" in line:
                self._done.add(line["done"])
            if "error" in line:
                self._skipped.append(line["error"])
            for group, values in self.figures.items():
                if group in line:
                    values.append(line[group])
        self._skipped += self.missing


def lines(
    child: Child, clock: Budget, until: Callable[[], float], skipped: list[str], name: str
) -> Iterable[dict[str, Any]]:
    """Lines of a child until it ends, or until its part of the budget is spent."""
    while True:
        try:
            line = child.line(clock.left(until()))
        except TimeoutError:
            return
        if line is None:
            if error := child.error():
                skipped.append(f"{name}: {error}")
            return
        yield line
