"""Files of records on a disk that is full for a while, and after a kill in the middle of a line."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rlz.records.runs import read_run
from rlz.tracking import growing_file
from rlz.tracking.growing_file import GrowingFile, NotWrittenError
from support.full_disk import largest_file
from support.tracking import EVALUATION, FakeStreams, lines, make, scalars_of


@pytest.mark.parametrize("room", [0, 1, 5, 11])
def test_a_record_is_whole_or_absent_and_comes_later(tmp_path: Path, room: int) -> None:
    path = tmp_path / "file"
    file = GrowingFile(path, lines=True)
    file.write(b"the first\n")
    with largest_file(10 + room):
        for record in (b"the second\n"[:12] + b"and more\n", b"the third, longer\n"):
            with pytest.raises(NotWrittenError, match="File too large"):
                file.write(record)
            assert path.read_bytes() == b"the first\n"
    file.write(b"the last\n")
    file.close()
    assert path.read_bytes() == b"the first\nthe second\nand more\nthe third, longer\nthe last\n"


def test_what_is_held_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growing_file, "HELD_BYTES", 30)
    file = GrowingFile(tmp_path / "file", lines=True)
    with largest_file(0):
        for number in range(10):
            with pytest.raises(NotWrittenError):
                file.write(f"record {number:02}\n".encode())
    file.close()
    assert (tmp_path / "file").read_bytes() == b"record 07\nrecord 08\nrecord 09\n"


def test_a_file_that_cannot_even_be_made_is_made_later(tmp_path: Path) -> None:
    path = tmp_path / "away" / "file"
    file = GrowingFile(path, lines=True, header=b"a,b\n")
    with pytest.raises(NotWrittenError, match="No such file or directory"):
        file.write(b"1,2\n")
    path.parent.mkdir()
    file.flush()
    assert path.read_bytes() == b"a,b\n1,2\n"
    file.close()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"", b"head\nnew\n"),
        (b"hea", b"head\nnew\n"),
        (b"head\n", b"head\nnew\n"),
        (b"head\none\ntw", b"head\none\nnew\n"),
        (b"head\n" + b"x" * 200_000, b"head\nnew\n"),
    ],
)
def test_half_a_line_of_a_process_that_was_killed_is_cut_off(tmp_path: Path, before: bytes, after: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(before)
    file = GrowingFile(path, lines=True, header=b"head\n")
    file.write(b"new\n")
    file.close()
    assert path.read_bytes() == after


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")  # noqa: PTH110
def test_a_device_that_is_always_full(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.symlink_to("/dev/full")
    file = GrowingFile(path, lines=True)
    with pytest.raises(NotWrittenError, match="No space left on device"):
        file.write(b"a\n")


def test_a_disk_that_is_full_for_a_while_costs_a_run_no_line(tmp_path: Path) -> None:
    streams = FakeStreams()
    run = make(tmp_path, streams)
    now = time.monotonic()
    run.tick(now + 6)
    with largest_file((tmp_path / "metrics.jsonl").stat().st_size + 100):
        for turn in range(2, 5):
            streams.step(100, 100)
            streams.stats.rings[1].append([*EVALUATION[:3], float(turn), *EVALUATION[4:]])
            run.tick(now + 6 * turn)
            run.note("x" * 3000)
    assert all(isinstance(line, dict) for line in lines(tmp_path))
    assert len(lines(tmp_path)) == 1
    streams.step(100, 100)
    run.tick(now + 30)
    assert run.finish("completed")["status"] == "completed"
    assert [line["env_steps"] for line in lines(tmp_path)] == [0, 100, 200, 300, 400, 400]
    events = (tmp_path / "logs" / "events.log").read_text()
    for name in ("metrics.jsonl", "TensorBoard", "logs/events.log"):  # evaluations.csv is short enough
        assert events.count(f"{name} CANNOT BE WRITTEN: File too large. The run goes on") == 1, name
        assert events.count(f"{name} is written again") == 1, name
    assert "INCOMPLETE" not in events
    assert events.count("x" * 3000) == 3
    scalars, _ = scalars_of(tmp_path)
    assert [step for step, _ in scalars["train/updates"]] == [0, 100, 200, 300, 400, 400]
    assert len((tmp_path / "evaluations.csv").read_text().splitlines()) == 4


def test_a_disk_that_stays_full_is_said_at_the_end(tmp_path: Path) -> None:
    streams = FakeStreams()
    run = make(tmp_path, streams)
    run.tick(time.monotonic() + 6)
    with largest_file((tmp_path / "metrics.jsonl").stat().st_size + 10):
        streams.step(100, 100)
        run.finish("completed")
    assert len(lines(tmp_path)) == 1
    assert "metrics.jsonl is INCOMPLETE" in (tmp_path / "logs" / "events.log").read_text()


def test_lines_parse_whenever_a_run_is_killed_and_resumed(tmp_path: Path) -> None:
    program = f"""
import time
from pathlib import Path
from support.tracking import FakeStreams, make
streams = FakeStreams()
run = make(Path({str(tmp_path)!r}), streams)
now = time.monotonic()
for turn in range(10**9):
    streams.step(10, 10)
    now += 6
    run.tick(now)
    if turn == 3:
        print("started", flush=True)
"""
    for _ in range(3):
        process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline() == b"started\n"
        time.sleep(0.1)
        process.kill()
        process.wait()
        process.stdout.close()
        with (tmp_path / "metrics.jsonl").open("ab") as file:
            file.write(b'{"time": 1, "env_ste')  # what a kill within a write may leave
    make(tmp_path, FakeStreams()).finish("completed")
    assert len(lines(tmp_path)) > 12


def test_half_an_evaluation_breaks_neither_the_list_of_runs_nor_a_resume(tmp_path: Path) -> None:
    streams = FakeStreams()
    streams.stats.rings[1].append(list(EVALUATION))
    make(tmp_path, streams).finish("stopped")
    (tmp_path / "summary.json").unlink()
    (tmp_path / "config.toml").write_text('algo = "sac"\n')
    with (tmp_path / "evaluations.csv").open("a") as file:
        file.write("2000,19")
    run = read_run(tmp_path)
    assert (run.status, run.last_return, run.best_return) == ("died", -150.0, -150.0)
    summary = make(tmp_path, FakeStreams()).finish("completed")
    assert summary["best_evaluation_return"] == -150.0
    assert len((tmp_path / "evaluations.csv").read_text().splitlines()) == 2
    assert json.loads((tmp_path / "summary.json").read_text())["status"] == "completed"
