"""A worker process as the controller holds it, with small programs in the place of workers."""

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rlz.graph import Node
from rlz.placement import Place
from rlz.workers import process as process_module
from rlz.workers.base import Report, WorkerSpec
from rlz.workers.process import WorkerProcess, wait_until_dead

SPEC = WorkerSpec(
    role="sampler",
    name="sampler-0",
    index=0,
    worker_id=3,
    slot=2,
    parent_pid=os.getpid(),
    run_dir="/",
    config={},
    env_spec={},
    asked={},
    graph={},
    placement={},
)
READ_SPEC = """
import os, sys, json, signal, subprocess, time
fd = int(sys.argv[1])
spec = json.loads(os.pread(fd, os.fstat(fd).st_size, 0))
def report(**words):
    os.pwrite(spec["error_fd"], json.dumps(words).encode(), 0)
"""

Start = Callable[[str], WorkerProcess]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    def command(code: str, spec_fd: int) -> list[str]:
        return [sys.executable, "-c", READ_SPEC + code, str(spec_fd)]

    monkeypatch.setattr(process_module, "command_of", command)

    def begin(code: str) -> WorkerProcess:
        return WorkerProcess(Place(Node("sampler", code), "sampler-0", 0, 2, (0,)), SPEC, tmp_path / "sampler-0.log")

    return begin


def test_a_worker_that_reports_done_is_done(start: Start) -> None:
    ending = start("report(done=True)").reap()
    assert ending.done
    assert not ending.killed
    assert ending.describe() == "sampler-0 is done"


def test_an_error_comes_with_its_traceback(start: Start) -> None:
    ending = start("report(error='ValueError: x', traceback='Traceback: line 1'); os._exit(70)").reap()
    assert (ending.done, ending.killed, ending.status) == (False, False, 70)
    assert ending.describe() == "sampler-0: ValueError: x\nTraceback: line 1"


def test_exit_without_a_reason_is_an_error_that_shows_the_log(start: Start) -> None:
    ending = start("print('last line of the simulator', flush=True); os._exit(0)").reap()
    assert not ending.done
    assert not ending.killed
    assert "exited with status 0 before its work was done" in ending.describe()
    assert ending.describe().endswith("last line of the simulator")


def test_sigkill_is_named_with_the_probable_lack_of_memory(start: Start) -> None:
    ending = start("os.kill(os.getpid(), signal.SIGKILL)").reap()
    assert ending.killed
    assert "was killed by SIGKILL" in ending.describe()
    assert "lack of memory" in ending.describe()


def test_a_crash_in_native_code_is_named(start: Start) -> None:
    ending = start("import faulthandler; faulthandler.enable(); os.kill(os.getpid(), signal.SIGSEGV)").reap()
    assert ending.killed
    assert "SIGSEGV: a crash in native code" in ending.describe()
    assert "Fatal Python error" in ending.describe()


def test_last_words_cut_short_are_no_report(start: Start) -> None:
    ending = start("os.pwrite(spec['error_fd'], b'{\"err', 0); os.kill(os.getpid(), signal.SIGKILL)").reap()
    assert ending.report is None
    assert ending.killed


def test_reaping_takes_the_whole_group(start: Start) -> None:
    process = start(
        "child = subprocess.Popen(['sleep', '600'])\nprint(child.pid, flush=True)\nos.kill(os.getpid(), signal.SIGKILL)"
    )
    process.reap()
    child = int(process.log.read_text())
    deadline = time.monotonic() + 2
    while Path(f"/proc/{child}").exists() and "Z" not in Path(f"/proc/{child}/stat").read_text().split():
        assert time.monotonic() < deadline, "the simulator's process is still there"
        time.sleep(0.01)


def test_a_stopped_worker_is_not_dead_but_can_be_killed(start: Start) -> None:
    process = start("time.sleep(600)")
    process.signal(signal.SIGSTOP)
    assert not wait_until_dead([process], 0.2)
    process.kill()
    assert wait_until_dead([process], 2.0)
    assert process.reap().killed
    process.kill()  # nothing: it was collected


def test_the_worker_leads_its_own_group_and_leaves_no_descriptor(start: Start) -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    process = start("print(os.getpgid(0) == os.getpid(), sorted(map(int, os.listdir('/proc/self/fd'))), flush=True)")
    spec_and_report = process.reap().describe()
    assert "exited with status 0" in spec_and_report
    assert process.log.read_text().startswith("True [0, 1, 2, ")
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_the_spec_survives_its_trip() -> None:
    assert WorkerSpec.from_json(SPEC.to_json()) == SPEC


def test_a_report_leaves_out_the_traceback_of_an_error_that_is_meant() -> None:
    from rlz.errors import EnvError

    try:
        try:
            raise KeyError("cause")
        except KeyError as cause:
            raise EnvError("the environment raised") from cause
    except EnvError as error:
        report = Report.of(error)
    assert report.expected
    assert report.error == "the environment raised"
    assert "KeyError: 'cause'" in report.traceback
    assert "EnvError" not in report.traceback
    assert Report.of(EnvError("alone")).traceback == ""
