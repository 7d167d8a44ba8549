"""A user's own files are kept with the run, and a resume says which have changed."""

from pathlib import Path

from rlz.config import run_config
from rlz.records.run_directory import create_run_directory
from rlz.records.sources import FOLDER, changed_sources


def test_own_files_are_kept_and_their_changes_told(tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text("before")
    other = tmp_path / "more" / "mine.py"
    other.parent.mkdir()
    other.write_text("graph")
    config = run_config(env=f"{mine}:Env", graph=f"{other}:graph", runs_dir=str(tmp_path / "runs"))
    folder = create_run_directory(config)
    folder.close()
    kept = {path.name: path.read_text() for path in (folder.path / FOLDER).iterdir()}
    assert kept == {"mine.py": "before", "1_mine.py": "graph"}
    assert changed_sources(folder.path, config) == []
    mine.write_text("after")
    (line,) = changed_sources(folder.path, config)
    assert line.startswith(f"{mine} HAS CHANGED since the run began")
    assert (folder.path / FOLDER / "mine.py").read_text() == "before"


def test_a_run_of_rlz_alone_has_no_such_folder(tmp_path: Path) -> None:
    folder = create_run_directory(run_config(env="Pendulum-v1", runs_dir=str(tmp_path)))
    folder.close()
    assert not (folder.path / FOLDER).exists()
