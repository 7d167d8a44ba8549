"""`pytest --quick`: the tests for the edit loop, within a minute. `longer.txt` names the others, by measured time.

`pytest --time-tests` writes that list anew, for those tests that it runs.
"""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

LIST = Path(__file__).with_name("longer.txt")
MOST_S = 0.2
"""Time of a test, all its parameters together, up to which it is quick."""

MARKED = ("slow", "learn", "kill", "wheel", "oracle")
"""Markers of tests that are never quick."""


def name(nodeid: str) -> str:
    """Of a test without its parameters."""
    return nodeid.partition("[")[0]


def listed() -> set[str]:
    return set(LIST.read_text(encoding="utf-8").split())


class Timer:
    """Adds up how long each test took."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[name(report.nodeid)] += report.duration

    def pytest_sessionfinish(self) -> None:
        LIST.write_text("".join(f"{test}\n" for test in sorted(merged(listed(), self.seconds))), encoding="utf-8")


def merged(before: Iterable[str], seconds: Counter[str]) -> set[str]:
    """The list with what was measured now in it."""
    longer = {test for test, took in seconds.items() if took > MOST_S}
    return longer | {test for test in before if test not in seconds}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="only tests of the edit loop, within a minute")
    parser.addoption("--time-tests", action="store_true", help="measure which tests are quick")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--time-tests"):
        config.pluginmanager.register(Timer())


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--quick"):
        return
    longer = listed()

    def quick(item: pytest.Item) -> bool:
        return name(item.nodeid) not in longer and not any(item.get_closest_marker(mark) for mark in MARKED)

    config.hook.pytest_deselected(items=[item for item in items if not quick(item)])
    items[:] = [item for item in items if quick(item)]
