"""`rlz bench`: what its options come to, one table of all, whatever fails, beside what is installed."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from rlz import bench
from rlz.bench import environments, overview
from rlz.bench.load import Load
from rlz.bench.result import Job, Outcome, Workload
from rlz.cli import main
from rlz.errors import ConfigError, RlzError


def job(name: str, metrics: dict[str, dict[str, float]]) -> Job:
    return Job(name, lambda _: Outcome(metrics))


def failing(name: str) -> Job:
    def run(_: int) -> Outcome:
        raise RlzError("no such thing")

    return Job(name, run, needed=True)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Workloads that need no time; what they were asked for."""
    asked: list[tuple[Any, ...]] = []

    def make(name: str, machine: Any, env: Any, algo: Any, peers: Any, seconds: Any, **more: Any) -> Workload:
        asked.append((name, env, algo, list(peers), seconds, more["quick"]))
        if name == "replay":
            return Workload(name, [failing("rlz")], ("steps",))
        figures = {
            "rlz": {"steps": 10.0, "x_us": 3.0, "own": 1.0},
            "rlz in place": {"steps": 90.0},
            "memcpy: one place": {"steps": 99.0},
            "loop": {"steps": 20.0},
            "a: 1": {"steps": 5.0, "x_us": 4.0},
            "b": {"steps": 8.0, "x_us": 2.0},
        }
        jobs = [job(one, {one: values}) for one, values in figures.items()]
        return Workload(name, jobs, ("steps", "x_us", "own", "none"), {"env": "E"}, {"steps": "loop"})

    monkeypatch.setattr(bench, "make_workload", make)
    monkeypatch.setattr("rlz.bench.load.look", lambda: Load(0.0))
    monkeypatch.setattr(environments, "installed_peers", lambda: ["sb3", "faster-fifo"])
    return asked


def test_the_best_of_the_others_and_the_limit_stand_beside_rlz(measured: Any) -> None:
    report = bench.run_bench(["transport"], rounds=1, console=Console(quiet=True))
    assert overview.rows_of(report["workloads"][0]) == [
        overview.Row("transport", "steps", 10.0, "b", 8.0, None, 0.5),
        overview.Row("transport", "x_us", 3.0, "b", 2.0),
        overview.Row("transport", "own", 1.0),
    ]


def test_a_workload_that_fails_leaves_the_others_and_what_is_missing_says_how_to_get_it(measured: Any) -> None:
    console = Console(record=True, width=200, file=io.StringIO())
    bench.run_bench(["replay", "train"], view=overview.show_overview, console=console, quick=True)
    text = console.export_text()
    assert "failed: replay: no such thing" in text
    assert "1.25" in text
    assert "50 %" in text
    assert "- sbx: not installed: rlz bench --setup-peers --peers sbx (train)" in text
    assert [name for name, *_ in measured] == ["replay", "train"]
    with pytest.raises(RlzError, match="no such thing"):
        bench.run_bench(["replay"], console=Console(quiet=True))


@pytest.mark.parametrize(
    ("line", "asked"),
    [
        (["train"], [("train", None, "sac", ["sb3"], 20.0, False)]),
        (["train", "--peers", "none", "--seconds", "2"], [("train", None, "sac", [], 2.0, False)]),
        (["train", "--algo", "td3", "--quick", "--env", "X"], [("train", "X", "td3", ["sb3"], 6.0, True)]),
        (["train", "--algo", "dqn"], [("train", None, "dqn", [], 20.0, False)]),
        (["transport", "--peers", "auto"], [("transport", None, "sac", ["faster-fifo"], 8.0, False)]),
    ],
)
def test_options_of_the_command(measured: Any, line: list[str], asked: Any, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    assert main(["bench", *line, "--rounds", "2", "--output", str(folder)]) == 0
    assert measured == asked
    report = json.loads((folder / "report.json").read_text())
    assert report["format"] == 2
    assert len(report["workloads"][0]["contenders"]["rlz"]["steps"]["values"]) == 2
    assert (folder / "report.md").read_text().startswith(f"## {line[0]} on E, 2 rounds")
    assert (folder / "report.html").read_text().startswith("<!doctype html>")


def test_the_command_alone_measures_a_little_of_each_but_runs_to_a_score(
    measured: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "--peers", "none"]) == 0
    assert [(name, quick) for name, *_, quick in measured] == [(name, True) for name in bench.QUICK]
    assert "of the limit" in capsys.readouterr().out
    assert main(["bench", "train", "--quick", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["workloads"][0]["workload"] == "train"


def test_a_report_is_compared_with_an_older_one(
    measured: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "train", "--output", str(tmp_path / "a")]) == 0
    capsys.readouterr()
    assert main(["bench", "train", "--compare", str(tmp_path / "a" / "report.json")]) == 0
    assert "train, steps: 10 -> 10, 1.00 times (95 % interval 1.00 to 1.00): no change" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (["train", "--peers", "sb4"], "unknown peer 'sb4'; known: sb3, sbx"),
        (["transport", "--peers", "cpprb"], "cpprb has nothing to measure in transport; peers of transport: faster"),
        (["train", "--output", "none/of/these"], "expected a folder"),
        (["train", "--setup-peers"], "leave out the workload"),
        (["train", "--score", "3"], "--score is of the workload score"),
        (["train", "--compare", "none.json"], "cannot be read"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_runs(
    measured: Any, line: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *line]) in (1, 2)
    assert said in " ".join(capsys.readouterr().err.split())
    assert not measured


def test_environments_of_peers_are_made_when_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = []

    def make(name: str) -> None:
        made.append(name)
        if name == "sbx":
            raise ConfigError("uv could not install sbx: no wheel")

    monkeypatch.setattr(environments, "peer_python", make)
    assert main(["bench", "--setup-peers", "--peers", "sb3,cpprb"]) == 0
    assert made == ["sb3", "cpprb"]
    assert main(["bench", "--setup-peers", "--peers", "sbx"]) == 1
    assert "no wheel" in capsys.readouterr().err
    assert main(["bench", "--setup-peers"]) == 1
    assert made[3:] == list(environments.PEERS)


def test_only_what_is_complete_is_installed(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert environments.installed_peers() == []
    folder = environments._folder("cpprb")
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").touch()
    assert environments.installed_peers() == []
    (folder / "complete").touch()
    assert environments.installed_peers() == ["cpprb"]


@pytest.mark.parametrize("name", bench.WORKLOADS)
def test_every_workload_can_be_made(name: str) -> None:
    from rlz.system.detect import detect

    made = bench.make_workload(name, detect(), "Pendulum-v1", "sac", ["sb3", "cleanrl"], 1.0, quick=True)
    assert made.name == name
    assert made.metrics
    names = [one.name for one in made.jobs]
    assert any(one.startswith("rlz") for one in names)
    assert len(set(names)) == len(names)
