"""Attaching to the streams of another process: who may, what is handed over, that serving never waits for a peer."""

import errno
import gc
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlz.errors import ClosedError, NoAnswerError, NotServedError, TransportError, WaitTimeoutError
from rlz.transport import Limiter, ParameterStore, Replay, StatsBoard, attach, serve
from rlz.transport import serving as module
from rlz.transport.handover import FORMAT, GREETING, MOST_BYTES
from rlz.transport.serving import Door


def board() -> StatsBoard:
    return StatsBoard.create(slots=1, names=["reward"], event_width=1, event_capacity=2, run_id=1)


def store() -> ParameterStore:
    return ParameterStore.create([("w", "f32", (2,))], leases=1, run_id=1)


def limiter() -> Limiter:
    return Limiter.create(lanes=1, total_timesteps=9, learning_starts=0, ratio=None, slack=1.0, run_id=1)


def numbers(*values: float) -> np.ndarray:
    return np.array(values, np.float32).view(np.uint8)


def settles(fds: int) -> bool:
    """Whether the server, a thread of this process, closes its ends so that no more descriptors are left."""
    deadline = time.monotonic() + 10
    while open_fds() != fds and time.monotonic() < deadline:
        time.sleep(0.01)
    return open_fds() == fds


@pytest.fixture(autouse=True)
def nothing_of_earlier_tests_is_left() -> None:
    """Descriptors are counted here; those of objects that nobody holds must not go in between."""
    gc.collect()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "job.sock"


def open_fds() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


def test_streams_are_read_and_not_changed(path: Path) -> None:
    streams = {"board": board(), "parameters": store(), "limiter": limiter()}
    count = 0

    def describe() -> dict[str, int]:
        return {"count": count}

    with serve(streams, path, describe), attach(path) as job:
        assert (job.pid, job.info, list(job.streams)) == (os.getpid(), {"count": 0}, list(streams))
        count = 7
        job.refresh()
        assert job.info == {"count": 7}
        streams["board"].set(0, 0, 2.5)
        assert job.streams["board"].read().tolist() == [[2.5]]
        streams["limiter"].acquire_steps([0], np.zeros(1, np.int64), worker=1, timeout=0)
        streams["limiter"].complete_step(0)
        assert (job.streams["limiter"].env_steps, job.streams["limiter"].lane_steps()) == (1, [1])
        for change in (
            lambda: job.streams["board"].set(0, 0, 1.0),
            lambda: job.streams["limiter"].stop(),
            lambda: job.streams["limiter"].acquire_updates(1, worker=1, timeout=0),
            lambda: job.streams["parameters"].publisher(worker=1),
            lambda: job.streams["parameters"].reap(1),
        ):
            with pytest.raises(TransportError, match="read-only"):
                change()


def test_parameters_are_copied_and_waited_for_without_a_trace(path: Path) -> None:
    parameters = store()
    publisher = parameters.publisher(worker=1)
    with serve({"parameters": parameters}, path), attach(path) as job:
        subscriber = job.streams["parameters"].subscriber()
        into = np.zeros(8, np.uint8)
        with pytest.raises(TransportError, match="nothing has been published"):
            subscriber.read(into)
        with pytest.raises(WaitTimeoutError):
            subscriber.wait_newer(0, timeout=0.01)
        threading.Timer(0.05, lambda: publisher.publish(numbers(1, 2), env_steps=3, updates=4)).start()
        assert subscriber.wait_newer(0, timeout=10) == 1
        assert subscriber.read(into) == (1, 3, 4)
        assert into.view(np.float32).tolist() == [1, 2]
        leased = parameters.subscriber(worker=2)  # the one cell is still free
        publisher.publish(numbers(3, 4), env_steps=5, updates=6)
        assert subscriber.wait_env_steps(5, timeout=0) == leased.version() == 2


def test_a_bundle_outlives_its_server(path: Path) -> None:
    numbers_of = board()
    server = serve({"board": numbers_of}, path)
    job = attach(path)
    server.close()
    server.close()
    assert not path.exists()
    numbers_of.set(0, 0, 1.0)
    assert job.streams["board"].read().tolist() == [[1.0]]
    with pytest.raises(NotServedError, match="no such socket"):
        job.refresh()
    job.close()
    job.close()
    with pytest.raises(ClosedError):
        job.streams["board"].read()


def test_the_socket_is_private_and_short_paths_are_not_needed(tmp_path: Path) -> None:
    folder = tmp_path / ("a" * 120) / ("b" * 120)
    folder.mkdir(parents=True)
    with serve({"board": board()}, folder / "job.sock"), attach(folder / "job.sock") as job:
        mode = (folder / "job.sock").stat().st_mode
        assert stat.S_ISSOCK(mode)
        assert stat.S_IMODE(mode) == 0o600
        assert job.pid == os.getpid()


KILLED = """
import sys
from rlz.transport import StatsBoard, serve
board = StatsBoard.create(slots=1, names=["x"], event_width=1, event_capacity=2, run_id=1)
server = serve({"board": board}, sys.argv[1])
print("serving", flush=True)
sys.stdin.read()
"""


def test_what_a_killed_server_leaves_is_named_and_replaced(path: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "serving\n"
        with attach(path) as job:
            assert job.pid == process.pid
            with pytest.raises(OSError, match="another process serves it"):
                serve({"board": board()}, path)
            process.send_signal(signal.SIGKILL)
            process.wait()
            assert job.streams["board"].read().tolist() == [[0.0]]  # the memory is still held here
            with pytest.raises(NotServedError, match="the process that did is dead"):
                job.refresh()
            assert path.exists()
            with serve({"board": board()}, path):
                with pytest.raises(TransportError, match=f"served by process {os.getpid()} now"):
                    job.refresh()
                attach(path).close()


def test_only_a_stale_socket_is_replaced(path: Path) -> None:
    path.touch()  # what a copy of the folder has in its place
    Door({"board": board()}, path).close()
    path.write_text("precious")
    before = open_fds()
    with pytest.raises(FileExistsError, match="no socket"):
        Door({"board": board()}, path)
    assert open_fds() == before
    assert path.read_text() == "precious"
    with pytest.raises(NotServedError):
        attach(path)
    with pytest.raises(NotServedError):
        attach(path.parent / "missing" / "job.sock")


def test_a_server_does_not_remove_the_socket_of_its_successor(path: Path) -> None:
    first = Door({"board": board()}, path)
    path.unlink()
    with Door({"board": board()}, path):
        first.close()
        assert path.exists()


def test_a_description_that_fails_is_told_and_the_next_one_is_answered(path: Path) -> None:
    values: list[object] = [RuntimeError("not ready"), {1, 2}, "x" * (MOST_BYTES + 1), "fine"]

    def describe() -> object:
        value = values.pop(0)
        if isinstance(value, Exception):
            raise value
        return value

    with serve({"board": board()}, path, describe):
        before = open_fds()
        for said in ("RuntimeError: not ready", "TypeError: .*set", "ValueError: a description of"):
            with pytest.raises(TransportError, match=f"process {os.getpid()}.* failed to describe itself: {said}"):
                attach(path)
        assert settles(before)
        with attach(path) as job:
            assert job.info == "fine"
            values.append(KeyError("gone"))
            with pytest.raises(TransportError, match="KeyError: 'gone'"):
                job.refresh()
            assert (job.info, job.streams["board"].read().tolist()) == ("fine", [[0.0]])


def test_of_two_that_find_a_stale_socket_one_serves(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    theirs, inside, leave = module._remove_stale, threading.Event(), threading.Event()
    entries: list[str] = []

    def remove(found: Path) -> None:
        entries.append(threading.current_thread().name)
        if len(entries) == 1:
            inside.set()
            leave.wait(30)
        theirs(found)

    monkeypatch.setattr(module, "_remove_stale", remove)
    monkeypatch.setattr(module, "_ALONE_S", 30.0)
    outcome: list[object] = []

    def begin() -> None:
        try:
            outcome.append(Door({"board": board()}, path))
        except OSError as error:
            outcome.append(error)

    threads = [threading.Thread(target=begin, name=name) for name in ("first", "second")]
    threads[0].start()
    assert inside.wait(30)
    threads[1].start()
    threads[1].join(0.2)
    assert entries == ["first"], "the second one looks at a socket that the first one is about to replace"
    leave.set()
    for thread in threads:
        thread.join(30)
    door, refused = sorted(outcome, key=lambda found: isinstance(found, Exception))
    assert isinstance(door, Door)
    assert "another process serves it" in str(refused)
    with door, socket.socket(socket.AF_UNIX) as peer:
        peer.connect(str(path))
    assert not path.exists()


def test_out_of_descriptors_is_no_end(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Door({"board": board()}, path) as door:
        theirs, full = socket.socket.accept, [True]

        def accept(self: socket.socket) -> Any:
            if full.pop() if full else False:
                raise OSError(errno.EMFILE, "too many open files")
            return theirs(self)

        monkeypatch.setattr(socket.socket, "accept", accept)
        before = open_fds()
        with socket.socket(socket.AF_UNIX) as peer:
            peer.connect(str(path))
            assert door.answer()
            assert peer.recv(1) == b"", "let go of"
        with socket.socket(socket.AF_UNIX) as peer:
            peer.connect(str(path))
            assert door.answer()
            assert peer.recv(99) == GREETING
        assert open_fds() == before


def test_only_streams_that_can_be_read_are_served(path: Path) -> None:
    replay = Replay.create([("x", "f32", ())], buffer_size=10, lanes=1, run_id=1)
    before = open_fds()
    with pytest.raises(TypeError, match="'rows': given a Replay"):
        Door({"board": board(), "rows": replay}, path)  # type: ignore[dict-item]
    assert open_fds() == before
    assert not path.exists()


@pytest.fixture
def served(path: Path) -> Iterator[Path]:
    with serve({"board": board()}, path):
        yield path


def test_a_peer_of_another_user_gets_nothing(served: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs, main = module.credentials, threading.get_ident()

    def credentials(end: socket.socket) -> tuple[int, int, int]:
        pid, uid, gid = theirs(end)
        return pid, uid + (threading.get_ident() != main), gid

    monkeypatch.setattr(module, "credentials", credentials)
    with pytest.raises(TransportError, match="only the user who serves them"):
        attach(served)


def test_a_socket_of_another_user_is_not_trusted(served: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uid, main = os.geteuid(), threading.get_ident()
    monkeypatch.setattr(os, "geteuid", lambda: uid + (threading.get_ident() == main))
    with pytest.raises(TransportError, match="another user"):
        attach(served)


def test_a_server_that_does_not_answer(path: Path) -> None:
    with Door({"board": board()}, path), pytest.raises(NoAnswerError, match="does not answer within") as caught:
        attach(path, timeout=0.1)
    assert (caught.value.pid, caught.value.timeout) == (os.getpid(), 0.1)
    assert isinstance(caught.value, TimeoutError)


def test_peers_that_hang_up_or_never_read_hold_nothing_up_and_leak_nothing(path: Path) -> None:
    with Door({"board": board(), "parameters": store()}, path) as door:
        before = open_fds()
        for _ in range(50):
            peers = [socket.socket(socket.AF_UNIX) for _ in range(3)]
            for peer in peers:
                peer.connect(str(path))
            peers[0].close()
            assert door.answer()
            for peer in peers:
                peer.close()
        assert open_fds() == before


def test_attaching_leaks_nothing(served: Path) -> None:
    before = open_fds()
    for _ in range(20):
        with attach(served) as job:
            job.refresh()
    assert settles(before)


@pytest.mark.parametrize(
    "description",
    [
        {"format": FORMAT + 1},
        [],
        {"format": FORMAT, "info": None, "streams": [["board", "Unknown", 1]]},
        {"format": FORMAT, "info": None, "streams": [["board", "StatsBoard", 2]]},
        {"format": FORMAT, "info": None, "streams": [["board"]]},
    ],
)
def test_another_version_is_named(served: Path, description: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    text = json.dumps(description)
    monkeypatch.setattr(json, "dumps", lambda _: text)
    before = open_fds()
    with pytest.raises(TransportError, match="another version of rlz"):
        attach(served)
    assert settles(before)


def test_another_greeting_is_another_version(served: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = GREETING
    monkeypatch.setattr(socket, "send_fds", lambda peer, _, fds, send=socket.send_fds: send(peer, [b"rlz 2\n"], fds))
    assert theirs != b"rlz 2\n"
    with pytest.raises(TransportError, match="another version of rlz"):
        attach(served)
