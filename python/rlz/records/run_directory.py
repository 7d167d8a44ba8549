"""The run folder: its name, what is in it, and who may read it."""

import errno
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from rlz.errors import CheckpointError, ConfigError
from rlz.records.sources import keep_sources
from rlz.references import label
from rlz.system.files import replace_file

if TYPE_CHECKING:
    from rlz.config import RunConfig


FOLDERS = ("logs", "checkpoints")
"""Folders that every run folder has."""

STARTS = "starts"
"""File with the number of times that the run was started: each start has its own random streams."""


@dataclass(frozen=True)
class RunDirectory:
    """Paths of one run.

    Attributes
    ----------
    path : the run folder (absolute).
    lock : open while the run lives; tells `rlz runs` that it is running, and a second controller to keep out.
    starts : how often the run was started before (`count_start`): 0 for a fresh one.
    """

    path: Path
    lock: IO[bytes]
    starts: int = 0

    @property
    def config(self) -> Path:
        """Everything resolved."""
        return self.path / "config.toml"

    @property
    def plan(self) -> Path:
        """How the run is placed, and why."""
        return self.path / "plan.toml"

    @property
    def logs(self) -> Path:
        """One log per worker."""
        return self.path / "logs"

    @property
    def checkpoints(self) -> Path:
        """Checkpoints, `latest` and `best`."""
        return self.path / "checkpoints"

    @property
    def replay(self) -> Path:
        """Saved rows of the replay buffer."""
        return self.path / "replay"

    def count_start(self) -> None:
        """Count that a run goes on: whatever becomes of it, its random streams are used up."""
        replace_file(self.path / STARTS, f"{self.starts + 1}\n".encode())

    def discard(self) -> None:
        """Remove the folder of a run that no worker was started for, so that its name is free again."""
        if not any(self.logs.glob("*.log")):
            shutil.rmtree(self.path, ignore_errors=True)

    def close(self) -> None:
        """Let go of the run folder."""
        self.lock.close()


def write_config(path: Path, config: "RunConfig") -> None:
    """Write `config.toml`, without the run's name: another run that takes the file gets a folder of its own."""
    replace_file(path / "config.toml", config.model_copy(update={"name": None}).to_toml().encode())


def default_name(config: "RunConfig", now: float | None = None) -> str:
    """Return `<algo>__<env>__s<seed>__<time>`, the time local and to the second."""
    env = re.sub(r"[^A-Za-z0-9._-]+", "-", label(config.env)).strip("-")
    when = time.strftime("%Y%m%d-%H%M%S", time.localtime(now))
    algo = re.sub(r"[^A-Za-z0-9._-]+", "-", label(config.algo)).strip("-")
    return f"{algo}__{env}__s{config.seed}__{when}"


def runs_folder(config: "RunConfig") -> Path:
    """Folder that holds the run folder (absolute)."""
    return Path(config.runs_dir).expanduser().absolute()


def create_run_directory(config: "RunConfig", parent: Path | None = None) -> RunDirectory:
    """Make the folder of a new run and write `config.toml`; only this user may read it (mode 0700).

    `parent`: the folder for it, absolute; default: `runs_folder`.

    Raises
    ------
    ConfigError
        The folder exists (with `--name`) or cannot be made; says which and why.
    """
    parent = parent or runs_folder(config)
    name = config.name or default_name(config)
    path: Path | None = None
    try:
        if not parent.is_dir():
            parent.mkdir(parents=True)
        path = _make(parent, name, unique=config.name is None)
        for folder in FOLDERS:
            (path / folder).mkdir(mode=0o700)
        write_config(path, config)
        (path / "config.toml").chmod(0o600)
        keep_sources(path, config)
        return RunDirectory(path, _lock(path))
    except FileExistsError as error:
        if not parent.is_dir():
            raise ConfigError(f"--runs-dir {parent} is a file, not a folder") from error
        raise ConfigError(f"run folder {parent / name} exists already: choose another --name, or remove it") from error
    except OSError as error:
        if path is not None:
            shutil.rmtree(path, ignore_errors=True)  # half made, it would keep its name from the next try
        raise ConfigError(
            f"run folder {parent / name} cannot be made: {error.strerror or error}. Choose another --runs-dir"
        ) from error


_FIXES = {
    errno.EACCES: "rlz reads and writes everything in a run folder: chmod -R u+rwX {}",
    errno.EPERM: "rlz reads and writes everything in a run folder: chmod -R u+rwX {}",
    errno.EROFS: "Copy the run folder to a disk that can be written",
    errno.ENOSPC: "Make room on the disk of {}",
    errno.EDQUOT: "Make room on the disk of {}",
}


@contextmanager
def named_problems(path: Path) -> Iterator[None]:
    """Turn whatever the system refuses within a run folder into an error for people, with the way out.

    Raises
    ------
    CheckpointError
        Instead of an OSError of a file or folder in `path`; all else passes.
    """
    try:
        yield
    except OSError as error:
        names = [Path(os.fsdecode(name)) for name in (error.filename, error.filename2) if isinstance(name, str | bytes)]
        if not any(name.is_relative_to(path) for name in names):
            raise
        fix = _FIXES.get(error.errno or 0, "").format(path)
        raise CheckpointError(f"{names[0]}: {error.strerror}{'. ' * bool(fix)}{fix}") from error


def _make(parent: Path, name: str, *, unique: bool) -> Path:
    path, number = parent / name, 1
    while True:
        try:
            path.mkdir(mode=0o700)
            return path
        except FileExistsError:
            if not unique or not path.is_dir():
                raise
            number += 1  # two runs in the same second
            path = parent / f"{name}-{number}"


def open_run_directory(path: Path) -> RunDirectory:
    """Open the folder of an existing run, to go on with it.

    Raises
    ------
    CheckpointError
        There is no run, another process is running it, or this user may not read and write it.
    """
    path = path.expanduser().absolute()
    with named_problems(path):
        if not (path / "config.toml").is_file():
            raise CheckpointError(f"{path} is no run: it has no config.toml. `rlz runs` lists the runs")
        lock = _lock(path)
        try:
            for folder in FOLDERS:
                (path / folder).mkdir(mode=0o700, exist_ok=True)  # somebody may have cleared the logs away
            _check_access(path)
            starts = int((path / STARTS).read_text()) if (path / STARTS).exists() else 1
        except ValueError as error:
            lock.close()
            raise CheckpointError(f"{path / STARTS} cannot be used: {error}") from error
        except BaseException:
            lock.close()
            raise
    return RunDirectory(path, lock, starts)


def _check_access(path: Path) -> None:
    """Raise PermissionError for a file or folder that a resumed run could not go on with."""
    for item in (path, *path.rglob("*")):
        needed = os.R_OK | os.W_OK | (os.X_OK if item.is_dir() else 0)
        if item.exists() and not os.access(item, needed, effective_ids=True):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(item))


def _lock(path: Path) -> IO[bytes]:
    from rlz.records.runs import hold_lock

    try:
        return hold_lock(path)
    except BlockingIOError as error:
        raise CheckpointError(f"{path} is in use: another rlz process is running it") from error
