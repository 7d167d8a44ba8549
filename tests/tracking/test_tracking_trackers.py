"""Trackers as sinks: what they are sent, and that a run does not feel them, whatever they do."""

import importlib.util
import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from rlz.tracking import tracker
from rlz.tracking.trackers import InThread
from support.tracking import EVALUATION, FakeStreams, make

TRACKERS = ["wandb", "trackio"]


def put_in_place(monkeypatch: pytest.MonkeyPatch, name: str, init: Callable[..., Any]) -> None:
    fake = ModuleType(name)
    fake.init = init
    fake.__spec__ = ModuleSpec(name, None)
    monkeypatch.setitem(sys.modules, name, fake)


@pytest.mark.parametrize(("name", "extra"), [("wandb", "track"), ("trackio", "trackio")])
def test_a_tracker_that_is_missing_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, extra: str
) -> None:
    monkeypatch.setattr(tracker.importlib.util, "find_spec", lambda _: None)
    make(tmp_path, FakeStreams(), track=True, tracker=name).finish("completed")
    assert f"{name} is not installed" in (tmp_path / "logs" / "events.log").read_text()
    assert f"uv sync --extra {extra}\n" in (tmp_path / "logs" / "events.log").read_text()


@pytest.mark.parametrize("name", TRACKERS)
def test_a_tracker_is_sent_what_is_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    sent: list[Any] = []
    made: dict[str, Any] = {}

    def init(**named: Any) -> SimpleNamespace:
        made.update(named)
        return SimpleNamespace(
            log=lambda scalars, **more: sent.append((scalars, more)),
            define_metric=lambda *_, **__: None,
            finish=lambda: sent.append("end"),
        )

    put_in_place(monkeypatch, name, init)
    streams = FakeStreams()
    run = make(tmp_path, streams, track=True, tracker=name, wandb_project_name="mine")
    streams.step(600, 500)
    streams.stats.rings[1].append(list(EVALUATION))
    run.finish("completed")
    assert (made["project"], made["name"], made["config"]["env"]) == ("mine", tmp_path.name, "Pendulum-v1")
    (evaluation, at), (line, later), end = sent
    assert (evaluation["eval/return_mean"], evaluation["env_steps"]) == (-150.0, 1000)
    assert (line["env_steps"], line["replay/ratio"]) == (600, 1.0)
    assert (at, later) == (({"step": 1000}, {"step": 600}) if name == "trackio" else ({}, {}))
    assert end == "end"
    first = made.get("id")
    make(tmp_path, FakeStreams(), track=True, tracker=name).finish("completed")
    assert (made.get("id"), made["resume"]) == (first, "allow"), "a resumed run goes on there"


@pytest.mark.parametrize("name", TRACKERS)
@pytest.mark.parametrize("fails", ["init", "log", "finish"])
def test_a_tracker_that_fails_costs_a_run_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, fails: str
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ConnectionError("no network")

    parts: dict[str, Any] = dict.fromkeys(("log", "define_metric", "finish"), lambda *_, **__: None)
    put_in_place(monkeypatch, name, fail if fails == "init" else lambda **_: SimpleNamespace(**parts | {fails: fail}))
    streams = FakeStreams()
    run = make(tmp_path, streams, track=True, tracker=name)
    for turn in range(1, 4):
        streams.step(100, 100)
        run.tick(time.monotonic() + 6 * turn)
        time.sleep(0.05)
    assert run.finish("completed")["status"] == "completed"
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 4
    events = (tmp_path / "logs" / "events.log").read_text()
    assert events.count(f"{name} is not written any more: ConnectionError: no network") == (fails != "finish")


def test_a_tracker_that_hangs_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hangs = threading.Event()
    put_in_place(monkeypatch, "trackio", lambda **_: hangs.wait(60))
    monkeypatch.setattr(InThread.close, "__defaults__", (0.1,))
    streams = FakeStreams()
    run = make(tmp_path, streams, track=True, tracker="trackio")
    began = time.monotonic()
    for turn in range(1, 300):
        run.tick(time.monotonic() + 6 * turn)
    assert run.finish("completed")["status"] == "completed"
    assert time.monotonic() - began < 30, "no line waits for it"
    hangs.set()


@pytest.mark.skipif(importlib.util.find_spec("trackio") is None, reason="trackio is not installed (--extra trackio)")
def test_trackio_itself_without_a_network(tmp_path: Path) -> None:
    code = """
import time
from pathlib import Path
from support.tracking import FakeStreams, make
streams = FakeStreams()
run = make(Path("run"), streams, track=True, tracker="trackio", wandb_project_name="mine")
for turn in range(1, 4):
    streams.step(100, 100)
    run.tick(time.monotonic() + 6 * turn)
run.finish("completed")
"""
    (tmp_path / "run").mkdir()
    environment = {**os.environ, "TRACKIO_DIR": str(tmp_path / "kept"), "HF_HUB_OFFLINE": "1"}
    environment["PYTHONPATH"] = str(Path(__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    (kept,) = (tmp_path / "kept").glob("mine*.db")
    with sqlite3.connect(kept) as database:
        steps = [step for (step,) in database.execute("SELECT step FROM metrics ORDER BY step")]
    assert steps == [100, 200, 300, 300]


def test_a_slow_sink_in_a_thread_never_holds_its_caller():
    seen = []

    class Slow:
        def __init__(self):
            time.sleep(0.2)

        def log(self, *arguments):
            seen.append(arguments[0])

        def close(self):
            seen.append("closed")

    sink = InThread(Slow, capacity=4)
    begin = time.monotonic()
    for step in range(10):
        sink.log(step, 0.0, 0, {})
    assert time.monotonic() - begin < 0.1
    sink.close()
    assert seen == [7, 8, 9, "closed"]  # the oldest are dropped


def test_an_error_in_a_thread_reaches_the_tracker():
    class Broken:
        def note(self, text):
            raise RuntimeError("no network")

    sink = InThread(Broken)
    sink.note("one")
    sink._thread.join(5)
    with pytest.raises(RuntimeError, match="no network"):
        sink.note("two")
