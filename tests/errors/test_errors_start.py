"""What is refused before a run starts, or before anything is learned: options, files, folders, memory, devices."""

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rlz as package
from rlz.errors import CheckpointError
from rlz.planning.needs import check_memory
from rlz.system.memory import MIB
from support.command_line import Rlz, serial

ANT = ("train", "sac", "--env", "Ant-v4")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["train", "sca", "--env", "Ant-v4"], ["Unknown algorithm 'sca'. Did you mean sac?"]),
        (["train", "muzero", "--env", "Ant-v4"], ["Unknown algorithm 'muzero'. Algorithms: "]),
        ([*ANT, "--n-envs", "8"], ["No such option --n-envs", "rlz calls it --num-envs"]),
        ([*ANT, "--utd-ratio", "2"], ["rlz calls it --replay-ratio"]),
        ([*ANT, "--totl-timesteps", "2"], ["Did you mean --total-timesteps?"]),
        ([*ANT, "--batch-size", "many"], ["--batch-size many: expected an integer from 1 to"]),
        ([*ANT, "--gamma", "1.01"], ["--gamma 1.01: expected a number from 0 to 1"]),
        ([*ANT, "--learning-rate", "nan"], ["--learning-rate nan: expected a number above 0"]),
        ([*ANT, "--seed", "-1"], ["--seed -1: expected an integer from 0"]),
        ([*ANT, "--device", "gpu"], ["--device gpu: expected auto, cpu, cuda or cuda:N"]),
        ([*ANT, "--hidden", "65536,65536"], ["65536 x 65536 weights are 16 GiB; a layer may have at most 1 GiB"]),
        ([*ANT, "--name", "a/b"], ["--name a/b: expected a folder name without /"]),
        (["trian"], ["No such command 'trian'. Did you mean 'train'"]),
    ],
)
def test_command_lines(rlz: Rlz, options: list[str], words: list[str]) -> None:
    result = rlz(*options)
    assert result.status == 2
    assert result.err.startswith("error: ")
    assert all(word in result.err for word in words), result.err
    assert result.out == ""


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ("Antt-v4", ["There is no environment Antt-v4. Did you mean Ant-v4 or Ant-v5?"]),
        ("Ant-v77", ["There is no environment Ant-v77. Did you mean Ant-v5"]),
        ("my_robots:Arm-v0", ["there is no module 'my_robots'", "run rlz in the folder that holds"]),
        ("CartPole-v1", ["action_space Discrete(2)", "sac needs continuous actions", "Algorithms that fit: dqn, "]),
        ("Nope-v1", ["There is no environment Nope-v1. An environment of your own is named with its module"]),
        ("Ant-v4 ", ["cannot be made: Malformed environment ID"]),
    ],
)
def test_environments(rlz: Rlz, env: str, words: list[str]) -> None:
    result = rlz("train", "sac", "--env", env)
    assert result.status == 1
    assert all(word in result.err for word in words), result.err


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (bytes(range(256)), ["is not a TOML file: it is not UTF-8 text"]),
        (b"\x00\x01\x02", ["is not TOML"]),
        (b"Ant-v4:\n  n_timesteps: !!float 1e6\n  policy: MlpPolicy\n", ["is not TOML", "looks like YAML"]),
        (b'{"env": "Ant-v4",\n "seed": 1}', ["is not TOML", "looks like JSON"]),
        (b"[package]\nname = 'x'\n[dependencies]\nserde = '1'\n", ["is it another program's file?", "'package'"]),
        (b"[defaults]\nseed = 1\n", ["is it another program's file?", "'defaults'"]),
        (b"seed = 1\n[paths]\ndata = 'x'\n", ["unknown section [paths]. Keys stand at the top of the file"]),
        (b"n_envs = 4\nseed = 1\n", ["unknown key 'n_envs'. rlz calls it num_envs."]),
        (b"seed = 'one'\ntau = 7\n", ['seed = "one": expected an integer', "tau = 7: expected a number above 0"]),
        (b"env_kwargs = 3\n", ["env_kwargs = 3: expected key=value"]),
    ],
)
def test_files(rlz: Rlz, tmp_path: Path, content: bytes, words: list[str]) -> None:
    (tmp_path / "run.toml").write_bytes(content)
    result = rlz(*ANT, "--config", "run.toml")
    assert result.status == 1
    assert result.err.startswith("error: run.toml")
    assert all(word in result.err for word in words), result.err


def test_a_run_folder_that_cannot_be_made(rlz: Rlz, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "there" / "run").mkdir(parents=True)
    for runs_dir, words in [
        ("file", "--runs-dir"),
        ("file/below", "Not a directory. Choose another --runs-dir"),
        ("there", "exists already: choose another --name"),
        ("/proc/rlz", "cannot be made"),  # for root too
    ]:
        result = rlz(*serial("Pendulum-v1", "--runs-dir", runs_dir))
        assert result.status == 1
        assert words in result.err, result.err
    result = rlz(*serial("Pendulum-v1", "--name", "x" * 300))
    assert (result.status, "File name too long" in result.err) == (1, True)


def test_a_buffer_larger_than_memory(rlz: Rlz, tmp_path: Path) -> None:
    result = rlz(*ANT, "--buffer-size", "1e11")
    assert result.status == 1
    assert "25332.0 GiB for the replay buffer (100,000,000,000 rows of 272 bytes)" in result.err
    assert "GiB left: " in result.err
    assert "Use --buffer-size " in result.err
    assert not (tmp_path / "runs").exists()


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, str]], None]:
    """Let the memory check look at these files instead of /proc and the cgroups."""

    def pretend(files: dict[str, str]) -> None:
        root = tmp_path / "machine"
        for name, text in files.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        module = importlib.import_module("rlz.runtime.train")
        monkeypatch.setattr(module, "check_memory", lambda *asked: check_memory(*asked, root))

    return pretend


V1 = {
    "proc/self/cgroup": "4:memory:/docker/abc\n",
    "proc/self/mountinfo": "36 32 0:32 /docker/abc /cg rw - cgroup cgroup rw,memory\n",
    "cg/memory.limit_in_bytes": f"{2048 * MIB}\n",
    "cg/memory.usage_in_bytes": f"{400 * MIB}\n",
    "cg/memory.stat": f"total_inactive_file {100 * MIB}\n",
}
V2 = {
    "proc/self/cgroup": "0::/\n",
    "proc/self/mountinfo": "30 23 0:26 / /cg rw - cgroup2 cgroup2 rw\n",
    "cg/memory.max": f"{2048 * MIB}\n",
    "cg/memory.current": f"{400 * MIB}\n",
    "cg/memory.stat": f"inactive_file {100 * MIB}\n",
}


@pytest.mark.parametrize("cgroup", [V1, V2])
def test_a_container_with_too_little_memory(
    rlz: Rlz, tmp_path: Path, machine: Callable[[dict[str, str]], None], cgroup: dict[str, str]
) -> None:
    machine({"proc/meminfo": "MemAvailable: 999999999 kB\n", **cgroup})
    result = rlz(*ANT, "--buffer-size", "4e6")
    assert result.status == 1
    assert "1.7 GiB left: memory limit of the container or cgroup (/cg: 2048 MiB)" in result.err
    assert "Use --buffer-size " in result.err
    assert not (tmp_path / "runs").exists()


def test_networks_and_environments_larger_than_memory(rlz: Rlz, machine: Callable[[dict[str, str]], None]) -> None:
    machine({"proc/meminfo": f"MemAvailable: {16 * 1024 * 1024} kB\n"})
    result = rlz(*ANT, "--hidden", "16384,16384", "--batch-size", "1e6", "--device", "cpu")
    assert result.status == 1
    assert "for networks and batches" in result.err
    assert "Use a smaller --hidden or --batch-size" in result.err
    result = rlz(*ANT, "--num-envs", "60000", "--samplers", "10", "--buffer-size", "60000")
    assert result.status == 1
    assert "and 61.0 GiB for its workers; there are 16.0 GiB left" in result.err
    assert "fewer --samplers or --num-envs need less" in result.err


@pytest.mark.parametrize(("device", "cards", "words"), [
    ("cuda", 0, "torch finds no CUDA device here; use --device auto or cpu"),
    ("cuda:9", 0, "torch finds no CUDA device here"),
    ("cuda:9", 2, "torch finds cuda:0 to cuda:1 here"),
])  # fmt: skip
def test_a_device_that_does_not_exist(
    rlz: Rlz, monkeypatch: pytest.MonkeyPatch, device: str, cards: int, words: str
) -> None:
    import torch

    monkeypatch.setattr("rlz.system.device.check_device", lambda name: None)  # a machine with a driver
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cards > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: cards)
    result = rlz(*serial("Pendulum-v1", "--device", device))
    assert result.status == 1
    assert f"error: learner: --device {device}: {words}" in result.err
    assert "Traceback" not in result.err


def test_a_run_that_is_none(rlz: Rlz, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    (tmp_path / "runs" / "new").mkdir(parents=True)
    (tmp_path / "runs" / "new" / "config.toml").write_text('env = "Ant-v4"\n')
    for run, words in [
        ("nothing", "nothing is no run: there is no such folder. `rlz runs` lists the runs"),
        ("file", "file is no run: it is a file"),
        ("empty", "empty is no run: it has no config.toml"),
        ("new", "has no checkpoint yet"),
    ]:
        result = rlz("eval", run)
        assert (result.status, result.out) == (1, "")
        assert words in result.err, result.err
        with pytest.raises(CheckpointError, match=words.split("`")[0].rstrip(" .")):
            package.load(run)


OLD_POLICY: dict[str, Any] = {
    **{"algo": "sac", "env_spec": {}, "env": {}, "version": 1, "env_steps": 1},
    "actor": {
        **{"obs_dim": 3, "action_dim": 1, "hidden": [8], "activation": "relu"},
        **{"layer_norm": False, "head": "squashed_gaussian"},
    },
}


def test_policy_files_of_another_program_are_named(rlz: Rlz, tmp_path: Path) -> None:
    folder = tmp_path / "run" / "checkpoints" / "latest"
    folder.mkdir(parents=True)
    for content, words in [
        ("[1, 2]", "is broken: it holds a list"),
        ('"text"', "is broken: it holds a str"),
        ("{}", "lacks algo"),
        ("{", "cannot be read"),
        (json.dumps(dict.fromkeys(("algo", "actor", "env_spec", "env", "version", "env_steps"))), "lacks format"),
        (
            json.dumps({**dict.fromkeys(("algo", "actor", "env_spec", "env", "version", "env_steps")), "format": 1}),
            "broken",
        ),
        (json.dumps({**OLD_POLICY, "format": 1}), "cannot be read: No such file"),
    ]:
        (folder / "policy.json").write_text(content)
        result = rlz("eval", "run")
        assert result.status == 1
        assert words in result.err, result.err
