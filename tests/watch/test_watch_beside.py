"""`rlz train --watch`: a server beside a run, which neither waits for it nor takes it along."""

import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from rlz.cli import main
from rlz.system.priority import NICE
from rlz.watch import beside, serve
from support.watch_runs import make_run


def test_it_says_its_address_and_has_a_session_of_its_own(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path)
    beside.start_beside(run)
    said = capfd.readouterr().out
    pid = int(re.search(r"to end it: kill (\d+)", said)[1])  # type: ignore[index]
    try:
        assert re.search(r"old: http://127\.0\.0\.1:\d+/\?token=\S+\n", said)
        assert os.getsid(pid) == pid
        nice = min(19, os.nice(0) + NICE)
        assert psutil.Process(pid).nice() == nice
        assert f" nice {NICE}" in Path(f"/proc/{pid}/autogroup").read_text()
        # The second token is not in what the page shows.
        control = re.search(r"write a checkpoint: (\S+)", said)
        assert control is not None
        assert control[1] not in (run / "logs" / "events.log").read_text()
        assert not list((run / "logs").glob("*.log*"))[1:]
    finally:
        os.kill(pid, signal.SIGTERM)
        assert os.waitpid(pid, 0)[0] == pid


def test_a_run_goes_on_without_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(beside.sys, "executable", "/bin/false")
    beside.start_beside(make_run(tmp_path))
    assert "the run goes on without it" in capfd.readouterr().out


def test_train_starts_it_before_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Callable[[Path], None] | None] = []

    def train(*_: Any, beside: Callable[[Path], None] | None, **__: Any) -> int:
        given.append(beside)
        return 0

    monkeypatch.setattr("rlz.runtime.train.train", train)
    line = ["train", "sac", "--env", "Pendulum-v1", "--plan", "off"]
    assert main([*line, "--watch"]) == main(line) == 0
    assert given == [beside.start_beside, None]


def test_it_leaves_when_the_run_has_ended_and_nobody_looks(tmp_path: Path) -> None:
    code = f"""
from pathlib import Path
from rlz.watch import serve
serve.PATIENCE_S, serve.LOOK_S = 0.2, 0.05
serve.watch(Path({str(make_run(tmp_path))!r}), leave=True)
"""
    began = time.monotonic()
    done = subprocess.run([beside.sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - began < 30


def test_whoever_is_quick_is_not_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reached: list[str] = []

    def announce(_: Path, port: int, __: object) -> list[str]:
        with socket.create_connection((serve.HOST, port), timeout=5):
            reached.append("yes")
        raise KeyboardInterrupt

    monkeypatch.setattr(serve, "announcement", announce)
    monkeypatch.setattr(serve, "give_way", lambda: None)
    with pytest.raises(KeyboardInterrupt):
        serve.watch(make_run(tmp_path))
    assert reached == ["yes"]
