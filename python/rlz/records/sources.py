"""Copies of a user's own files (algorithm, environment, network, graph) in the run folder: what a run began with.

They are for reading alone; rlz imports the files where they are named.
"""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from rlz.references import file_of

if TYPE_CHECKING:
    from rlz.config import RunConfig

FOLDER = "sources"


def own_files(config: "RunConfig") -> dict[str, Path]:
    """Files that options name as file.py:Name, by their names in the run folder."""
    values = [value for value in config.model_dump().values() if isinstance(value, str)]
    found: dict[str, Path] = {}
    for path in dict.fromkeys(path for value in values if (path := file_of(value)) is not None):
        name = path.name if path.name not in found else f"{len(found)}_{path.name}"
        found[name] = path
    return found


def keep_sources(run_dir: Path, config: "RunConfig") -> None:
    """Copy them. Raises OSError."""
    files = own_files(config)
    if files:
        (run_dir / FOLDER).mkdir(mode=0o700)
    for name, path in files.items():
        shutil.copyfile(path, run_dir / FOLDER / name)


def changed_sources(run_dir: Path, config: "RunConfig") -> list[str]:
    """A line for each file that is no longer what the run began with."""
    found = []
    for name, path in own_files(config).items():
        kept = run_dir / FOLDER / name
        if kept.is_file() and kept.read_bytes() != path.read_bytes():
            found.append(f"{path} HAS CHANGED since the run began, and is used as it is now. It was {kept}")
    return found
