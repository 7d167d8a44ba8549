"""Studies with a stand-in for `rlz train` that ends as it is told to; one with real runs."""

import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rlz.cli.app import main
from rlz.errors import ConfigError
from rlz.records.runs import list_runs
from rlz.runtime.signals import StopSignals
from rlz.studies.conduct import Conductor
from rlz.studies.definition import Study, read_study
from rlz.studies.member import OWN, Member
from rlz.studies.room import Room

TRAIN = """
import json, os, pathlib, re, signal, sys, time, tomllib
arguments = dict(zip(sys.argv[1::2], sys.argv[2::2]))
resumed = "--resume" in arguments
if resumed:
    path = pathlib.Path(arguments["--resume"])
    text = (path / "config.toml").read_text()
    text = re.sub(r"total_timesteps = [0-9]+", f"total_timesteps = {arguments['--total-timesteps']}", text)
    (path / "config.toml").write_text(text)
    values = tomllib.loads(text)
else:
    values = tomllib.loads(pathlib.Path(arguments["--config"]).read_text())
    path = pathlib.Path(arguments["--runs-dir"]) / arguments["--name"]
    (path / "checkpoints" / "step-000000000010").mkdir(parents=True)
    (path / "config.toml").write_text(pathlib.Path(arguments["--config"]).read_text())
with (path.parent / "started").open("a") as file:
    print(path.name, "resumed" if resumed else "fresh", sorted(os.sched_getaffinity(0)), time.monotonic(), file=file)
def end(status, code):
    score = -((values.get("learning_rate", 0) - 0.003) ** 2)
    (path / "checkpoints" / "best").mkdir(exist_ok=True)
    told = {"evaluation": {"return_mean": score}, "held_out": {"return_mean": score}}
    (path / "checkpoints" / "best" / "policy.json").write_text(json.dumps(told))
    (path / "summary.json").write_text(json.dumps({"status": status}))
    with (path.parent / "ended").open("a") as file:
        print(path.name, time.monotonic(), file=file)
    sys.exit(code)
signal.signal(signal.SIGINT, lambda *_: end("stopped", 130))
way = {3: "dies", 4: "fails", 5: "waits"}.get(values.get("seed"), "completes")
if way == "dies" and not resumed:
    os.kill(os.getpid(), signal.SIGKILL)
if way == "fails":
    print("error: the environment has no wheels")
    end("failed", 1)
if way == "waits" and not resumed:
    time.sleep(60)
time.sleep(0.2)
end("completed", 0)
"""


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Conductor]:
    script = tmp_path / "train.py"
    script.write_text(TRAIN, encoding="utf-8")

    def made(text: str, *, needs: int = 0, memory: int = 10, **options: bool) -> Conductor:
        file = tmp_path / "tried.toml"
        file.write_text('cores_per_run = 1\n[run]\nalgo = "sac"\nenv = "Pendulum-v1"\n' + text, encoding="utf-8")
        folder = tmp_path / "tried"
        (folder / OWN).mkdir(parents=True, exist_ok=True)
        study: Study = read_study(file)
        return Conductor(
            *(study, folder),
            room=Room(study.cores_per_run, memory),
            say=said.append,
            needs=lambda _: needs,
            command=(sys.executable, str(script)),
            **options,
        )

    said: list[str] = []
    made.said = said  # type: ignore[attr-defined]
    return made


def names(members: list[Member]) -> list[str]:
    return sorted(member.name for member in members)


def started(conductor: Conductor, tmp_path: Path) -> list[str]:
    return (tmp_path / "tried" / "started").read_text().splitlines()


def test_what_died_goes_on_and_what_failed_is_told(make: Callable[..., Conductor], tmp_path: Path) -> None:
    conductor = make("[grid]\nseed = [1, 3, 4]\n")
    with StopSignals() as signals:
        assert conductor.run(signals) == "failed"

    assert names(conductor.done) == ["seed=1", "seed=3"]
    assert names(conductor.failed) == ["seed=4"]
    ways = [line.split()[:2] for line in started(conductor, tmp_path)]
    assert ways.count(["seed=3", "fresh"]) == ways.count(["seed=3", "resumed"]) == 1
    assert any("no wheels" in line for line in make.said)  # type: ignore[attr-defined]


def test_a_second_call_makes_only_what_is_not_complete(make: Callable[..., Conductor], tmp_path: Path) -> None:
    with StopSignals() as signals:
        make("[grid]\nseed = [1, 4]\n").run(signals)
        again = make("[grid]\nseed = [1, 2, 4]\n")
        assert again.run(signals) == "failed"

    assert [line.split()[0] for line in started(again, tmp_path)].count("seed=1") == 1
    assert names(again.done) == ["seed=1", "seed=2"]
    with StopSignals() as signals:
        retried = make("[grid]\nseed = [4]\n", retry_failed=True)
        assert retried.run(signals) == "failed"
    assert started(retried, tmp_path)[-1].startswith("seed=4 resumed")


def test_more_env_steps_take_complete_runs_on_and_any_other_change_is_refused(
    make: Callable[..., Conductor], tmp_path: Path
) -> None:
    with StopSignals() as signals:
        make("total_timesteps = 100\n[grid]\nseed = [1]\n").run(signals)
        longer = make("total_timesteps = 200\n[grid]\nseed = [1]\n")
        assert longer.run(signals) == "completed"
        assert [line.split()[1] for line in started(longer, tmp_path)] == ["fresh", "resumed"]
        with pytest.raises(ConfigError, match=r"gamma = 0.99, now 0.9\b"):
            make("gamma = 0.9\n[grid]\nseed = [1]\n").run(signals)


def test_never_more_runs_than_cores_and_each_has_its_own(make: Callable[..., Conductor], tmp_path: Path) -> None:
    conductor = make("[grid]\nseed = [6, 7, 8, 9]\n")
    with StopSignals() as signals:
        conductor.run(signals)

    begun = {
        line.split()[0]: (line[line.index("[") : line.index("]") + 1], line) for line in started(conductor, tmp_path)
    }
    ended = dict(line.split() for line in (tmp_path / "tried" / "ended").read_text().splitlines())
    spans = [(cores, float(line.split()[-1]), float(ended[name])) for name, (cores, line) in begun.items()]
    assert all("," not in cores for cores, *_ in spans)
    for cores, begin, _ in spans:
        assert [one for one, first, last in spans if first <= begin < last].count(cores) == 1


def test_memory_lets_one_run_at_a_time_go_on(make: Callable[..., Conductor], tmp_path: Path) -> None:
    conductor = make("[grid]\nseed = [6, 7, 8]\n", needs=6, memory=10)
    with StopSignals() as signals:
        assert conductor.run(signals) == "completed"

    begun = {line.split()[0]: float(line.split()[-1]) for line in started(conductor, tmp_path)}
    ended = {
        line.split()[0]: float(line.split()[-1]) for line in (tmp_path / "tried" / "ended").read_text().splitlines()
    }
    order = sorted(begun, key=begun.__getitem__)
    assert all(ended[first] <= begun[second] for first, second in itertools.pairwise(order))


def test_a_stop_ends_the_runs_in_order_and_a_call_goes_on(make: Callable[..., Conductor], tmp_path: Path) -> None:
    conductor = make("[grid]\nseed = [5, 2]\n", needs=6, memory=10)  # one at a time, so that one waits

    def stop() -> None:
        until = time.monotonic() + 20
        while not (tmp_path / "tried" / "started").exists() and time.monotonic() < until:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    with StopSignals() as signals:
        thread = threading.Thread(target=stop)
        thread.start()
        assert conductor.run(signals) == "stopped"
        thread.join()
    assert not conductor.done
    assert Member(conductor._study, tmp_path / "tried", {"seed": 5}).status() == "stopped"

    with StopSignals() as signals:
        again = make("[grid]\nseed = [5, 2]\n")
        assert again.run(signals) == "completed"
    assert names(again.done) == ["seed=2", "seed=5"]


def test_a_search_tells_its_scores_and_goes_on_after_a_stop(make: Callable[..., Conductor]) -> None:
    pytest.importorskip("optuna", reason="optuna is not installed (uv sync --extra study)")
    space = "[search]\ntrials = {}\n[search.space]\nlearning_rate = {{ low = 1e-4, high = 1e-2, log = true }}\n"
    with StopSignals() as signals:
        first = make(space.format(2))
        assert first.run(signals) == "completed"
        more = make(space.format(5))
        assert more.run(signals) == "completed"

    assert names(first.done) == ["trial-0000", "trial-0001"]
    assert names(more.done) == ["trial-0002", "trial-0003", "trial-0004"]
    assert "best trial" in more.best()
    points = [member.point["learning_rate"] for member in first.done + more.done]
    best = min(points, key=lambda rate: (rate - 0.003) ** 2)
    assert f"learning_rate={best:.6g}" in more.best()


def test_a_study_of_real_runs_in_serial_mode(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "small.toml"
    file.write_text(
        '[run]\nalgo = "dqn"\nenv = "CartPole-v1"\nmode = "serial"\ntotal_timesteps = 300\nlearning_starts = 100\n'
        "eval_every = 0\ncompile = false\nhidden = [8]\n[grid]\nseed = [1, 2]\n",
        encoding="utf-8",
    )

    assert main(["study", str(file), "--runs-dir", str(tmp_path)]) == 0

    found = list_runs(tmp_path / "small")
    assert [(run.name, run.status, run.seed) for run in found] == [
        ("seed=1", "completed", 1),
        ("seed=2", "completed", 2),
    ]
    assert "2 runs done, 0 failed" in capfd.readouterr().out
    assert main(["study", str(file), "--runs-dir", str(tmp_path)]) == 0  # nothing is left to do
