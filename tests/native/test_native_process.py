"""`bind_to_parent`: a worker and all its children go when the controller goes, whatever they are doing."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

WORKER = """
import os, subprocess, sys, threading, time
from rlz._native import bind_to_parent
parent = int(sys.argv[1])
bind_to_parent(parent)
bind_to_parent(parent)  # again: nothing happens
assert os.getpgrp() == os.getpid()
simulator = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(os.getpid(), simulator.pid, flush=True)
if sys.argv[2] == "busy":
    10 ** (10 ** 9)  # one native call that holds the GIL for minutes
elif sys.argv[2] == "queue":
    from rlz._native import TrajectoryQueue
    TrajectoryQueue.create([("x", "f32", ())], slots=1, run_id=1).consumer(worker=1).pop(timeout=None)
elif sys.argv[2] == "parameters":
    from rlz._native import ParameterStore
    ParameterStore.create([("w", "f32", ())], leases=1, run_id=1).subscriber(worker=1).wait_newer(0, timeout=None)
elif sys.argv[2] == "inference":
    import numpy
    from rlz._native import InferenceStream
    client = InferenceStream.create([("x", "f32", ())], [("y", "f32", ())], lanes=1, run_id=1).client([[0]], worker=1)
    client.ask(0, {"x": numpy.zeros(1, numpy.float32)})
    client.wait(timeout=None)
time.sleep(600)
"""

PARENT = """
import subprocess, sys, threading, time
def spawn():
    subprocess.Popen([sys.executable, "-c", {worker!r}, str({pid}), {how!r}])
import os
spawn()
time.sleep(600)
"""


def gone(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123 (raced by the process's end)
            return file.read().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def wait_gone(pids: list[int], seconds: float) -> list[int]:
    """Those that are still there after the time."""
    deadline = time.monotonic() + seconds
    while (left := [pid for pid in pids if not gone(pid)]) and time.monotonic() < deadline:
        time.sleep(0.01)
    return left


def start(how: str, pid: str = "os.getpid()") -> tuple[subprocess.Popen[str], list[int]]:
    program = PARENT.format(worker=WORKER, how=how, pid=pid)
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    return parent, [int(word) for word in parent.stdout.readline().split()]


@pytest.mark.parametrize("how", ["idle", "busy", "queue", "parameters", "inference"])
def test_the_group_goes_with_the_parent(how: str) -> None:
    parent, pids = start(how)
    try:
        assert len(pids) == 2
        time.sleep(0.2)
        assert not any(gone(pid) for pid in pids)
        parent.kill()
        parent.wait()
        assert wait_gone(pids, 2.0) == []
    finally:
        parent.kill()
        parent.wait()
        for pid in pids:
            if not gone(pid):
                os.kill(pid, 9)
        assert parent.stdout is not None
        parent.stdout.close()


OWNER = """
import subprocess, sys, time
from rlz._native import Limiter, ParameterStore, Replay, StatsBoard, TrajectoryQueue
replay = Replay.create([("x", "f32", ())], buffer_size=10, lanes=1, run_id=1)
queue = TrajectoryQueue.create([("x", "f32", ())], slots=1, run_id=1)
store = ParameterStore.create([("w", "f32", ())], leases=1, run_id=1)
board = StatsBoard.create(slots=1, names=["a"], event_width=1, event_capacity=1, run_id=1)
limiter = Limiter.create(lanes=1, total_timesteps=1, learning_starts=0, ratio=None, slack=1.0, run_id=1)
fds = [replay.fd, queue.fd, store.control_fd, store.payload_fd, board.fd, limiter.fd]
child = subprocess.Popen([sys.executable, "-c", {worker!r}, *map(str, fds)], pass_fds=fds)
print(child.pid, *fds, flush=True)
time.sleep(600)
"""

ATTACHED = """
import os, sys, time
from rlz._native import Limiter, ParameterStore, Replay, StatsBoard, TrajectoryQueue
replay, queue, control, payload, board, limiter = map(int, sys.argv[1:])
streams = [
    Replay.attach(replay), TrajectoryQueue.attach(queue), ParameterStore.attach(control, payload, writable=True),
    StatsBoard.attach(board), Limiter.attach(limiter),
]
os.closerange(3, 100)  # mappings alone are enough
print("attached", flush=True)
time.sleep(600)
"""


def holders(inodes: set[int]) -> dict[int, int]:
    """Processes that have some of these files open or mapped, and how many of them."""
    found = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            files = {fd.stat().st_ino for fd in (folder / "fd").iterdir() if "memfd:rlz-" in str(fd.readlink())}
            maps = {int(line.split()[4]) for line in (folder / "maps").read_text().splitlines() if "memfd:rlz-" in line}
        except OSError:  # it has just ended, or is another user's
            continue
        if held := inodes & (files | maps):
            found[int(folder.name)] = len(held)
    return found


def test_memory_goes_with_the_last_process() -> None:
    program = OWNER.format(worker=ATTACHED)
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        worker = 0
        try:
            worker, *fds = map(int, owner.stdout.readline().split())
            assert owner.stdout.readline() == "attached\n"
            inodes = {Path(f"/proc/{owner.pid}/fd/{fd}").stat().st_ino for fd in fds}
            assert len(inodes) == 6
            assert holders(inodes) == {owner.pid: 6, worker: 6}
            owner.kill()
            owner.wait()
            assert holders(inodes) == {worker: 6}
        finally:
            owner.kill()
            if worker and not gone(worker):
                os.kill(worker, 9)
        assert wait_gone([worker], 5.0) == []
        assert holders(inodes) == {}  # and there is no name by which to find it again


def test_a_wrong_parent_is_as_good_as_a_dead_one() -> None:
    with subprocess.Popen([sys.executable, "-c", "pass"]) as ended:
        ended.wait()
    for pid in (1, ended.pid):
        result = subprocess.run([sys.executable, "-c", WORKER, str(pid), "idle"], capture_output=True, timeout=20)
        assert result.returncode == -9
        assert result.stdout == b""


def test_arguments_are_checked() -> None:
    from rlz._native import bind_to_parent

    for pid in (0, -5):
        with pytest.raises(ValueError, match="parent_pid"):
            bind_to_parent(pid)
