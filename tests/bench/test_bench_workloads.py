import json
import os
import subprocess
import sys

import pytest

from rlz.bench import environments, run_bench, train
from rlz.bench.children import run_child
from rlz.errors import ConfigError, RlzError


def test_a_child_gives_its_last_line_or_its_error():
    assert run_child([sys.executable, "-c", "print('noise'); print('{\"x\": 1}')"], timeout=20) == {"x": 1}
    with pytest.raises(RlzError, match=r"status 1: .*boom"):
        run_child([sys.executable, "-c", "raise SystemExit('boom')"], timeout=20)
    with pytest.raises(RlzError, match="instead of its result"):
        run_child([sys.executable, "-c", "print('hello')"], timeout=20)
    with pytest.raises(RlzError, match="did not end within"):
        run_child([sys.executable, "-c", "import time; time.sleep(30)"], timeout=0.2)


def test_unknown_names_and_places_are_refused_before_anything_runs(tmp_path):
    with pytest.raises(ConfigError, match="unknown workload 'fly'"):
        run_bench("fly")
    with pytest.raises(ConfigError, match="unknown peer 'sb4'; known: sb3, sbx"):
        run_bench("train", peers=["sb4"])
    with pytest.raises(ConfigError, match="there is no folder"):
        run_bench("train", output=tmp_path / "none" / "result.json")


def line(wall_s, updates, compiled, threads=1):
    return {"wall_s": wall_s, "updates": updates, "train/compiled": compiled, "train/threads": threads}


def test_the_window_starts_when_the_learner_is_compiled_and_settled():
    eager = [line(float(second), 10 * second, 0) for second in range(1, 20)]
    assert train.steady_from([]) is None
    assert train.steady_from(eager) is None
    compiled = [*eager, *(line(float(second), 900 * second, 1) for second in range(20, 25))]
    assert train.steady_from(compiled) is None
    compiled.append(line(25.0, 999, 1))
    assert train.steady_from(compiled) == compiled[-1]
    tuned = [*compiled, line(26.0, 1000, 1, threads=2)]
    assert train.steady_from(tuned) is None


def test_a_learner_that_never_compiles_is_steady_in_the_end():
    lines = [line(float(second), 10 * second, 0) for second in range(1, 200)]
    assert train.steady_from(lines[:100]) is None
    assert train.steady_from(lines) == lines[-1]
    assert train.steady_from(lines[:10], compiles=False) == lines[9]


def test_variants_of_a_peer():
    assert [v.name("sb3") for v in train.variants("sb3", 2)] == [
        "sb3: 1 thread, 1 env", "sb3: 1 thread, 4 envs", "sb3: 2 threads, 1 env", "sb3: 2 threads, 4 envs",
    ]  # fmt: skip
    assert [v.name("sb3") for v in train.variants("sb3", 1)] == ["sb3: 1 thread, 1 env", "sb3: 1 thread, 4 envs"]
    assert [v.name("sbx") for v in train.variants("sbx", 8)] == ["sbx: 1 env", "sbx: 4 envs"]


FAKE_UV = """#!{python}
import json, os, sys
from pathlib import Path
with open(os.environ["UV_CALLS"], "a") as file:
    file.write(json.dumps(sys.argv[1:]) + "\\n")
if sys.argv[1] == "venv":
    (Path(sys.argv[-1]) / "bin").mkdir(parents=True)
    (Path(sys.argv[-1]) / "bin" / "python").touch()
elif any(part.startswith("mujoco==") for part in sys.argv):
    sys.exit("no solution for mujoco")
"""


@pytest.fixture
def uv_calls(tmp_path, monkeypatch):
    uv = tmp_path / "uv"
    uv.write_text(FAKE_UV.format(python=sys.executable))
    uv.chmod(0o755)
    calls = tmp_path / "calls"
    monkeypatch.setenv("UV", str(uv))
    monkeypatch.setenv("UV_CALLS", str(calls))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return lambda: [json.loads(text) for text in calls.read_text().splitlines()]


def test_a_peer_keeps_as_many_of_rlz_versions_as_it_can_and_is_made_once(uv_calls):
    python = environments.peer_python("sb3")
    assert environments.peer_python("sb3") == python
    venv, *installs = uv_calls()
    assert venv[0] == "venv"
    pins = [[part.partition("==")[0] for part in call if "==" in part] for call in installs]
    assert pins == [
        ["torch", "gymnasium", "mujoco", "numpy"], ["torch", "gymnasium", "mujoco"], ["torch", "gymnasium"],
    ]  # fmt: skip
    assert "stable-baselines3" in installs[-1]


def test_uv_is_looked_for_in_four_places(tmp_path, monkeypatch):
    checkout = tmp_path / ".uv" / "bin"
    checkout.mkdir(parents=True)
    (checkout / "uv").write_text("")
    (checkout / "uv").chmod(0o755)
    monkeypatch.delenv("UV", raising=False)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert environments.find_uv(tmp_path) == str(checkout / "uv")
    with pytest.raises(ConfigError, match="pip install uv"):
        environments.find_uv(tmp_path / "elsewhere")


def test_the_peer_script_needs_nothing_of_rlz():
    code = "import ast, sys; ast.parse(open(sys.argv[1]).read())"
    done = subprocess.run([sys.executable, "-I", "-c", code, os.fspath(train.PEER_SCRIPT)], check=False)
    assert done.returncode == 0
    assert "import rlz" not in train.PEER_SCRIPT.read_text()
