"""Run folders that somebody has changed, or may not use: a clear error before the start, or no error at all."""

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.command_line import Rlz, serial

NOBODY = 65534


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder that any user may use, and the current one."""
    path = Path(tempfile.mkdtemp())
    path.chmod(0o777)
    monkeypatch.chdir(path)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def run(rlz: Rlz, folder: Path, without_torch: None) -> Path:
    """Run folder of a run that has been resumed once; so everything that a resume needs is imported."""
    os.chdir(folder)
    assert rlz(*serial("Pendulum-v1")).status == 0
    assert rlz("train", "--resume", "runs/run", "-n", "65").status == 0
    return folder / "runs" / "run"


@pytest.fixture
def user(run: Path) -> Iterator[None]:
    """Be somebody else than root, for whom nothing is forbidden; the run is this user's."""
    before = os.geteuid()
    if before == 0:
        for path in (run.parent, run, *run.rglob("*")):
            os.chown(path, NOBODY, -1, follow_symlinks=False)
        os.seteuid(NOBODY)
    yield
    os.seteuid(before)


def resume(rlz: Rlz) -> str:
    result = rlz("train", "--resume", "runs/run", "-n", "70")
    assert result.status == 1
    return " ".join(result.err.split())


def test_logs_that_are_gone(rlz: Rlz, run: Path) -> None:
    shutil.rmtree(run / "logs")
    result = rlz("train", "--resume", "runs/run", "-n", "70")
    assert result.status == 0, result.err
    assert (run / "logs").is_dir()


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        (".lock", 0o400), ("checkpoints", 0o000), ("checkpoints", 0o500), ("logs", 0o500), ("logs/events.log", 0o400),
        ("metrics.jsonl", 0o400), ("config.toml", 0o000), (".", 0o500), (".", 0o000),
    ],
)  # fmt: skip
def test_what_may_not_be_used_is_named_with_the_fix(rlz: Rlz, run: Path, user: None, name: str, mode: int) -> None:
    before = [(run / file).read_bytes() for file in ("config.toml", "starts")]
    (run / name).chmod(mode)
    error = resume(rlz)
    (run / name).chmod(0o700)
    assert error.startswith("error: ")
    assert f"{name.strip('.')}: Permission denied" in error or "config.toml: Permission denied" in error
    assert [(run / file).read_bytes() for file in ("config.toml", "starts")] == before
    if mode != 0o000 or name == "checkpoints":
        assert f"chmod -R u+rwX {run}" in error


@pytest.mark.parametrize("name", [".lock", "starts", "checkpoints"])
def test_something_else_in_its_place_is_named(rlz: Rlz, run: Path, name: str) -> None:
    path = run / name
    if path.is_dir():
        shutil.rmtree(path)
        path.write_text("")
    else:
        path.unlink()
        path.mkdir()
    assert f"{name}: " in resume(rlz)


@pytest.mark.parametrize(
    ("place", "mode"),
    [
        ("rlz.system.files.os.fsync", "serial"),  # config.toml
        ("rlz.records.runs.fcntl.flock", "serial"),
        ("rlz.runtime.serial.SerialRun.__init__", "serial"),
        ("rlz.workers.process._open_log", "async"),
    ],
)
def test_a_disk_that_is_full_at_the_start_leaves_no_half_made_run(
    rlz: Rlz, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without_torch: None, place: str, mode: str
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(tmp_path / "runs" / "run" / "file"))

    with monkeypatch.context() as patch:
        patch.setattr(place, full)
        result = rlz(*serial("Pendulum-v1", "--mode", mode))
    assert result.status == 1
    assert "No space left on device" in result.err
    assert not list((tmp_path / "runs").iterdir())
    assert rlz(*serial("Pendulum-v1")).status == 0
