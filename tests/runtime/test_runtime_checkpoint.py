"""Checkpoints: whole or absent, finite, incremental, few, and read back as they were."""

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import rlz
from rlz._native import FLAG_TRUNCATED
from rlz.errors import CheckpointError, NonFiniteError
from rlz.records import replay_files
from rlz.records.checkpoint import load_checkpoint, newest_checkpoint, step_folders
from rlz.records.checkpointer import KEEP
from rlz.system import files
from rlz.transport import Streams
from support.harness import Run, config
from support.trained import STATE, Trained


@pytest.fixture
def trained(tmp_path: Path) -> Trained:
    return Trained(tmp_path)


def restored(path: Path, lanes: int = 1, buffer_size: int = 50) -> tuple[Run, int]:
    run = Run(config(buffer_size=buffer_size, num_envs=lanes), path)
    return run, newest_checkpoint(path).restore_replay(run.replay, worker=1)


def test_everything_comes_back(trained: Trained, tmp_path: Path) -> None:
    trained.steps(30)
    path = trained.save()
    assert path == tmp_path / "checkpoints" / "step-000000000030"
    assert (tmp_path / "checkpoints" / "latest").resolve() == path
    checkpoint = load_checkpoint(tmp_path / "checkpoints" / "latest")
    assert (checkpoint.env_steps, checkpoint.updates) == (30, 0)
    assert checkpoint.counters == {"count": 3, "learning_starts": 10}
    assert checkpoint.rng == {"replay": "00", "learner": "ff"}
    assert checkpoint.extra == {"note": 1}
    assert checkpoint.learner.keys() == STATE.keys()
    for name, tensor in STATE.items():
        assert checkpoint.learner[name].dtype == tensor.dtype
        assert (checkpoint.learner[name] == tensor).all()
    run, count = restored(tmp_path)
    assert count == 30
    before, meta_before = trained.run.rows()
    after, meta_after = run.rows()
    assert all((before[name] == after[name]).all() for name in before)
    # The episode that was open is cut there: its environment is gone.
    assert (meta_before[:-1] == meta_after[:-1]).all()
    assert int(meta_after[-1]) == int(meta_before[-1]) | FLAG_TRUNCATED
    assert checkpoint.restore_replay(Run(config(buffer_size=50), tmp_path).replay, worker=1, open_episodes=True) == 30
    assert rlz.load(tmp_path).env_steps == 30


def test_later_checkpoints_write_only_new_rows(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay_files, "FEW_ROWS", 1)
    trained.steps(20)
    trained.save()
    trained.steps(5)
    trained.save()
    names = sorted(path.name for path in (tmp_path / "replay").rglob("rows-*"))
    assert names == ["rows-000000000001-000000000020.npy", "rows-000000000021-000000000025.npy"]
    run, count = restored(tmp_path)
    assert count == 25
    assert run.rows()[0]["next_obs"].tolist() == trained.run.rows()[0]["next_obs"].tolist()


def test_small_row_files_are_joined_and_old_rows_go(trained: Trained, tmp_path: Path) -> None:
    for _ in range(8):
        trained.steps(20)
        trained.save()
    folder = tmp_path / "replay"
    kept = [load_checkpoint(path) for path in step_folders(tmp_path / "checkpoints")]
    assert [checkpoint.env_steps for checkpoint in kept] == [120, 140, 160]
    on_disk = {str(path.relative_to(tmp_path)) for path in folder.rglob("*.npy")}
    assert on_disk == {path for checkpoint in kept if checkpoint.replay for path in checkpoint.replay.paths()}
    assert len(on_disk) == KEEP
    run, count = restored(tmp_path)
    assert count == 50, "no more than the buffer holds"
    rows = trained.run.replay
    assert run.replay.committed() == [50]
    assert rows.committed() == [160]


def test_two_checkpoints_of_one_moment_are_one(trained: Trained) -> None:
    trained.steps(3)
    assert trained.save() == trained.save()
    trained.run.limiter.complete_updates(0)


def test_numbers_that_are_not_finite_are_never_written(trained: Trained, tmp_path: Path) -> None:
    trained.steps(3)
    good = trained.save()
    trained.steps(3)
    with pytest.raises(NonFiniteError, match=r"'critic.weight' holds 1 of 6"):
        trained.save({"critic.weight": np.array([0, 1, 2, np.nan, 4, 5])})
    assert step_folders(tmp_path / "checkpoints") == [good]


@pytest.mark.parametrize("where", ["learner", "state.json"])
def test_a_full_disk_leaves_the_old_checkpoint_and_is_loud(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], where: str
) -> None:
    trained.steps(10)
    good = trained.save()
    trained.steps(10)

    def full(path: Path, data: bytes) -> None:
        if where in path.name:
            path.write_bytes(data[: len(data) // 2])
            raise OSError(28, "No space left on device")
        files.write_file(path, data)

    for module in ("checkpointer", "policy_files"):
        monkeypatch.setattr(f"rlz.records.{module}.write_file", full)
    assert trained.save() is None
    assert "CHECKPOINT NOT WRITTEN at 20 env steps: No space left on device" in capsys.readouterr().err
    assert newest_checkpoint(tmp_path).path == good
    assert not list(tmp_path.rglob(".tmp-*"))
    monkeypatch.undo()
    assert trained.save() is not None
    assert newest_checkpoint(tmp_path).env_steps == 20


def test_other_numbers_of_lanes_get_the_rows_in_order_of_age(tmp_path: Path) -> None:
    trained = Trained(tmp_path, num_envs=2)
    trained.steps(20)
    trained.save()
    run, count = restored(tmp_path, lanes=1, buffer_size=100)
    assert count == 40
    assert run.replay.committed() == [40]
    run, count = restored(tmp_path, lanes=4, buffer_size=100)
    assert count == 40
    assert run.replay.committed() == [10, 10, 10, 10]


def test_broken_checkpoints_are_named_and_an_older_whole_one_is_found(trained: Trained, tmp_path: Path) -> None:
    paths = []
    for _ in range(3):
        trained.steps(5)
        paths.append(trained.save())
    assert all(paths)
    first, second, third = (path for path in paths if path is not None)
    (third / "learner.safetensors").write_bytes((third / "learner.safetensors").read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"learner.safetensors has \d+ bytes, expected"):
        load_checkpoint(third)
    (second / "state.json").write_text('{"format": 1')
    with pytest.raises(CheckpointError, match=r"state.json is broken"):
        load_checkpoint(second)
    assert newest_checkpoint(tmp_path).path == first
    state = json.loads((first / "state.json").read_text())
    (first / "state.json").write_text(json.dumps({**state, "format": 99}))
    with pytest.raises(CheckpointError, match=r"no checkpoint that can be read(.|\n)*format 99"):
        newest_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match="is no checkpoint"):
        load_checkpoint(tmp_path)


def test_a_missing_row_file_is_noticed(trained: Trained, tmp_path: Path) -> None:
    trained.steps(5)
    path = trained.save()
    assert path is not None
    next((tmp_path / "replay").rglob("rows-*")).unlink()
    with pytest.raises(CheckpointError, match="rows-"):
        load_checkpoint(path)


def test_rows_of_another_layout_are_refused(trained: Trained, tmp_path: Path) -> None:
    trained.steps(5)
    trained.save()
    other = Run(config(env="Pixels-v0"), tmp_path)
    with pytest.raises(
        CheckpointError, match=r"cannot be restored: (.|\n)*field 0: here obs u8\[.*, there obs f32\[3\]"
    ):
        newest_checkpoint(tmp_path).restore_replay(other.replay, worker=1)


def test_what_a_kill_left_half_written_goes_with_the_next_checkpoint(trained: Trained, tmp_path: Path) -> None:
    trained.steps(5)
    trained.save()
    left = next((tmp_path / "replay").rglob("rows-*")).with_name(".tmp-abc")
    left.write_bytes(b"half")
    trained.steps(5)
    trained.save()
    assert not left.exists()
    assert restored(tmp_path)[1] == 10


def test_row_files_are_arrays_for_numpy(trained: Trained, tmp_path: Path) -> None:
    trained.steps(5)
    trained.save()
    rows = np.load(next((tmp_path / "replay").rglob("rows-*")), mmap_mode="r")
    expected = trained.run.rows()[0]
    assert all((rows[name] == column).all() for name, column in expected.items())
    assert rows["rlz.ticket"].tolist() == [1, 2, 3, 4, 5]


def test_rows_may_be_left_out(tmp_path: Path) -> None:
    trained = Trained(tmp_path, save_replay=False)
    trained.steps(5)
    trained.save()
    assert not (tmp_path / "replay").exists()
    assert newest_checkpoint(tmp_path).replay is None


def test_nothing_in_a_checkpoint_is_pickled(trained: Trained, tmp_path: Path) -> None:
    trained.steps(5)
    trained.save()
    found = {path.suffix for path in tmp_path.rglob("*") if path.is_file()}
    assert found == {".json", ".npy", ".safetensors"}
    assert isinstance(trained.run.streams, Streams)


WRITES_FOR_EVER = """
import sys
from pathlib import Path
from support.trained import Trained
trained = Trained(Path(sys.argv[1]))
while True:
    trained.steps(3)
    assert trained.save() is not None
    print("saved", flush=True)
"""


@pytest.mark.slow
def test_the_newest_checkpoint_loads_after_a_kill_at_any_moment(tmp_path: Path) -> None:
    rng = np.random.default_rng()
    for _ in range(6):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITES_FOR_EVER, str(tmp_path)],
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(rng.uniform(0.0, 0.2))
        process.kill()
        process.communicate()
        newest = step_folders(tmp_path / "checkpoints")[-1]
        checkpoint = load_checkpoint(newest)
        assert checkpoint.replay is not None
        run = Run(config(buffer_size=50), tmp_path)
        assert checkpoint.restore_replay(run.replay, worker=1) == min(50, checkpoint.replay.committed[0])
        run.streams.close()
