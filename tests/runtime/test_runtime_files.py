import os
import stat
from pathlib import Path

import pytest

from rlz.config import read_config, run_config
from rlz.errors import CheckpointError, ConfigError
from rlz.records.run_directory import create_run_directory, default_name, open_run_directory
from rlz.system.files import TEMPORARY, new_folder, point_to, remove_temporary, replace_file, write_file


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    with new_folder(tmp_path / "whole") as folder:
        write_file(folder / "a", b"1")
        assert not (tmp_path / "whole").exists()
    assert (tmp_path / "whole" / "a").read_bytes() == b"1"
    with pytest.raises(FileNotFoundError), new_folder(tmp_path / "broken") as folder:
        write_file(folder / "missing" / "a", b"1")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["whole"]


def test_links_and_files_are_replaced(tmp_path: Path) -> None:
    replace_file(tmp_path / "file", b"old")
    replace_file(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new"
    point_to(tmp_path / "link", "file")
    (tmp_path / "other").write_bytes(b"other")
    point_to(tmp_path / "link", "other")
    assert (tmp_path / "link").read_bytes() == b"other"
    (tmp_path / f"{TEMPORARY}x").mkdir()
    (tmp_path / f"{TEMPORARY}y").write_bytes(b"")
    remove_temporary(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link", "other"]


def test_the_run_folder_says_what_it_is_and_is_private(tmp_path: Path) -> None:
    config = run_config(env="ALE/Pong-v5", runs_dir=str(tmp_path / "runs"), seed=7)
    old = os.umask(0)
    try:
        run = create_run_directory(config)
    finally:
        os.umask(old)
    assert run.path.name.startswith("sac__ALE-Pong-v5__s7__2")
    assert mode(run.path) == mode(run.logs) == mode(run.checkpoints) == 0o700
    assert mode(run.config) == 0o600
    assert read_config(run.config) == config
    with pytest.raises(CheckpointError, match="in use"):
        open_run_directory(run.path)
    run.close()
    open_run_directory(run.path).close()


def test_two_runs_in_one_second_get_two_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = run_config(env="Pendulum-v1", runs_dir=str(tmp_path))
    monkeypatch.setattr("rlz.records.run_directory.default_name", lambda config: default_name(config, 0.0))
    first, second = create_run_directory(config), create_run_directory(config)
    assert second.path.name == f"{first.path.name}-2"
    first.close()
    second.close()


def test_a_run_folder_that_exists_or_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    config = run_config(env="Pendulum-v1", runs_dir=str(tmp_path), name="mine")
    create_run_directory(config).close()
    with pytest.raises(ConfigError, match=r"mine exists already.*--name"):
        create_run_directory(config)
    again = read_config(tmp_path / "mine" / "config.toml")  # of `--config`
    assert again == config.model_copy(update={"name": None})
    create_run_directory(again).close()
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"--runs-dir .*file is a file"):
        create_run_directory(config.model_copy(update={"runs_dir": str(tmp_path / "file")}))
    with pytest.raises(ConfigError, match=r"cannot be made: Not a directory\. .*--runs-dir"):
        create_run_directory(config.model_copy(update={"runs_dir": str(tmp_path / "file" / "runs")}))
    with pytest.raises(CheckpointError, match="no run"):
        open_run_directory(tmp_path / "nothing")
