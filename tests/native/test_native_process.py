"""`bind_to_parent`: a worker and all its children go when the controller goes, whatever they are doing."""

import os
import subprocess
import sys
import time

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


@pytest.mark.parametrize("how", ["idle", "busy"])
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
