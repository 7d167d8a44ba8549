"""Process life: threads that wait when the interpreter ends, arrays in forked children, builds without the GIL."""

import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from rlz._native import TrajectoryQueue
from rlz.errors import TransportError

WAITS = {
    "pop": "q.consumer(worker=1).pop",
    "acquire": "full.acquire",
    "wait_newer": "lambda: store.subscriber(worker=2).wait_newer(0)",
    "poll_newer": "lambda: store.subscriber().wait_newer(0)",
    "acquire_updates": "lambda: gate.acquire_updates(1, worker=1)",
}


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
def test_a_daemon_thread_that_waits_does_not_disturb_the_exit(wait: str) -> None:
    """The interpreter takes its time to end, with something that runs Python code in its last moments."""
    code = f"""
import sys, threading, time, types
import numpy as np
from rlz.transport import Limiter, ParameterStore, TrajectoryQueue
q = TrajectoryQueue.create([("x", "f32", (4,))], slots=1)
full = q.producer(worker=3)
full.put(x=np.zeros(4, np.float32))
q = TrajectoryQueue.create([("x", "f32", (4,))], slots=1)
store = ParameterStore.create([("w", "f32", (2,))])
gate = Limiter.create(lanes=1, total_timesteps=9, learning_starts=0, ratio=(1, 1), slack=1.0)
gate.acquire_steps([0], np.zeros(1, np.int64), worker=2)
threading.Thread(target={wait}, daemon=True).start()
time.sleep(0.05)
class Slow:
    def __del__(self, now=time.monotonic, sleep=time.sleep):
        end = now() + 0.35  # more than three looks of a wait
        while now() < end:
            sleep(0.01)
sys.modules["zz_slow"] = types.ModuleType("zz_slow")
sys.modules["zz_slow"].slow = Slow()
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (found.returncode, found.stderr) == (0, "")


def in_child(check: str) -> int:
    """Exit status of a forked child that evaluates `check` on arrays made before: 0 when true."""
    queue = TrajectoryQueue.create([("x", "f32", (3000,))], slots=3)
    producer, consumer = queue.producer(worker=1), queue.consumer(worker=2)
    for value in (1.0, 2.0):
        producer.put(x=np.full(3000, value, np.float32), timeout=0)
    segment = consumer.pop(timeout=0)
    read, written = segment["x"], producer.acquire(timeout=0)
    assert written is not None
    write = written["x"]
    write[:] = 7
    with consumer.pop(timeout=0) as other:
        outlived = other["x"]
    names = {"read": read, "write": write, "outlived": outlived, "segment": segment, "TransportError": TransportError}
    with warnings.catch_warnings(action="ignore"):  # of a fork beside threads
        pid = os.fork()
    if pid == 0:
        status = 1
        try:
            status = 0 if eval(check, {"refused": refused, **names}) else 3
        finally:
            os._exit(status)
    write += 1  # meanwhile
    _, status = os.waitpid(pid, 0)
    written.commit()
    with consumer.pop(timeout=0) as last:
        assert (last["x"] == 8).all(), "what a child does is its own affair"
    assert (read == 1).all()
    assert (outlived == 2).all()
    return os.waitstatus_to_exitcode(status)


def refused(segment: object) -> bool:
    try:
        segment["x"]  # type: ignore[index]
    except TransportError as error:
        return "before a fork" in str(error)
    return False


@pytest.mark.parametrize(
    "check",
    [
        "(read == 1).all() and not read.flags.writeable",
        "(outlived == 2).all()",
        "(write == 7).all() and (write.fill(9), (write == 9).all())[1]",
        "refused(segment)",
    ],
)
def test_arrays_made_before_a_fork_can_be_used_in_the_child(check: str) -> None:
    assert in_child(check) == 0


def test_builds_of_python_without_the_gil_take_it_back_for_this_module() -> None:
    """Such a build is not at hand, and the stable ABI of 3.11 has no slot for it: the source is read."""
    source = Path(__file__).parents[2] / "rust" / "bindings" / "src" / "lib.rs"
    assert "#[pyo3::pymodule(gil_used = true)]" in source.read_text()
