import json
import subprocess
import sys

from rlz.records.runs import hold_lock, is_running, list_runs, read_run

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
