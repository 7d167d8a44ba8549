"""What a run has logged beyond the checkpoint that it goes on from is taken out of its files, and kept."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from rlz.tracking import rewind as module
from rlz.tracking.rewind import rewind
from rlz.tracking.sinks import Evaluation, EvaluationsFile

EVALUATION = (1.0, 100.0, 90.0, -5.0, 1.0, -6.0, -4.0, 20.0, 0.0, 3.0, 0.5, 1.0, 12.5)


def line(env_steps: int, updates: int, wall_s: float) -> str:
    return json.dumps({"time": 1.0, "wall_s": wall_s, "env_steps": env_steps, "updates": updates, "a/b": None}) + "\n"


@pytest.fixture
def logged(tmp_path: Path) -> Path:
    # At 200 env steps two more updates were made after the cut; the last line was cut short by a kill.
    lines = [line(100, 90, 1.0), line(200, 190, 2.5), line(200, 192, 2.6), line(300, 290, 3.0)]
    (tmp_path / "metrics.jsonl").write_text("".join(lines) + lines[0][:30])
    file = EvaluationsFile(tmp_path / "evaluations.csv")
    for version, env_steps, updates in ((1, 100, 90), (2, 200, 190), (3, 250, 240)):
        file.evaluation(Evaluation.from_event((version, env_steps, updates, *EVALUATION[3:])))
    file.close()
    return tmp_path


def test_evaluations_of_an_older_rlz_are_read_and_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "evaluations.csv"
    older = "env_steps,updates,version,return_mean,return_std,return_min,return_max,length_mean,length_std,episodes,"
    path.write_text(f"{older}wall_s,best\n100,90,1,-5.0,1.0,-6.0,-4.0,20.0,0.0,3,0.5,1\n")
    (old,) = rewind(tmp_path, 1000, 1000, start=2).evaluations
    assert (old.evaluation_s, old.published_s, old.at_end) == (0.5, None, {})
    file = EvaluationsFile(path)
    file.evaluation(replace(old, env_steps=200, evaluation_s=0.75, published_s=12.5))
    file.close()
    assert path.read_text().splitlines()[2] == "200,90,1,-5.0,1.0,-6.0,-4.0,20.0,0.0,3,0.75,1"
    assert Evaluation.from_event(old.event()) == old


def steps(path: Path) -> list[int]:
    return [json.loads(text)["env_steps"] for text in path.read_text().splitlines()]


def test_lines_beyond_the_cut_are_moved_aside(logged: Path) -> None:
    history = rewind(logged, 200, 190, start=2)
    assert steps(logged / "metrics.jsonl") == [100, 200]
    assert (logged / "metrics.jsonl").read_text().endswith("}\n")
    kept = (logged / "evaluations.csv").read_text().splitlines()
    assert [row.split(",")[0] for row in kept] == ["env_steps", "100", "200"]
    assert history.wall_s == 2.5
    assert [evaluation.version for evaluation in history.evaluations] == [1, 2]
    assert history.evaluations[-1].event()[:4] == (2.0, 200.0, 190.0, -5.0)
    assert history.notes == [
        "3 lines of metrics.jsonl from beyond the checkpoint: moved to discarded/start-2/metrics.jsonl",
        "1 line of evaluations.csv from beyond the checkpoint: moved to discarded/start-2/evaluations.csv",
    ]
    aside = logged / "discarded" / "start-2"
    assert [text[:30] for text in (aside / "metrics.jsonl").read_text().splitlines()] == [
        text[:30] for text in (line(200, 192, 2.6), line(300, 290, 3.0), line(100, 90, 1.0))
    ]
    assert (aside / "evaluations.csv").read_text().startswith("250,240,3,")
    # Once more there is nothing to do, and new evaluations go on below the old ones.
    before = {path: path.stat().st_mtime_ns for path in logged.rglob("*") if path.is_file()}
    assert rewind(logged, 200, 190, start=3).notes == []
    assert before == {path: path.stat().st_mtime_ns for path in logged.rglob("*") if path.is_file()}
    EvaluationsFile(logged / "evaluations.csv").close()
    assert (logged / "evaluations.csv").read_text().splitlines() == kept


def test_a_kill_in_between_loses_nothing(logged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = (logged / "metrics.jsonl").read_text()
    replace_file, calls = module.replace_file, 0

    def killed(path: Path, data: bytes) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise KeyboardInterrupt
        replace_file(path, data)

    monkeypatch.setattr(module, "replace_file", killed)
    with pytest.raises(KeyboardInterrupt):
        rewind(logged, 200, 190, start=1)
    assert (logged / "metrics.jsonl").read_text() == whole, "what is taken out is written first"
    monkeypatch.setattr(module, "replace_file", replace_file)
    rewind(logged, 200, 190, start=2)
    assert steps(logged / "metrics.jsonl") == [100, 200]


def test_files_that_are_not_there_are_no_problem(tmp_path: Path) -> None:
    history = rewind(tmp_path, 10, 10, start=1)
    assert (history.wall_s, history.evaluations, history.notes) == (0.0, [], [])
    assert not list(tmp_path.iterdir())
