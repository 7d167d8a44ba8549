"""Files and folders that are whole or absent, whatever is killed and whenever."""

import os
import shutil
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TEMPORARY = ".tmp-"
"""Prefix of everything that is not finished yet; safe to delete when no run is using the folder."""


_frozen = False


def freeze() -> None:
    """Let no thread begin another file here: this process is about to exit, and what is unfinished is being removed.

    A thread that wants to waits for ever.
    """
    global _frozen
    _frozen = True


def pass_freeze() -> None:
    """Return, unless `freeze` was called."""
    if _frozen:
        threading.Event().wait()


def write_file(path: Path, data: bytes) -> None:
    """Write a new file and bring it to the disk."""
    pass_freeze()
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def replace_file(path: Path, data: bytes) -> None:
    """Write a file under a temporary name, then rename it into place."""
    temporary = path.with_name(f"{TEMPORARY}{uuid.uuid4().hex}")
    try:
        write_file(temporary, data)
        temporary.replace(path)
        sync_folder(path.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def sync_folder(path: Path) -> None:
    """Bring the names in a folder to the disk."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Fill a folder under a temporary name; it appears as `path` when the block ends, and never when it raises."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f"{TEMPORARY}{path.name}-{uuid.uuid4().hex[:8]}")
    pass_freeze()
    temporary.mkdir(mode=0o700)
    try:
        yield temporary
        sync_folder(temporary)
        temporary.rename(path)
        sync_folder(path.parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def point_to(link: Path, target: str) -> None:
    """Make a symbolic link point to another name in its folder, atomically."""
    temporary = link.with_name(f"{TEMPORARY}{uuid.uuid4().hex}")
    pass_freeze()
    temporary.symlink_to(target)
    try:
        temporary.replace(link)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(link.parent)


def remove_temporary(folder: Path) -> None:
    """Delete what was left unfinished in a folder by processes that are gone, or are going while this works."""
    for parent, folders, files in os.walk(folder):
        for name in [name for name in (*folders, *files) if name.startswith(TEMPORARY)]:
            path = Path(parent, name)
            if name in folders and not path.is_symlink():
                folders.remove(name)
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
