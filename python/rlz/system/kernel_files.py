"""Text files of the kernel (/proc, /sys, cgroups). One that is not there, or may not be read, says nothing."""

from pathlib import Path


def lines(path: Path) -> list[str]:
    """Lines of a file."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def words(path: Path) -> list[str]:
    """Words of a file."""
    return [word for line in lines(path) for word in line.split()]
