import json
import os
import subprocess
import sys

import pytest

from rlz.cli import main
from rlz.errors import UsageError
from rlz.records.runs import find_run, hold_lock, is_running, list_runs, read_run
from rlz.records.selection import sort_runs, where

CONFIG = 'algo = "sac"\nenv = "Ant-v4"\nseed = 3\ntotal_timesteps = 1000\n'
EVALUATIONS = "env_steps,return_mean\n100,-5.5\n200,7.0\n300,6.0\n"
LINE = {"env_steps": 300, "updates": 200, "wall_s": 4.0, "time/env_steps_per_s": 75.0}


def make(tmp_path, name, **files):
    folder = tmp_path / name
    folder.mkdir(parents=True)
    for path, text in files.items():
        (folder / path.replace("_", ".", 1)).write_text(text)
    return folder


def test_a_finished_run(tmp_path):
    summary = {"status": "completed", "env_steps": 1000, "wall_s": 9.5, "env_steps_per_s": 105.0}
    make(tmp_path, "a", config_toml=CONFIG, summary_json=json.dumps(summary), evaluations_csv=EVALUATIONS)
    (run,) = list_runs(tmp_path)
    assert (run.name, run.status, run.algo, run.env, run.seed) == ("a", "completed", "sac", "Ant-v4", 3)
    assert (run.env_steps, run.total_timesteps, run.wall_s, run.env_steps_per_s) == (1000, 1000, 9.5, 105.0)
    assert (run.last_return, run.best_return) == (6.0, 7.0)


def test_a_run_is_running_while_its_lock_is_held_and_died_after(tmp_path):
    folder = make(tmp_path, "a", config_toml=CONFIG, metrics_jsonl=json.dumps(LINE) + "\n" + '{"env_steps": 35')
    with hold_lock(folder):
        run = read_run(folder)
        assert (run.status, run.env_steps, run.env_steps_per_s) == ("running", 300, 75.0)
    assert read_run(folder).status == "died"


def test_the_lock_of_a_killed_process_is_free(tmp_path):
    folder = make(tmp_path, "a")
    code = f"""
import time
from pathlib import Path
from rlz.records.runs import hold_lock
lock = hold_lock(Path({str(folder)!r}))
print(flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        assert is_running(folder)
        process.kill()
    assert not is_running(folder)


def test_broken_folders_are_listed_as_such_and_others_are_not_runs(tmp_path):
    make(tmp_path, "no-run", notes_txt="hello")
    make(tmp_path, "toml", config_toml="algo = [")
    make(tmp_path, "json", config_toml=CONFIG, summary_json="[")
    make(tmp_path, "list", config_toml=CONFIG, summary_json="[1]")
    make(tmp_path, "csv", config_toml=CONFIG, evaluations_csv="a,b\n1,2\n")
    make(tmp_path, "bytes", config_toml=CONFIG)
    (tmp_path / "bytes" / "config.toml").write_bytes(b"\xff\xfe")
    make(tmp_path, "new", config_toml=CONFIG, metrics_jsonl="not json\n")
    found = {run.name: run.status for run in list_runs(tmp_path)}
    assert found == {**dict.fromkeys(["toml", "json", "list", "csv", "bytes"], "broken"), "new": "died"}
    assert all(run.problem for run in list_runs(tmp_path) if run.status == "broken")
    assert list_runs(tmp_path / "absent") == []


def test_listing_needs_no_numpy(tmp_path):
    code = f"""
import sys
from rlz.records.runs import list_runs
list_runs({str(tmp_path)!r})
assert "numpy" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def chosen(tmp_path):
    for name, algo, seed, best, status in (("a", "sac", 1, 5.0, "failed"), ("b", "td3", 2, 9.0, "completed")):
        summary = json.dumps({"status": status, "env_steps": 100 * seed, "replay_ratio": 0.5 * seed})
        config = f'algo = "{algo}"\nenv = "Ant-v4"\nseed = {seed}\nsamplers = 1\nname = "{name}"\n'
        rows = f"env_steps,return_mean\n100,{best}\n"
        make(tmp_path, name, config_toml=config, summary_json=summary, evaluations_csv=rows)
    make(tmp_path, "c", config_toml='algo = "sac"\n')
    return list_runs(tmp_path)


def test_runs_are_sorted_by_any_number_the_largest_first(tmp_path):
    runs = chosen(tmp_path)
    for key in ("best", "seed", "steps", "replay_ratio", "replay-ratio"):
        assert [run.name for run in sort_runs(runs, key)] == ["b", "a", "c"], key
    assert [run.name for run in sort_runs(runs, "status")] == ["b", "c", "a"], "texts by the alphabet"
    with pytest.raises(UsageError, match=r"sampler: no run has such a setting or metric. Nearest: samplers"):
        sort_runs(runs, "sampler")


def test_runs_are_chosen_by_any_setting_or_metric(tmp_path):
    runs = chosen(tmp_path)
    for conditions, names in (
        (["algo=sac"], "ac"),
        (["algo!=sac"], "b"),
        (["algo=sac", "best>4"], "a"),
        (["best>=5", "best<9"], "a"),
        (["steps<=1e2"], "a"),
        (["replay_ratio=1"], "b"),
        (["samplers==1.0"], "ab"),
        (["status=Completed"], "b"),
    ):
        assert "".join(sorted(run.name for run in where(runs, conditions))) == names, conditions
    for condition, said in (("best", "expected NAME=VALUE"), ("best>much", "compares numbers"), ("o=1", "no run has")):
        with pytest.raises(UsageError, match=said):
            where(runs, [condition])


def test_the_command_shows_what_was_asked_for(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    chosen(tmp_path)
    folder = ["--runs-dir", str(tmp_path)]
    assert main(["runs", *folder, "--sort", "seed", "--where", "algo=sac"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split()[-2:] == ["algo", "seed"]
    assert [(row.split()[0], row.split()[-1]) for row in rows] == [("a", "1"), ("c", "sac")]
    assert main(["runs", *folder, "--where", "best>100"]) == 0
    assert "None of the 3 runs" in capsys.readouterr().out
    assert main(["runs", "diff", "a", "b", *folder]) == 0
    rows = {row.split()[0]: row.split()[1:] for row in capsys.readouterr().out.splitlines() if row.strip()}
    assert rows["algo"] == ["sac", "td3"]
    assert rows["best"] == ["5", "9"]
    assert not {"env", "samplers", "name"} & set(rows)


def test_the_newest_run_has_two_names_everywhere(tmp_path, capsys, monkeypatch):
    for at, name in enumerate(("old", "new")):
        os.utime(make(tmp_path / "runs", name, config_toml=CONFIG) / "config.toml", (at + 1e9, at + 1e9))
    monkeypatch.chdir(tmp_path)
    for name in ("last", "-1"):
        assert find_run(name).name == "new"
        for line in (["eval", name], ["runs", "show", name], ["runs", "diff", name, "old"]):
            main(line)
            shown = capsys.readouterr()
            assert "new" in shown.out + shown.err, line
        assert main(["train", "--resume", name, "--print-config"]) == 0
        assert 'env = "Ant-v4"' in capsys.readouterr().out
    assert main(["eval", "-1", "--episods", "2"]) == 2
