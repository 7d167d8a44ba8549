import json
import sys
import time

import pytest
from rich.console import Console

from rlz.errors import RlzError
from rlz.hardware import probe, report
from rlz.hardware.detect import detect

UPDATES = [
    {"plan": [["cpu", "eager", 1], ["cpu", "compiled", 1]]},
    {"device": "cpu", "executor": "eager", "threads": 1, "updates_per_s": 50.0, "frames_per_s": 12800.0,
     "ready_s": 0.1},
]  # fmt: skip


def test_without_an_environment_only_the_machine_is_looked_at():
    found = probe.profile()
    assert (found["env"], found["hardware"]["cores"]) == (None, detect().cores)
    assert "sampling" not in found
    assert json.loads(json.dumps(found)) == found


def test_thread_counts():
    assert [probe.thread_counts(cores) for cores in (1, 2, 6, 8)] == [[1], [1, 2], [1, 2, 4, 6], [1, 2, 4, 8]]


def test_what_a_child_has_printed_counts_when_its_time_is_over():
    code = "import time; print('{\"x\": 1}', flush=True); print('noise', flush=True); time.sleep(60)"
    begin = time.monotonic()
    assert probe.lines_within([sys.executable, "-c", code], 1.0) == ([{"x": 1}], "")
    assert time.monotonic() - begin < 10


def test_the_error_of_a_child_is_kept():
    lines, error = probe.lines_within([sys.executable, "-c", "print('{}'); raise SystemExit('boom')"], 20.0)
    assert (lines, error) == ([{}], "boom")


def measured(monkeypatch, lines, error=""):
    sampling = {"rlz": 900.0, "bare loop": 1000.0}
    replay = {"rlz": {"append": 1e5, "sample_256": 1e7, "sample_8192": 2e7}, "row_bytes": 256}
    monkeypatch.setattr(
        "rlz.bench.children.run_child", lambda c, **_: sampling if "rlz.bench.sampling" in c else replay
    )
    monkeypatch.setattr(probe, "lines_within", lambda *_: (lines, error))
    return probe.profile("Pendulum-v1", 20.0)


def test_a_profile_says_what_was_measured_what_was_not_and_what_limits(monkeypatch, tmp_path):
    found = measured(monkeypatch, UPDATES)
    assert found["skipped"] == ["updates on cpu, compiled, 1 threads"]
    assert found["sampling"]["share_of_bare"] == 0.9
    with (tmp_path / "out.txt").open("w") as file:
        console = Console(file=file, width=110, record=True)
        report.show(found, console)
        text = console.export_text()
    for words in (
        "usable",
        "900 env steps/s, 90% of a bare loop",
        "20 M rows/s",
        "50.0",
        "updates are the limit: 50/s",
    ):
        assert words in text
    faster = [*UPDATES, {**UPDATES[1], "updates_per_s": 5000.0}]
    assert "sampling is the limit" in report.verdict(measured(monkeypatch, faster))


def test_a_learner_that_does_not_start_is_an_error(monkeypatch):
    with pytest.raises(RlzError, match="could not be measured: no torch"):
        measured(monkeypatch, [], "no torch")


def test_every_key_is_documented(monkeypatch):
    from pathlib import Path

    docs = (Path(__file__).parents[2] / "docs" / "profile.md").read_text()
    found = measured(monkeypatch, UPDATES)
    names = {key for key in found if not isinstance(found[key], dict)}
    names |= {f"{group}.{key}" for group in ("hardware", "sampling", "replay") for key in found[group]}
    names |= set(found["updates"][0]) - {"plan"}
    missing = [name for name in names if f"`{name}`" not in docs and f"`{name}[]`" not in docs]
    assert missing == []
