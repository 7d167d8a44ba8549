"""The user's cache folder: what can be made again, and is expensive to make."""

import os
from pathlib import Path


def user_cache(kind: str) -> Path:
    """`$XDG_CACHE_HOME/rlz/KIND`, by default under `~/.cache`; may not exist yet. Never raises."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111 (never raises)
    return Path(base) / "rlz" / kind


def drop_oldest(folder: Path, pattern: str, keep: int) -> None:
    """Remove the files of a folder that match, but for the newest."""

    def age(path: Path) -> float:
        try:
            return path.stat().st_mtime
        except OSError:  # another process was faster
            return 0.0

    for path in sorted(folder.glob(pattern), key=age, reverse=True)[keep:]:
        path.unlink(missing_ok=True)
