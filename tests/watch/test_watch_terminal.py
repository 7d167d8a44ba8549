"""`rlz top` and `rlz trace`: the same run, in a terminal and as a time line."""

import json
import threading
import time
from itertools import pairwise
from pathlib import Path

import pytest

from rlz.cli import main
from rlz.records.runs import hold_lock
from rlz.transport.serving import serve
from rlz.transport.stats import Stat
from rlz.watch import top as module
from rlz.watch import trace as tracing
from support.watch_runs import make_run


def test_top_shows_a_run_that_has_ended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path / "runs")
    assert main(["top", "old", "--runs-dir", str(tmp_path / "runs")]) == 0
    shown = capsys.readouterr().out
    assert "old: completed" in shown
    assert "5,000/5,000" in shown
    assert "waits for env steps" in shown
    assert "best -150.5" in shown


def test_the_newest_run_is_the_last_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path, "a")
    time.sleep(0.02)
    make_run(tmp_path, "b")
    assert main(["top", "--runs-dir", str(tmp_path)]) == 0
    assert "b: completed" in capsys.readouterr().out
    assert main(["top", str(tmp_path / "a")]) == 0
    assert "a: completed" in capsys.readouterr().out
    assert main(["top", "none", "--runs-dir", str(tmp_path)]) == 1
    assert "is no run" in capsys.readouterr().err


def test_a_broken_configuration_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = make_run(tmp_path, "a")
    assert main(["top", str(path)]) == 0
    assert capsys.readouterr().out.endswith("\n")
    (path / "config.toml").write_text("a = = 1")
    assert main(["top", str(path)]) == 1
    error = capsys.readouterr().err
    assert f"{path / 'config.toml'} is not TOML" in error
    assert "bug" not in error


def test_bars_are_as_long_as_the_shares(tmp_path: Path) -> None:
    from rich.console import Console

    from rlz.watch.source import Source

    view = Source(make_run(tmp_path)).look()
    console = Console(width=100, record=True, color_system=None)
    console.print(module.bars(view))
    learner, sampler = console.export_text().splitlines()[:2]
    assert learner.count("█") == round(0.75 * module.WIDTH) + round(0.2 * module.WIDTH)
    assert sampler.count("█") == module.WIDTH


def test_a_trace_is_the_time_line_of_the_workers(tmp_path: Path) -> None:
    from support.harness import Run, config

    run = Run(config(), tmp_path)
    ending = threading.Event()

    def work() -> None:
        row = run.streams.row(run.place("sampler").slot)
        while not ending.wait(0.001):
            for phase in (Stat.ACT_S, Stat.ENVIRONMENT_S, Stat.COPY_S, Stat.WAIT_LIMITER_S):
                row.enter(phase)

    from rlz.runtime.live import SOCKET, open_door
    from rlz.tracking import WorkerInfo

    infos = [WorkerInfo.of(run.place(role), 12) for role in ("learner", "sampler")]
    door = open_door(tmp_path, run.job, run.streams, lambda: infos)
    served, described = {name: getattr(run.streams, name) for name in ("stats", "trace", "limiter")}, door._describe
    door.close()
    working = threading.Thread(target=work)
    working.start()
    try:
        with hold_lock(tmp_path), serve(served, tmp_path / SOCKET, described):
            found = tracing.trace(tmp_path, 0.5, tmp_path / "trace.json")
    finally:
        ending.set()
        working.join()
        run.streams.close()
    assert found.workers == 2
    assert not found.missed
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    phases = [event for event in events if event["ph"] == "X"]
    assert found.phases == len(phases) > 100
    assert {event["name"] for event in phases} == {"act", "environment", "copy", "wait: replay ratio"}
    names = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names == {"learner (12)", "sampler-0 (12)"}
    # One after another without a gap, from the beginning to the end.
    for before, after in pairwise(phases):
        end, begin = (round(1000 * moment) for moment in (before["ts"] + before["dur"], after["ts"]))
        assert 0 <= begin - end <= 10  # nanoseconds; one that ended later would be nested by Perfetto
    assert phases[-1]["ts"] + phases[-1]["dur"] == pytest.approx(0.5e6, rel=0.2)


def test_a_run_that_has_ended_has_no_time_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path)
    assert main(["trace", str(tmp_path / "old"), "--output", str(tmp_path / "trace.json")]) == 1
    assert f"{tmp_path / 'old'} has ended" in capsys.readouterr().err
    assert not (tmp_path / "trace.json").exists()
