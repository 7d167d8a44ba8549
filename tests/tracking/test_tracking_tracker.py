import csv
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from rlz.tracking import tracker
from rlz.tracking.console import TerminalDisplay, clock, live_view, number
from rlz.tracking.reading import Reader
from rlz.tracking.sinks import Evaluation, TensorBoardFile
from rlz.tracking.snapshot import between
from rlz.tracking.view import View
from rlz.transport.stats import Stat, metric
from support.tracking import EVALUATION, FakeStreams, config, lines, make, scalars_of, workers


def test_ticks_and_log_lines_intern_nothing(tmp_path, monkeypatch):
    # The table of interned strings takes a place for each that comes, and grows in steps of a MiB.
    streams = FakeStreams()
    run = make(tmp_path, streams)
    start = time.monotonic()
    run.tick(start + 6)  # TensorBoard is imported
    interned = []
    monkeypatch.setattr(sys, "intern", lambda text: interned.append(text) or text)
    for second in range(7, 20):
        streams.step(100, 25)
        streams.stats.push(2, -900.0, 200.0)
        streams.stats.rings[1].append(list(EVALUATION))
        run.tick(start + second)
    monkeypatch.undo()
    run.close()
    assert interned == []
    assert len(lines(tmp_path)) == 3


def test_a_run_from_start_to_summary(tmp_path):
    streams = FakeStreams()
    run = make(tmp_path, streams)
    start = time.monotonic()
    run.tick(start + 1)
    assert lines(tmp_path) == []  # not due
    streams.step(600, 500)
    streams.stats.values[0][metric(0)] = 0.5
    streams.stats.values[0][Stat.READY_S] = start + 0.5
    streams.stats.values[2][Stat.READY_S] = start + 0.25
    streams.stats.push(2, -900.0, 200.0)
    streams.stats.rings[1].append(list(EVALUATION))
    run.tick(start + 6)
    streams.step(400, 400)
    streams.stats.values[2][Stat.READY_S] = start + 5  # restarted: the first incarnation's time counts
    run.note("sampler-0 was restarted")
    summary = run.finish("completed")

    first, last = lines(tmp_path)
    assert (first["env_steps"], first["updates"]) == (600, 500)
    assert first["train/critic_loss"] == 0.5
    assert first["rollout/return_mean"] == -900.0
    assert first["time/env_steps_per_s"] == pytest.approx(100, rel=0.05)
    assert last["replay/ratio"] == 1.0
    with (tmp_path / "evaluations.csv").open() as file:
        (evaluation,) = csv.DictReader(file)
    assert (evaluation["env_steps"], evaluation["return_mean"], evaluation["best"]) == ("1000", "-150.0", "1")
    assert "sampler-0 was restarted" in (tmp_path / "logs" / "events.log").read_text()
    scalars, _ = scalars_of(tmp_path)
    assert scalars["train/critic_loss"] == [(600, 0.5), (1000, 0.5)]
    assert scalars["eval/return_mean"] == [(1000, -150.0)]

    assert summary == json.loads((tmp_path / "summary.json").read_text())
    assert (summary["status"], summary["env_steps"], summary["updates"]) == ("completed", 1000, 900)
    assert (summary["replay_ratio"], summary["rows_lost"], summary["restarts"]) == (1.0, 0, 0)
    assert summary["last_evaluation_return"] == summary["best_evaluation_return"] == -150.0
    assert summary["env_steps_per_s"] == pytest.approx(1000 / summary["wall_s"], rel=0.2)
    assert 0 < summary["first_env_step_s"] < summary["first_update_s"] < summary["first_env_step_s"] + 1
    assert summary["memory_bytes"]["learner"]["private_peak"] >= summary["memory_bytes"]["learner"]["private"] > 0
    assert run.finish("failed") is summary


def test_a_resumed_run_appends_and_counts_from_where_it_starts(tmp_path):
    streams = FakeStreams()
    streams.step(500, 400)
    streams.stats.rings[1].append(list(EVALUATION))
    make(tmp_path, streams).finish("stopped")
    again = FakeStreams()
    again.limiter.env_steps, again.limiter.updates, again.replay.rows = 500, 400, [500]
    run = make(tmp_path, again)
    assert not (tmp_path / "summary.json").exists()
    again.step(500, 500)
    again.stats.rings[1].append(list(EVALUATION))  # what the evaluator goes on after: it is in the file already
    worse = list(EVALUATION)
    worse[0], worse[3] = 8, -300.0
    again.stats.rings[1].append(worse)
    summary = run.finish("completed")
    assert (summary["env_steps"], summary["updates"], summary["evaluations"]) == (1000, 900, 2)
    assert summary["updates_per_s"] / summary["env_steps_per_s"] == pytest.approx(0.9, rel=1e-2), "over the run"
    assert (summary["last_evaluation_return"], summary["best_evaluation_return"]) == (-300.0, -150.0)
    assert len((tmp_path / "evaluations.csv").read_text().splitlines()) == 3
    assert len(lines(tmp_path)) == 2


def test_tensorboard_forgets_what_lies_beyond_the_cut(tmp_path):
    for cut, steps in ((None, (400, 800)), (500, (500, 900)), (500, (700,))):
        streams = FakeStreams()
        run = make(tmp_path, streams, cut=cut)
        if cut is None:
            streams.stats.rings[1].append([1, 400, 300, *EVALUATION[3:]])
            streams.stats.rings[1].append([2, 600, 500, *EVALUATION[3:]])
        for step in steps:
            streams.limiter.env_steps = step
            run.tick(time.monotonic() + step)
        run.finish("stopped")
    scalars, _ = scalars_of(tmp_path)
    steps = [step for step, _ in scalars["rollout/episodes"]]
    assert sorted(set(steps)) == steps[:2] + steps[3:] == [400, 500, 700], "the last line is logged twice"
    assert [step for step, _ in scalars["eval/return_mean"]] == [400]


def test_an_error_in_a_sink_turns_it_off_and_the_run_goes_on(tmp_path, monkeypatch):
    def broken(self, *arguments, **named):
        raise OSError("disk full")

    monkeypatch.setattr(tracker.MetricsFile, "log", broken)
    monkeypatch.setattr(tracker.TensorBoardFile, "__init__", broken)
    streams = FakeStreams()
    run = make(tmp_path, streams)
    run.tick(time.monotonic() + 6)
    run.tick(time.monotonic() + 12)
    assert run.finish("completed")["status"] == "completed"
    events = (tmp_path / "logs" / "events.log").read_text()
    assert events.count("metrics.jsonl is not written any more: OSError: disk full") == 1
    assert "TensorBoard is not written: OSError: disk full" in events


def test_not_finite_numbers_are_null_in_json(tmp_path):
    streams = FakeStreams()
    run = make(tmp_path, streams)
    streams.step(200, 100)
    streams.stats.values[0][metric(0)] = float("inf")
    streams.stats.values[0][metric(1)] = float("nan")
    run.finish("failed")
    assert lines(tmp_path)[0]["train/critic_loss"] is None
    assert "train/ent_coef" not in lines(tmp_path)[0], "this algorithm does not measure it"


def test_tensorboard_shows_the_configuration(tmp_path):
    sink = TensorBoardFile(tmp_path, 'algo = "sac"\n')
    sink.close()
    _, events = scalars_of(tmp_path)
    (text,) = events.Tensors("config/text_summary")
    assert b'algo = "sac"' in text.tensor_proto.string_val[0]


def test_the_controller_side_imports_neither_torch_nor_tensorflow(tmp_path):
    code = f"""
import sys, time
from pathlib import Path
from support.tracking import FakeStreams, make
run = make(Path({str(tmp_path)!r}), FakeStreams())
run.tick(time.monotonic() + 6)
run.finish("completed")
print([name for name in ("torch", "tensorflow", "gymnasium") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[]", done.stderr


def snapshot():
    streams = FakeStreams()
    streams.step(600, 500)
    reader = Reader(streams, workers)
    old = reader.read(1.0)
    streams.step(50, 50)
    return between(old, reader.read(2.0), config=config(), started=0.0)


def test_plain_lines_where_stdout_is_no_terminal(tmp_path):
    with (tmp_path / "out.txt").open("w") as file:
        display = TerminalDisplay("title", Console(file=file, width=60))
        assert not display.live
        display.show(snapshot(), logged=False)
        display.show(snapshot(), logged=True)
        display.evaluation(Evaluation.from_event(EVALUATION))
        display.note("a note")
        display.close()
    text = (tmp_path / "out.txt").read_text()
    shown, evaluated, noted = text.splitlines()
    assert "650/1,000  50 env steps/s  50 updates/s" in shown
    assert "ETA 0:00:07" in shown
    assert evaluated == "evaluation at 1,000 env steps: return -150.00 +- 20.00 over 10 episodes  best so far"
    assert noted == "a note"


def test_live_view_on_a_terminal(tmp_path):
    with (tmp_path / "out.txt").open("w") as file:
        display = TerminalDisplay("title", Console(file=file, width=100, force_terminal=True))
        assert display.live
        display.show(snapshot(), logged=False)
        time.sleep(0.1)
        display.close()
    assert "sampler-0" in (tmp_path / "out.txt").read_text()
    with (tmp_path / "view.txt").open("w") as file:
        recorded = Console(width=100, record=True, file=file)
        recorded.print(live_view(View("title", snapshot(), Evaluation.from_event(EVALUATION))))
    text = recorded.export_text()
    for word in ("65.0 %", "env steps/s", "replay ratio", "learner", "MiB", "-150.0"):
        assert word in text


def test_figures_for_people():
    assert [number(x) for x in (None, float("nan"), 0.12345, 123456.7)] == ["-", "-", "0.1235", "123,457"]
    assert [clock(x) for x in (None, 61, 3600 * 25)] == ["-:--:--", "0:01:01", "25:00:00"]


def test_every_tag_is_documented(tmp_path):
    streams = FakeStreams()
    streams.step(600, 500)
    streams.stats.values[2][[Stat.POLICY_LAG_COUNT, Stat.WAIT_LIMITER_S]] = 1.0
    streams.stats.values[1][Stat.WAIT_PARAMETERS_S] = 1.0
    streams.stats.values[0][Stat.WAIT_BATCH_S] = 1.0
    streams.stats.push(2, 1.0, 1.0)
    streams.stats.rings[1].append(list(EVALUATION))
    run = make(tmp_path, streams)
    streams.step(100, 100)
    streams.stats.values[2][Stat.POLICY_LAG_COUNT] = 2.0
    summary = run.finish("completed")
    scalars, _ = scalars_of(tmp_path)
    docs = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    tags = {*lines(tmp_path)[0], *scalars, *Evaluation.from_event(EVALUATION).scalars()}
    for name in ("learner", "evaluator", "sampler-0"):
        tags = {tag.replace(f"workers/{name}/", "workers/NAME/") for tag in tags}
    assert {f"`{tag}`" for tag in tags if f"`{tag}`" not in docs} == set()
    assert {f"`{key}`" for key in summary if f"`{key}`" not in docs} == set()
