"""In a child of `rlz profile`: a list of measurements, told to the parent one by one.

Prints {"plan": [name, ...]}, then {"next": name} before each, and after it {"done": name, group: values} or {"error":
"name: reason"}. The parent may end the child at any time and knows what is missing.
"""

from collections.abc import Callable, Iterable
from typing import Any

from rlz.bench.children import say
from rlz.errors import RlzError, in_one_line


class Task:
    """A measurement: its name for people, and the work, which gives JSON values or None where it makes no sense."""

    def __init__(self, name: str, work: Callable[[], dict[str, Any] | None]) -> None:
        self.name = name
        self.work = work


def run(tasks: Iterable[Task]) -> None:
    """Measure. A task that raises is an error of its own, not of all."""
    tasks = list(tasks)
    say({"plan": [task.name for task in tasks]})
    for task in tasks:
        say({"next": task.name})
        try:
            found = task.work()
        except RlzError as error:
            say({"error": f"{task.name}: {error}"})
            continue
        except Exception as error:
            say({"error": f"{task.name}: {in_one_line(error, 200)}"})
            continue
        say({"done": task.name, **(found or {})})


def threads_in_words(count: int) -> str:
    """1 thread, 2 threads."""
    return f"{count} thread{'s' * (count > 1)}"
