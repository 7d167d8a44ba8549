"""`rlz train --show-graph`: what it prints, and that nothing is started."""

from pathlib import Path

import pytest

from rlz.cli import main

SHAPER = str(Path(__file__).parents[2] / "examples" / "reward_shaper.py")
COMMAND = ("train", "sac", "--env", "Pendulum-v1", "--samplers", "2", "--num-envs", "3", "--hidden", "8")


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main([*COMMAND, *words]) == 0
    return capsys.readouterr().out


def test_the_tree_has_counts_places_and_row_sizes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    text = shown(capsys, "--show-graph", "--device", "cpu")
    for part in (
        "sac on Pendulum-v1",
        "1 updates per env step",
        "sampler x 2  a process each, 3 environments",
        "learner x 1  a process, on cpu",
        "does updates; its death: ends the run",
        "replay: 1,000,000 rows, 80 bytes a row",
        "sampler -> learner",
        "learner -> evaluator, sampler",
        "obs f32[3], action f32[1]",
    ):
        assert part in text
    assert "in one process, in turns" in shown(capsys, "--mode", "serial", "--show-graph")
    assert "evaluator" not in shown(capsys, "--show-graph", "--eval-every", "0")
    assert not list(tmp_path.iterdir()), "nothing is started"


def test_mermaid_has_an_arrow_for_each_pair_of_ends(capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(capsys, "--show-graph", "mermaid", "--graph", f"{SHAPER}:graph").splitlines()
    assert lines[0] == "flowchart LR"
    assert '    sampler["sampler x 2<br/>a process each, 3 environments"]' in lines
    assert '    sampler -->|"replay_shaper: replay, 80 bytes"| shaper' in lines
    assert '    shaper -->|"replay: replay, 80 bytes"| learner' in lines
    assert sum("parameters: parameters" in line for line in lines) == 2


def test_another_form_and_a_graph_that_is_none_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*COMMAND, "--show-graph=svg"]) == 2
    assert "'svg' is not one of 'tree', 'mermaid'" in capsys.readouterr().err
    assert main([*COMMAND, "--graph", "graph.py"]) == 2
    assert "expected module:function or file.py:function" in capsys.readouterr().err


def test_a_users_error_shows_the_users_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "broken.py").write_text("def graph(standard, answers):\n    return standard.betwen('replay')\n")
    assert main([*COMMAND, "--show-graph", "--graph", f"{tmp_path / 'broken.py'}:graph"]) == 1
    error = capsys.readouterr().err
    assert "broken.py:graph raised AttributeError: 'Graph' object has no attribute 'betwen'" in error
    assert "return standard.betwen('replay')" in error
    assert "workers/job.py" not in error


def test_a_module_that_is_missing_is_named_with_its_option(capsys: pytest.CaptureFixture[str]) -> None:
    for option in ("--network", "--graph"):
        assert main([*COMMAND, "--show-graph", option, "no_such_module:It"]) == 1
        error = capsys.readouterr().err
        assert error.startswith(f"error: {option} no_such_module:It: there is no module 'no_such_module'.")
        assert "Traceback" not in error
