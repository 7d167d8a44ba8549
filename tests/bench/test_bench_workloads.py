import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlz.bench import buffers, environments, messages, train, versions
from rlz.bench.children import run_child
from rlz.bench.writer import Writing
from rlz.errors import ConfigError, RlzError


def test_a_child_gives_its_last_line_or_its_error():
    assert run_child([sys.executable, "-c", "print('noise'); print('{\"x\": 1}')"], timeout=20) == {"x": 1}
    with pytest.raises(RlzError, match=r"status 1: .*boom"):
        run_child([sys.executable, "-c", "raise SystemExit('boom')"], timeout=20)
    with pytest.raises(RlzError, match="instead of its result"):
        run_child([sys.executable, "-c", "print('hello')"], timeout=20)
    with pytest.raises(RlzError, match="did not end within"):
        run_child([sys.executable, "-c", "import time; time.sleep(30)"], timeout=0.2)


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
    own = environments.PEERS["sb3"].requirements
    pins = [[part.partition("==")[0] for part in call if "==" in part and part not in own] for call in installs]
    assert pins == [
        ["torch", "gymnasium", "mujoco", "numpy"], ["torch", "gymnasium", "mujoco"], ["torch", "gymnasium"],
    ]  # fmt: skip
    assert "stable-baselines3==2.9.2" in installs[-1]


def test_the_folder_where_a_peer_is_made_does_not_decide_its_versions(uv_calls, tmp_path, monkeypatch):
    # uv reads the pyproject of the folder in which it runs, and ours holds versions for everything.
    uv = tmp_path / "uv"
    uv.write_text(uv.read_text().replace("json.dumps(sys.argv[1:])", "json.dumps(os.getcwd())"))
    monkeypatch.chdir(Path(__file__).parents[2])
    environments.peer_python("cpprb")
    assert set(uv_calls()) == {str(environments.cache_folder())}


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


@pytest.mark.parametrize("path", sorted(environments.PEER_SCRIPTS.glob("*.py")), ids=lambda path: path.name)
def test_the_peer_scripts_need_nothing_of_rlz(path):
    code = "import ast, sys; ast.parse(open(sys.argv[1]).read())"
    assert subprocess.run([sys.executable, "-I", "-c", code, os.fspath(path)], check=False).returncode == 0
    assert "import rlz" not in path.read_text()
    assert "from rlz" not in path.read_text()


FIELDS = [("obs", "f32", (3,)), ("reward", "f32", ())]


def test_rows_are_drawn_and_appended_while_another_process_writes():
    replay = buffers.filled(FIELDS, 4000)
    table = np.arange(20.0, dtype=np.float32).reshape(10, 2)
    before = replay.committed()
    assert before == [replay.lane_capacity] * buffers.LANES
    with Writing(replay):
        assert buffers.uniform(replay, 64, threads=2)() == 64
        assert [call() for call in buffers.prioritized(replay, (8, 64)).values()] == [8, 64]
        assert buffers.take(table, 5)() == 5
    assert sum(replay.committed()) > sum(before)
    assert replay.owners() == [0] * buffers.LANES
    for calls in buffers.appends(FIELDS, 100).values():
        assert [call() for call in calls.values()] == [buffers.CALLS] * 2


@pytest.mark.parametrize("kind", [messages.Rlz, messages.InPlace, messages.MpQueue])
def test_messages_arrive_with_the_time_of_their_put(kind):
    with kind().consumer("19kB", 2, 1e-3, None) as (get, _):
        begin = time.monotonic_ns()
        while get() < begin:
            pass
        assert get() < time.monotonic_ns()
    with kind().consumer("19kB", 1, 1e-3, 0.0) as (get, nothing):
        assert begin < messages.polling(get, nothing)() < time.monotonic_ns()


@pytest.mark.parametrize("contender", versions.CONTENDERS)
def test_publications_reach_every_reader(contender):
    with versions.CONTENDERS[contender](4000) as (publish, collect):
        for _ in range(3):
            publish(np.ones(1000, np.float32).view(np.uint8), time.monotonic_ns())
            time.sleep(0.1)
        publish(np.ones(1000, np.float32).view(np.uint8), 0)
        times = collect()
    assert len(times) == versions.READERS
    assert all(1 <= len(reader) <= 3 and min(reader) > 0 for reader in times)


class Endless:
    """A process that runs on."""

    def poll(self) -> None:
        return None


def follow(monkeypatch: pytest.MonkeyPatch, logs: list[list[dict[str, Any]]], **options: Any) -> Any:
    """What `_window` makes of a log that grows so; time passes with each look, a second."""
    now = iter(range(1000))
    found = iter(logs)
    monkeypatch.setattr(train.time, "monotonic", lambda: float(next(now)))
    monkeypatch.setattr(train.time, "sleep", lambda _: None)
    monkeypatch.setattr(train, "read_lines", lambda _: next(found))
    values: dict[str, Any] = {"seconds": 2.0, "steady": lambda lines, _: lines[-1] if lines else None, "same": ()}
    values |= {"limit_s": 100.0} | options
    return train._window(Endless(), Path("run"), Path("log"), **values)  # type: ignore[arg-type]


def test_a_window_begins_anew_when_what_must_stand_still_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    line = [{"wall_s": float(at), "updates": at, "size": 256 if at < 3 else 512} for at in range(10)]
    logs = [line[: count + 1] for count in range(10)]
    window, settled = follow(monkeypatch, logs, same=("size",))
    assert (window[0]["wall_s"], window[-1]["wall_s"], settled) == (0.0, 2.0, True)
    window, settled = follow(monkeypatch, logs[1:], same=("size",))
    assert (window[0]["wall_s"], window[-1]["wall_s"], settled) == (3.0, 5.0, True)


def test_a_run_that_is_not_steady_in_time_is_looked_at_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    line = [{"wall_s": float(at), "updates": at} for at in range(20)]
    logs = [line[: count + 1] for count in range(1, 20)]
    window, settled = follow(monkeypatch, logs, steady=lambda lines, _: None, limit_s=5.0)
    assert not settled
    assert window[-1]["wall_s"] - window[0]["wall_s"] == 2.0
    with pytest.raises(RlzError, match="made no update within 5 s"):
        follow(monkeypatch, [[]] * 20, steady=lambda lines, _: None, limit_s=5.0)
