"""A disk that is full while a checkpoint is written, and checkpoints that somebody has damaged."""

import errno
import importlib
import json
import os
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlz.errors import CheckpointError
from rlz.records.checkpoint import load_checkpoint, newest_checkpoint, step_folders
from rlz.records.checkpointer import Checkpointer
from rlz.transport import Replay
from support.command_line import Rlz, serial
from support.full_disk import largest_file


def events(run: Path) -> str:
    return (run / "logs" / "events.log").read_text()


def test_whichever_file_does_not_fit_the_run_goes_on(
    rlz: Rlz, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without_torch: None
) -> None:
    write = Checkpointer._write
    nbytes = resource.RLIM_INFINITY

    def limited(self: Checkpointer, *arguments: Any) -> Path:
        with largest_file(nbytes):
            return write(self, *arguments)

    monkeypatch.setattr(Checkpointer, "_write", limited)
    assert rlz(*serial("Pendulum-v1", "--name", "whole")).status == 0
    whole = tmp_path / "runs" / "whole"
    files = [*(whole / "replay").rglob("*.npy"), *newest_checkpoint(whole).path.iterdir()]
    assert len(files) == 5  # rows, learner, policy twice, state
    for size in sorted({file.stat().st_size for file in files}):
        nbytes = size - 1
        assert rlz(*serial("Pendulum-v1", "--name", f"{size}")).status == 0  # the fake learner does not mind
        run = tmp_path / "runs" / f"{size}"
        assert "CHECKPOINT NOT WRITTEN at 60 env steps: File too large. The run goes on" in events(run)
        assert {folder.name for folder in step_folders(run / "checkpoints")} <= {"step-000000000000"}  # the first fits
        assert not list(run.rglob(".tmp-*"))


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[int], bool]], None]:
    """Make the disk full for the saves (0, 1, ...) for which the given function says so."""

    def fill(full: Callable[[int], bool]) -> None:
        save, fsync, saves, saving = Checkpointer.save, os.fsync, -1, False

        def counted(self: Checkpointer, *arguments: Any, **options: Any) -> Path | None:
            nonlocal saves, saving
            saves += 1
            saving = True
            try:
                return save(self, *arguments, **options)
            finally:
                saving = False

        def failing(fd: int) -> None:
            if saving and full(saves):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            fsync(fd)

        monkeypatch.setattr(Checkpointer, "save", counted)
        monkeypatch.setattr("rlz.system.files.os.fsync", failing)

    return fill


OFTEN = ("--checkpoint-every", "0.01", "-n", "100", "--no-compile")


def test_a_disk_that_is_full_for_a_while(
    rlz: Rlz, tmp_path: Path, disk: Callable[[Callable[[int], bool]], None]
) -> None:
    disk(lambda save: save in (1, 2))
    result = rlz(*serial("Pendulum-v1", *OFTEN))
    assert result.status == 0, result.err
    run = tmp_path / "runs" / "run"
    assert events(run).count("CHECKPOINT NOT WRITTEN") == 2
    assert "No space left on device. The run goes on; the previous checkpoints stay" in result.out
    assert newest_checkpoint(run).env_steps == 100
    assert not list(run.rglob(".tmp-*"))


def test_a_disk_that_stays_full_fails_the_run_and_keeps_the_old_checkpoint(
    rlz: Rlz, tmp_path: Path, disk: Callable[[Callable[[int], bool]], None]
) -> None:
    disk(lambda save: save > 1)  # the first is the one before all steps
    result = rlz(*serial("Pendulum-v1", *OFTEN))
    assert result.status == 1
    assert "error: learner: the last checkpoint of the run could not be written" in result.err
    assert "Traceback" not in result.err
    run = tmp_path / "runs" / "run"
    assert 0 < newest_checkpoint(run).env_steps < 100
    assert json.loads((run / "summary.json").read_text())["status"] == "failed"
    assert not list(run.rglob(".tmp-*"))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run folder of a short run with two checkpoints or more."""
    from rlz.config import run_config

    folder = tmp_path_factory.mktemp("trained")
    train = importlib.import_module("rlz.runtime.train").train
    config = run_config({
        "env": "Pendulum-v1", "mode": "serial", "total_timesteps": 120, "learning_starts": 20, "eval_every": 0,
        "hidden": [8], "batch_size": 8, "buffer_size": 1000, "compile": False, "checkpoint_every": 0.02,
        "runs_dir": str(folder), "name": "run",
    })  # fmt: skip
    assert train(config, quiet=True) == 0
    assert len(step_folders(folder / "run" / "checkpoints")) >= 2
    return folder / "run"


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def change(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[3] ^= 0xFF
    path.write_bytes(data)


def change_last(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 0x01
    path.write_bytes(data)


def other(name: str, value: Any) -> Callable[[Path], Any]:
    return lambda path: path.write_text(json.dumps({**json.loads(path.read_text()), name: value}))


def garble(path: Path) -> None:
    path.write_bytes(b'{"format": 1, "env_steps": tr')


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize(
    ("name", "damage", "words"),
    [
        ("learner.safetensors", cut_short, "learner.safetensors has "),
        ("learner.safetensors", change, "learner.safetensors is damaged: its CRC-32 is "),
        ("learner.safetensors", change_last, "learner.safetensors is damaged: its CRC-32 is "),
        ("policy.safetensors", change_last, "policy.safetensors is damaged: its CRC-32 is "),
        ("policy.json", change, "policy.json is damaged: its CRC-32 is "),
        ("learner.safetensors", Path.unlink, "cannot be read"),
        ("state.json", garble, "state.json is broken"),
        ("state.json", empty, "state.json is broken"),
        ("state.json", Path.unlink, "is no checkpoint"),
        ("state.json", lambda path: path.write_text("[]"), "checkpoint format list; this rlz reads format 2"),
        ("state.json", lambda path: path.write_text('{"format": 9}'), "checkpoint format 9; this rlz reads format 2"),
        ("state.json", lambda path: path.write_text('{"format": 2}'), "is broken: created: Field required"),
        ("state.json", other("workers", [1]), "state.json is broken: workers: "),
        ("state.json", other("workers", {"sampler-0": 3}), "state.json is broken: workers.sampler-0: "),
        ("state.json", other("rng", {}), "state.json is broken: rng.replay: Field required"),
        ("state.json", other("rng", {"replay": "xx", "learner": "00"}), "state.json is broken: rng.replay: "),
        ("state.json", other("env_steps", "12"), "state.json is broken: env_steps: "),
        ("state.json", other("counters", {"version": None}), "state.json is broken: counters.version: "),
        ("state.json", other("replay", {"lanes": 3}), "state.json is broken: replay."),
        ("state.json", other("files", []), "state.json is broken: files: "),
        ("policy.safetensors", Path.unlink, "policy.safetensors cannot be read"),
    ],
)
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_taken(
    trained: Path, tmp_path: Path, name: str, damage: Callable[[Path], Any], words: str
) -> None:
    run = shutil.copytree(trained, tmp_path / "run", symlinks=True)
    *_, before, newest = step_folders(run / "checkpoints")
    damage(newest / name)
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(newest)
    assert words in str(caught.value)
    assert newest_checkpoint(run).path == before
    for folder in step_folders(run / "checkpoints"):
        (folder / "state.json").unlink(missing_ok=True)
    with pytest.raises(CheckpointError, match="has no checkpoint that can be read"):
        newest_checkpoint(run)


@pytest.mark.parametrize(("damage", "words"), [(Path.unlink, "cannot be read"), (cut_short, "bytes, expected ")])
def test_a_missing_or_short_file_of_rows_is_named(
    trained: Path, tmp_path: Path, damage: Callable[[Path], Any], words: str
) -> None:
    run = shutil.copytree(trained, tmp_path / "run", symlinks=True)
    newest = step_folders(run / "checkpoints")[-1]
    replay = load_checkpoint(newest).replay
    assert replay is not None
    file = run / replay.lanes[0][-1].path
    damage(file)
    with pytest.raises(CheckpointError, match=f"{file.name}.*{words}" if words.startswith("bytes") else words):
        load_checkpoint(newest)


def test_rows_of_the_right_size_that_are_garbage_are_named(trained: Path, tmp_path: Path) -> None:
    run = shutil.copytree(trained, tmp_path / "run", symlinks=True)
    checkpoint = load_checkpoint(step_folders(run / "checkpoints")[-1])
    assert checkpoint.replay is not None
    file = run / checkpoint.replay.lanes[0][-1].path
    change(file)
    replay = Replay.create([("obs", "f32", ())], buffer_size=10, lanes=1, run_id=1)
    with pytest.raises(CheckpointError, match=f"cannot be restored: .*{file.name} is not a usable saved replay buffer"):
        checkpoint.restore_replay(replay, worker=1)


@pytest.mark.parametrize(
    ("name", "damage", "words"),
    [
        ("policy.safetensors", cut_short, "policy.safetensors is damaged"),
        ("policy.safetensors", empty, "policy.safetensors is damaged"),
        ("policy.safetensors", change_last, "policy.safetensors is damaged"),
        ("policy.safetensors", Path.unlink, "policy.safetensors cannot be read"),
        ("policy.json", garble, "policy.json cannot be read"),
        ("policy.json", Path.unlink, "has no checkpoint"),
    ],
)
def test_a_damaged_policy_is_named(
    rlz: Rlz, trained: Path, tmp_path: Path, name: str, damage: Callable[[Path], Any], words: str
) -> None:
    shutil.copytree(trained, tmp_path / "run", symlinks=True)
    damage(tmp_path / "run" / "checkpoints" / "latest" / name)
    result = rlz("eval", "run", "--checkpoint", "latest")
    assert result.status == 1
    assert words in result.err
    assert "Traceback" not in result.err


def test_checkpoints_without_checksums_still_load(rlz: Rlz, trained: Path, tmp_path: Path) -> None:
    run = shutil.copytree(trained, tmp_path / "run", symlinks=True)
    newest = step_folders(run / "checkpoints")[-1]
    for name, key in (("state.json", "files"), ("policy.json", "crc32")):
        value = json.loads((newest / name).read_text())
        del value[key]
        (newest / name).write_text(json.dumps(value))
    assert load_checkpoint(newest).env_steps == 120
    assert rlz("eval", "run", "--episodes", "1").status == 0


def everything_in(run: Path) -> dict[str, bytes]:
    return {str(path.relative_to(run)): path.read_bytes() for path in run.rglob("*") if path.is_file()}


def test_rows_that_are_damaged_or_gone_are_named_with_every_way_out(
    rlz: Rlz, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlz.records.replay_files.FEW_ROWS", 1)  # so that older checkpoints have files of their own
    assert rlz(*serial("Pendulum-v1", "--checkpoint-every", "0.01", "-n", "100", "--no-compile")).status == 0
    run = tmp_path / "runs" / "run"
    whole = shutil.copytree(run, tmp_path / "whole", symlinks=True)
    *_, older, newest = (load_checkpoint(path) for path in step_folders(run / "checkpoints"))
    assert newest.replay is not None
    assert older.replay is not None
    change_last(run / max(newest.replay.paths() - older.replay.paths()))
    before = everything_in(run)
    result = rlz("train", "--resume", str(run), "-n", "101")
    assert result.status == 1
    assert f"the replay buffer of {newest.path} cannot be restored: " in result.err
    assert f"move every checkpoint that is newer than {older.path.name}, which is whole, out of " in result.err
    assert "Traceback" not in result.err
    assert everything_in(run) == before

    shutil.rmtree(run / "replay")
    result = rlz("train", "--resume", str(run), "-n", "101")
    assert result.status == 1
    assert "No such file or directory" in result.err
    assert "--no-save-replay" in result.err
    assert f"put what is missing or damaged in {run / 'replay'} back" in result.err
    assert "newer than" not in result.err, "no other checkpoint has rows"
    assert {name: data for name, data in before.items() if not name.startswith("replay")} == everything_in(run)

    # The three ways out.
    shutil.copytree(whole / "replay", run / "replay")
    assert rlz("train", "--resume", str(run), "-n", "101").status == 0
    shutil.rmtree(run / "replay")
    result = rlz("train", "--resume", str(run), "-n", "150", "--no-save-replay")
    assert result.status == 0, result.err
    assert "NOT RESTORED: the replay buffer of " in result.out
    assert newest_checkpoint(run).env_steps == 150
    shutil.rmtree(whole / "checkpoints" / newest.path.name)
    assert rlz("train", "--resume", str(whole), "-n", "101").status == 0
    assert not list(tmp_path.rglob("broken-*")), "every checkpoint was whole"


def test_a_resume_that_fails_changes_nothing(rlz: Rlz, trained: Path, tmp_path: Path) -> None:
    run = shutil.copytree(trained, tmp_path / "run", symlinks=True)
    for folder in step_folders(run / "checkpoints"):
        change_last(folder / "learner.safetensors")
    before = everything_in(run)
    result = rlz("train", "--resume", "run", "-n", "500")
    assert result.status == 1
    assert "has no checkpoint that can be read" in result.err
    assert everything_in(run) == before


@pytest.mark.parametrize("field", ["actor", "env_spec", "env", "version"])
def test_a_policy_description_with_a_wrong_value_is_named(rlz: Rlz, trained: Path, tmp_path: Path, field: str) -> None:
    shutil.copytree(trained, tmp_path / "run", symlinks=True)
    path = tmp_path / "run" / "checkpoints" / "latest" / "policy.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), field: None}))
    result = rlz("eval", "run")
    assert result.status == 1
    assert "policy.json is broken: " in result.err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--gamma", "0.9"], "--gamma 0.9: the run was trained with --gamma 0.99"),
        (["--env", "Acrobot-v1"], "--env Acrobot-v1: the run was trained with --env "),
        (["--total-timesteps", "1"], "--total-timesteps 1 is no more than the "),
        (["--config", "other.toml"], "--resume takes the configuration of its run: leave out --config"),
    ],
)
def test_a_resume_that_cannot_be_says_why(
    rlz: Rlz, trained: Path, tmp_path: Path, options: list[str], words: str
) -> None:
    shutil.copytree(trained, tmp_path / "run", symlinks=True)
    before = (tmp_path / "run" / "config.toml").read_bytes()
    result = rlz("train", "--resume", "run", *options)
    assert result.status != 0
    assert words in " ".join(result.err.split())
    assert "Traceback" not in result.err
    assert (tmp_path / "run" / "config.toml").read_bytes() == before


@pytest.mark.parametrize("make", [Path.mkdir, Path.touch, lambda path: None])
def test_a_resume_of_what_is_no_run_says_so(rlz: Rlz, tmp_path: Path, make: Callable[[Path], Any]) -> None:
    make(tmp_path / "run")
    result = rlz("train", "--resume", "run")
    assert result.status != 0
    assert "run is no run: " in " ".join(result.err.split())
    assert "Traceback" not in result.err
