"""Environments that misbehave: the message names environment, worker and step, and shows the user's code, not ours."""

import json
from pathlib import Path

import pytest

from support.command_line import Rlz, serial

ENV = "support.misbehaving_envs:Misbehaving-v0"
pytestmark = pytest.mark.usefixtures("without_torch")


def kwargs(**values: object) -> list[str]:
    return [part for key, value in values.items() for part in ("--env-kwargs", f"{key}={value}")]


@pytest.mark.parametrize(
    ("where", "how", "words"),
    [
        ("step", "raise", ["(step 5 of", "raised RuntimeError: the simulator said no", "in simulate"]),
        ("reset", "raise", ["(reset after ", "raised RuntimeError: the simulator said no", "in simulate"]),
        ("step", "sys.exit", ["(step 5 of", "called exit(0)", "sys.exit(0)"]),
        ("reset", "sys.exit", ["(reset after ", "called exit(0)", "sys.exit(0)"]),
        ("step", "obs_nan", ["(step 5 of", "value number 1 is nan: not a finite float32 number"]),
        ("reset", "obs_inf", ["(reset after ", "value number 2 is inf: not a finite float32 number"]),
        ("step", "shape", ["shape (4,), not (3,) as its space says"]),
        ("step", "none", ["shape (), not (3,)"]),
        ("step", "dict", ["shape (), not (3,)"]),
        ("reset", "text", ["(reset after ", "observation of <U1; its observation_space says float32"]),
        ("step", "objects", ["observation of object; its observation_space says float32"]),
        ("step", "complex", ["observation of complex128; its observation_space says float32"]),
        ("step", "ragged", ["observation that is no array"]),
        ("step", "reward_nan", ["(step 5 of", "reward nan, which is not a finite float32 number"]),
        ("step", "reward_inf", ["reward -inf, which is not a finite float32 number"]),
        ("step", "reward_none", ["reward None", "expected one number and two booleans"]),
        ("step", "reward_text", ["reward 'much'"]),
        ("step", "reward_array", ["is it a vector environment?"]),
        ("step", "old_step", ["returned 4 values (the old Gym API?", "(obs, reward, terminated, truncated, info)"]),
        ("step", "nothing", ["returned a NoneType; Gymnasium's step returns (obs, reward"]),
        ("reset", "old_reset", ["returned a ndarray; Gymnasium's reset returns (obs, info)"]),
    ],
)
def test_what_goes_wrong_is_named(rlz: Rlz, tmp_path: Path, where: str, how: str, words: list[str]) -> None:
    result = rlz(*serial(ENV, *kwargs(how=how, where=where, when=5 if where == "step" else 2)))
    assert result.status == 1
    assert f"error: sampler-0: environment {ENV} in worker sampler-0 " in result.err
    assert all(word in result.err for word in words), result.err
    assert json.loads((tmp_path / "runs/run/summary.json").read_text())["status"] == "failed"
    trace = result.err.partition("Traceback")[2]
    assert bool(trace) == (how in ("raise", "sys.exit")), result.err
    if trace:
        assert trace.splitlines()[1].split('"')[1].endswith("misbehaving_envs.py"), "the user's code comes first"


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("large", "observation of int64 whose value number 1 is 256: it does not fit uint8"),
        ("negative", "observation of int8 whose value number 2 is -1: it does not fit uint8"),
        ("half", "observation of float64 whose value number 0 is 0.5: it does not fit uint8"),
        ("nan_for_int", "value number 0 is nan: it does not fit uint8"),
    ],
)
@pytest.mark.parametrize("where", ["step", "reset"])
def test_a_cast_that_loses_a_value_is_an_error(rlz: Rlz, where: str, how: str, words: str) -> None:
    result = rlz(*serial(ENV, *kwargs(how=how, where=where, when=2, dtype="uint8")))
    assert result.status == 1
    assert words in result.err


def test_a_cast_that_loses_nothing_is_none(rlz: Rlz) -> None:
    assert rlz(*serial(ENV, *kwargs(how="fits", dtype="uint8"))).status == 0


@pytest.mark.parametrize("where", ["step", "reset"])
def test_a_worker_process_that_exits_without_a_word(rlz: Rlz, where: str) -> None:
    arguments = serial(ENV, *kwargs(how="os._exit", where=where, when=1 if where == "reset" else 30), "--mode", "async")
    result = rlz(*arguments)
    assert result.status == 1
    steps = 0 if where == "reset" else 29
    assert f"error: environment {ENV} in worker sampler-0 (after {steps} env steps of its lanes): " in result.err
    assert "sampler-0 exited with status 0 before its work was done" in result.err
    assert "Traceback" not in result.err


def test_a_worker_process_whose_environment_raises(rlz: Rlz) -> None:
    result = rlz(*serial(ENV, *kwargs(how="raise", when=30), "--mode", "async"))
    assert result.status == 1
    assert f"environment {ENV} in worker sampler-0 (step 30 of this" in result.err
    trace = result.err.partition("Traceback")[2]
    assert trace.splitlines()[1].split('"')[1].endswith("misbehaving_envs.py")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([ENV, *kwargs(how="raise", where="init", when=1)], ["constructor raised RuntimeError: the simulator said no"]),
        ([ENV, *kwargs(how="sys.exit", where="init", when=1)], ["called exit(0)", "misbehaving_envs.py, line"]),
        (
            ["support.exits_on_import:X-v0"],
            ["importing 'support.exits_on_import' failed. it called exit(0)", "exits_on_import.py"],
        ),
        ([ENV, "--wrapper", "support.misbehaving_envs:exiting_wrapper"], ["exiting_wrapper around", "called exit(4)"]),
        (["support.misbehaving_envs:NoSpaces-v0"], ["cannot be used: AttributeError", "observation_space"]),
        ([":X-v0"], ["expected the id of an environment, or module:id"]),
        (["x:"], ["expected the id of an environment, or module:id"]),
    ],
)
def test_an_environment_that_cannot_be_made(rlz: Rlz, tmp_path: Path, arguments: list[str], words: list[str]) -> None:
    result = rlz(*serial(*arguments))
    assert result.status == 1
    assert all(word in result.err for word in words), result.err
    assert "Traceback" not in result.err
    assert not (tmp_path / "runs").exists(), "before anything was made"


def test_an_evaluation_shows_the_users_traceback_too(rlz: Rlz, tmp_path: Path) -> None:
    assert rlz(*serial(ENV)).status == 0
    path = tmp_path / "runs/run/checkpoints/latest/policy.json"
    description = json.loads(path.read_text())
    description["env"]["kwargs"] = {"how": "raise", "when": 3}
    path.write_text(json.dumps(description))
    result = rlz("eval", "runs/run")
    assert result.status == 1
    first, second, *_, last = result.err.splitlines()
    assert first.startswith("Traceback")
    assert second.split('"')[1].endswith("misbehaving_envs.py")
    assert last.startswith(f"error: environment {ENV} in worker eval (step 3 of")


def test_exit_in_close_changes_no_result(rlz: Rlz) -> None:
    assert rlz(*serial("support.misbehaving_envs:ExitsWhenClosed-v0")).status == 0


def test_gymnasiums_warnings_are_one_short_note(rlz: Rlz) -> None:
    result = rlz(*serial("Ant-v4"))
    assert result.status == 0
    assert result.out.count("Gymnasium has a newer Ant-v5; scores of the two differ.") == 1
    for text in (result.out, result.err):
        assert "WARN" not in text
        assert "warnings.py" not in text
        assert "DeprecationWarning" not in text
