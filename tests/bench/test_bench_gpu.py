"""The script for GPUs, on the CPU with tiny settings."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "benches" / "gpu" / "run.sh"


def run(out: Path, *options: str) -> Any:
    command = ["bash", str(SCRIPT), "--device", "cpu", "--quick", "--out", str(out), *options]
    done = subprocess.run(command, env=os.environ | {"PYTHON": sys.executable}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(out.read_text())


@pytest.mark.slow
def test_it_measures_updates_and_halves(tmp_path: Path) -> None:
    found = run(tmp_path / "gpu.json", "--parts", "parity", "updates", "split")
    assert set(found["errors"]) == {"precision tf32"}, "which a CPU does not have"
    assert found["parity"].keys() == {"sac fp32", "sac bf16", "td3 fp32", "td3 bf16"}
    assert found["parity"]["sac fp32"] < 1e-5 < found["parity"]["sac bf16"]
    for precision in ("fp32", "bf16"):
        for cell in found["updates"][precision]["32"].values():
            assert cell["frames_s"] == pytest.approx(32 * cell["updates_s"], rel=0.05)
    assert found["split"]["32"].keys() >= {"critics_updates_s", "actor_updates_s", "side_by_side_updates_s"}


@pytest.mark.slow
def test_it_measures_whole_runs_and_says_what_failed(tmp_path: Path) -> None:
    found = run(tmp_path / "gpu.json", "--parts", "runs", "--seconds", "1")
    assert found["errors"] == {}
    held, free = found["runs"].values()
    assert held["updates_s"] == pytest.approx(held["env_steps_s"], rel=0.5)
    assert free["updates_s"] > 0


@pytest.mark.slow
def test_a_step_that_fails_is_an_error_and_stops_no_other(tmp_path: Path) -> None:
    out = tmp_path / "gpu.json"
    command = ["bash", str(SCRIPT), "--device", "cpu", "--quick", "--out", str(out), "--budget", "0"]
    environment = os.environ | {"PYTHON": sys.executable}
    done = subprocess.run([*command, "--parts", "updates"], env=environment, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    errors = json.loads(out.read_text())["errors"]
    assert errors["updates fp32 32 eager graph of 8"].startswith("TimeoutError: ")
    assert errors["updates bf16 32 eager graph of 1"].startswith("TimeoutError: ")


def test_wheels_carried_along_are_what_runs(tmp_path: Path) -> None:
    (tmp_path / "wheels").mkdir()
    with zipfile.ZipFile(tmp_path / "wheels" / "rlz-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("rlz/__init__.py", "raise SystemExit('this is the rlz of the wheel')")
        wheel.writestr("torch.py", "float32 = None")
    command = ["bash", str(SCRIPT), "--wheels", str(tmp_path / "wheels"), "--device", "cpu", "--quick"]
    done = subprocess.run(command, env=os.environ | {"PYTHON": sys.executable}, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.strip() == "this is the rlz of the wheel"
