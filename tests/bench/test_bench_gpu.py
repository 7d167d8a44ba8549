"""The first run on a card: its order and report with fakes, its steps on the CPU with tiny settings."""

import importlib.util
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "benches" / "gpu"
SCRIPT = FOLDER / "run.sh"


def load(name: str) -> Any:
    """A file of the folder, which is no package."""
    spec = importlib.util.spec_from_file_location(f"gpu_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


report = load("report")


def run(out: Path, *options: str, status: int = 0) -> Any:
    command = ["bash", str(SCRIPT), "--device", "cpu", "--quick", "--out", str(out), *options]
    done = subprocess.run(command, env=os.environ | {"PYTHON": sys.executable}, capture_output=True, text=True)
    assert done.returncode == status, done.stdout + done.stderr
    return json.loads(out.read_text())


def fails(error: Exception) -> Callable[[], dict[str, Any]]:
    def work() -> dict[str, Any]:
        raise error

    return work


def made(tmp_path: Path, steps: list[Any], *, card: bool = True, budget: float = 100.0, **values: Any) -> Any:
    out = tmp_path / "report.json"
    passed = report.Report(out, {"machine": {"card": "fake"}}, **values).run(steps, card=card, budget=budget)
    found = json.loads(out.read_text())
    assert found["machine"] == {"card": "fake"}
    assert found["passed"] == passed
    return found


def statuses(found: Any) -> dict[str, str]:
    return {step["name"]: step["status"] for step in found["steps"]}


def test_it_stops_at_the_first_hard_failure(tmp_path: Path) -> None:
    step, number = report.Step, lambda: {"us": 1.5}
    steps = [
        step("first", number, hard=True),
        step("soft", fails(ValueError("two\nlines"))),
        step("hard", fails(AssertionError("no")), hard=True),
        step("never", number),
    ]
    found = made(tmp_path, steps)
    assert statuses(found) == {"first": "passed", "soft": "failed", "hard": "failed"}
    assert found["stopped_at"] == "hard"
    assert found["steps"][0]["numbers"] == {"us": 1.5}
    assert found["steps"][1]["error"] == "ValueError: two lines"
    assert not found["passed"]


def test_a_step_that_cannot_be_made_here_is_no_failure(tmp_path: Path) -> None:
    now = [0.0]

    def slow() -> dict[str, Any]:
        now[0] += 50.0
        return {}

    steps = [
        report.Step("card", slow, card=True, hard=True),
        report.Step("no peer", fails(report.SkippedError("not installed"))),
        report.Step("slow", slow, seconds=40.0),
        report.Step("too late", slow, seconds=40.0, hard=True),
        report.Step("short", dict, seconds=1.0),
    ]
    found = made(tmp_path, steps, card=False, budget=60.0, clock=lambda: now[0])
    assert statuses(found) == {
        "card": "skipped",
        "no peer": "skipped",
        "slow": "passed",
        "too late": "skipped",
        "short": "passed",
    }
    assert [step["error"] for step in found["steps"]] == [
        "needs a card",
        "not installed",
        None,
        "10 s left, 40 needed",
        None,
    ]
    assert found["passed"]
    assert found["stopped_at"] is None


def test_nothing_made_is_not_passed(tmp_path: Path) -> None:
    assert not made(tmp_path, [report.Step("card", dict, card=True)], card=False)["passed"]


def test_the_report_is_there_after_every_step(tmp_path: Path) -> None:
    def look() -> dict[str, Any]:
        before = json.loads((tmp_path / "report.json").read_text())
        return {"steps before": len(before["steps"])}

    found = made(tmp_path, [report.Step("one", dict), report.Step("two", look)])
    assert found["steps"][1]["numbers"] == {"steps before": 1}


def test_a_shell_that_knows_no_such_step_says_which_there_are(tmp_path: Path) -> None:
    command = [sys.executable, str(FOLDER / "measure.py"), "--device", "cpu", "--quick", "--only", "nothing"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    names = [name.strip() for name in done.stderr.partition("there are ")[2].split(",")]
    assert names[:7] == [
        *("environment", "precisions", "no synchronisation", "capture and replay", "several updates in a graph"),
        *("a row that is not finite", "a failed capture"),
    ]
    assert names[-1] == "beside SB3"


@pytest.mark.slow
def test_its_checks_on_the_cpu(tmp_path: Path) -> None:
    names = ["environment", "precisions", "no synchronisation", "capture and replay", "several updates in a graph"]
    names += ["a row that is not finite", "a failed capture", "swaps of the executor", "mirror", "time of the host"]
    names += ["device auto", "memory runs out", "two devices", "rates eager", "rates of halves"]
    found = run(tmp_path / "gpu.json", "--only", *names)
    skipped = {step["name"] for step in found["steps"] if step["status"] == "skipped"}
    assert skipped == {"no synchronisation", "memory runs out"}, "which only a card can tell"
    numbers = {step["name"]: step["numbers"] for step in found["steps"]}
    assert numbers["precisions"]["sac fp32"] < 1e-5 < numbers["precisions"]["sac bf16"]
    assert numbers["mirror"].keys() == {"1 lanes us", "16 lanes us", "64 lanes us"}
    assert len(numbers["time of the host"]) == 9
    assert numbers["rates eager"]["fp32 32 updates_s"] > 10
    assert numbers["rates of halves"]["32 whole updates_s"] > 10


@pytest.mark.slow
def test_its_runs_on_the_cpu(tmp_path: Path) -> None:
    found = run(tmp_path / "gpu.json", "--only", "run at ratio 1", "killed and resumed", "--seconds", "1")
    held = next(step["numbers"] for step in found["steps"] if step["name"] == "run at ratio 1")
    assert held["updates_s"] == pytest.approx(held["env_steps_s"], rel=0.5)


def test_wheels_carried_along_are_what_runs(tmp_path: Path) -> None:
    (tmp_path / "wheels").mkdir()
    with zipfile.ZipFile(tmp_path / "wheels" / "rlz-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("rlz/__init__.py", "raise SystemExit('this is the rlz of the wheel')")
        wheel.writestr("torch.py", "float32 = None")
    command = ["bash", str(SCRIPT), "--wheels", str(tmp_path / "wheels"), "--device", "cpu", "--quick"]
    done = subprocess.run(command, env=os.environ | {"PYTHON": sys.executable}, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.strip() == "this is the rlz of the wheel"
