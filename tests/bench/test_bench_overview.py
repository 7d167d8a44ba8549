"""`rlz bench` without a workload: one table of all, whatever fails, beside what is installed."""

import io
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console

from rlz.bench import environments, overview
from rlz.bench.result import Job, Outcome, Result
from rlz.cli import main


def job(name: str, metrics: dict[str, dict[str, float]], needed: bool = False) -> Job:
    return Job(name, lambda _: Outcome(metrics), needed)


def failing(name: str) -> Job:
    def run(_: int) -> Outcome:
        raise RuntimeError("no such thing")

    return Job(name, run, needed=True)


def test_the_best_of_the_others_stands_beside_rlz() -> None:
    result = Result()
    result.add(
        Outcome({
            "rlz": {"steps": 10.0, "x_us": 3.0, "own": 1.0},
            "rlz in place": {"steps": 90.0},
            "memcpy: one place": {"steps": 99.0},
            "a: 1": {"steps": 5.0, "x_us": 4.0},
            "b": {"steps": 8.0, "x_us": 2.0},
        })
    )  # fmt: skip
    assert overview.rows_of("w", result, ("steps", "x_us", "own", "none")) == [
        overview.Row("w", "steps", 10.0, "b", 8.0),
        overview.Row("w", "x_us", 3.0, "b", 2.0),
        overview.Row("w", "own", 1.0),
    ]


def test_a_workload_that_fails_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def workloads(env: str, peers: Any, cores: int) -> dict[str, Any]:
        assert (env, peers) == ("Pendulum-v1", ["sb3"])
        good = [
            job("rlz", {"rlz": {"steps": 1234.0}}),
            job("sb3", {"sb3: 1 thread": {"steps": 617.0}}),
            failing("core"),
        ]
        return {"one": ([failing("rlz")], ("steps",)), "two": (good, ("steps",))}

    monkeypatch.setattr(overview, "workloads", workloads)
    monkeypatch.setattr(overview, "installed_peers", lambda: ["sb3"])
    console = Console(record=True, width=160, file=io.StringIO())
    rows = overview.overview("Pendulum-v1", console=console)
    assert rows == [overview.Row("two", "steps", 1234.0, "sb3: 1 thread", 617.0)]
    text = console.export_text()
    assert "failed: one: no such thing" in text
    assert "2.00" in text
    assert "Not installed: sbx, cpprb, torchrl, faster-fifo." in text


def test_every_workload_has_a_row_of_rlz_to_show() -> None:
    for name, (jobs, metrics) in overview.workloads("Pendulum-v1", [], 1).items():
        assert jobs, name
        assert metrics, name


def test_only_what_is_complete_is_installed(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert environments.installed_peers() == []
    folder = environments._folder("cpprb")
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").touch()
    assert environments.installed_peers() == []
    (folder / "complete").touch()
    assert environments.installed_peers() == ["cpprb"]


@pytest.mark.parametrize("options", [["--peers", "sb3"], ["--output", "x.json"], ["--seconds", "3"]])
def test_what_needs_a_workload_says_so(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *options]) == 2
    assert "need a WORKLOAD" in capsys.readouterr().err


def test_the_command_alone_calls_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    call: Callable[..., None] = lambda env, rounds: seen.append((env, rounds))  # noqa: E731
    monkeypatch.setattr(overview, "overview", call)
    assert main(["bench"]) == 0
    assert main(["bench", "--env", "Pendulum-v1", "--rounds", "2"]) == 0
    assert seen == [("Ant-v4", 1), ("Pendulum-v1", 2)]
