"""Looking into a live run from outside: who may, what is handed over, and that the run never waits for a peer."""

import json
import os
import socket
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from harness import Run, config

from rlz.errors import TransportError
from rlz.runtime import live
from rlz.runtime.live import SOCKET, Door, Live, NoAnswerError
from rlz.tracking import WorkerInfo
from rlz.transport.stats import Stat

WORKERS = [WorkerInfo("learner", "learner", 0, 12), WorkerInfo("sampler-0", "sampler", 2, 34, 1, (0,))]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    made = Run(config(), tmp_path)
    yield made
    made.streams.close()


@contextmanager
def open_door(run: Run, folder: Path) -> Iterator[Door]:
    """Serve a run from a thread, as the controller's loop does."""
    door = Door(folder, run.streams, lambda: WORKERS)
    closing = threading.Event()

    def work() -> None:
        while not closing.wait(0.01):
            assert door.serve()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield door
    finally:
        closing.set()
        thread.join()
        door.close()


def test_it_shows_board_counts_and_workers_and_changes_nothing(run: Run, tmp_path: Path) -> None:
    with open_door(run, tmp_path), Live(tmp_path) as seen:
        assert seen.workers() == WORKERS
        assert (seen.pid, seen.limiter.env_steps, seen.limiter.lane_steps()) == (os.getpid(), 0, [0])
        run.streams.stats.set(2, Stat.ENT_COEF, 0.5)
        assert seen.stats.read()[2][Stat.ENT_COEF] == 0.5
        with pytest.raises(TransportError, match="read-only"):
            seen.stats.set(2, Stat.ENT_COEF, 1.0)
        run.limiter.stop()
        before = seen.state
        seen.refresh()
        assert seen.state != before


def test_only_this_user_may_knock_and_a_stale_socket_is_replaced(run: Run, tmp_path: Path) -> None:
    (tmp_path / SOCKET).touch(0o666)
    door = Door(tmp_path, run.streams, lambda: WORKERS)
    mode = (tmp_path / SOCKET).stat().st_mode
    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == 0o600
    door.close()
    door.close()
    assert not (tmp_path / SOCKET).exists()


def test_a_peer_of_another_user_gets_nothing(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_door(run, tmp_path):
        theirs = live._credentials
        main = threading.get_ident()

        def credentials(end: socket.socket) -> tuple[int, int, int]:
            pid, uid, gid = theirs(end)
            return pid, uid + (threading.get_ident() != main), gid

        monkeypatch.setattr(live, "_credentials", credentials)
        with pytest.raises(TransportError, match="only the user who started the run"):
            Live(tmp_path)


def test_a_socket_of_another_user_is_not_trusted(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_door(run, tmp_path):
        uid = os.geteuid()
        main = threading.get_ident()
        monkeypatch.setattr(os, "geteuid", lambda: uid + (threading.get_ident() == main))
        with pytest.raises(TransportError, match="another user"):
            Live(tmp_path)


def test_a_deep_run_folder_is_no_problem(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / ("a" * 120) / ("b" * 120)
    folder.mkdir(parents=True)
    with open_door(run, folder), Live(folder) as seen:
        assert seen.pid == os.getpid()


def test_a_run_that_is_not_served_or_does_not_answer(run: Run, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Live(tmp_path)
    door = Door(tmp_path, run.streams, lambda: WORKERS)
    with pytest.raises(NoAnswerError, match=rf"process {os.getpid()}\) does not answer within 0.1 s"):
        Live(tmp_path, timeout=0.1)
    door.close()


def test_peers_that_hang_up_or_never_read_hold_nothing_up_and_leak_nothing(run: Run, tmp_path: Path) -> None:
    door = Door(tmp_path, run.streams, lambda: WORKERS)
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for _ in range(50):
        peers = [socket.socket(socket.AF_UNIX) for _ in range(3)]
        for peer in peers:
            peer.connect(str(tmp_path / SOCKET))
        peers[0].close()
        assert door.serve()
        for peer in peers:
            peer.close()
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
    door.close()


def test_another_version_is_named(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for description in ({"format": 2}, {"format": 1}, {"format": 1, "pid": "x"}, []):
        monkeypatch.setattr(Door, "_describe", lambda _, value=description: value)
        with open_door(run, tmp_path), pytest.raises(TransportError, match="another version of rlz"):
            Live(tmp_path)
    monkeypatch.setattr(live, "GREETING", b"rlz live 2\n")
    monkeypatch.setattr(json, "dumps", lambda _: "{")
    with open_door(run, tmp_path), pytest.raises(TransportError, match="another version of rlz"):
        Live(tmp_path)
