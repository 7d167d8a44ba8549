"""Cgroups of this process, version 1 and 2: which folders hold its limits, and what these say."""

from pathlib import Path

from rlz.system.kernel_files import lines, words

PROC = Path("/proc")
USUAL = Path("/sys/fs/cgroup")

_UNLIMITED = 1 << 60
"""Version 1 writes "no limit" as a number near 2^63."""


def folders(controller: str, proc: Path = PROC, usual: Path = USUAL) -> list[Path]:
    """Folders of this process's cgroup and all its ancestors, each of which can hold a limit.

    Parameters
    ----------
    controller : such as memory or cpu.
    proc : where the kernel tells cgroups and mount points; these are looked for beside it (tests).
    usual : where they are mounted if the kernel tells no mount point: version 1 in a folder for each controller.
    """
    mounts = _mounts(controller, proc)
    found = []
    for line in lines(proc / "self" / "cgroup"):
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if number == "0" and not controllers:
            places = mounts[2] or [(usual, "/")]
        elif controller in controllers.split(","):
            places = mounts[1] or [(usual / controller, "/")]
        else:
            continue
        for mount, mount_root in places:
            own = mount / _below(path.strip(), mount_root).lstrip("/")
            found += [own, *(parent for parent in own.parents if parent.is_relative_to(mount))]
    return [folder for folder in found if folder.is_dir()]


def memory_limit(folder: Path) -> int | None:
    """Bytes that a cgroup may use; None: no limit."""
    found = _first_number(folder, "memory.max", "memory.limit_in_bytes")
    return None if found is None or found >= _UNLIMITED else found


def cpu_quota(proc: Path = PROC, usual: Path = USUAL) -> float | None:
    """Cores that this process may use by the smallest quota of its cgroups; None: no quota."""
    quotas = []
    for folder in folders("cpu", proc, usual):
        quota, period = [*words(folder / "cpu.max"), "", ""][:2]
        if not quota:
            quota = " ".join(words(folder / "cpu.cfs_quota_us"))
            period = " ".join(words(folder / "cpu.cfs_period_us"))
        if quota.isdigit() and period.isdigit() and int(period) > 0:
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def throttled(proc: Path = PROC, usual: Path = USUAL) -> tuple[int, float]:
    """How often a quota has paused this process's cgroup, or one above it, so far, and for how many seconds."""
    times, seconds = 0, 0.0
    for folder in folders("cpu", proc, usual):
        pairs = (line.split() for line in lines(folder / "cpu.stat"))
        values = {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}
        times = max(times, values.get("nr_throttled", 0))
        # Version 2 counts microseconds, version 1 nanoseconds.
        seconds = max(seconds, values.get("throttled_usec", 0) / 1e6, values.get("throttled_time", 0) / 1e9)
    return times, seconds


def _mounts(controller: str, proc: Path) -> dict[int, list[tuple[Path, str]]]:
    """Mount points of a controller, by cgroup version, with the cgroup that each shows as its root."""
    mounts: dict[int, list[tuple[Path, str]]] = {1: [], 2: []}
    for line in lines(proc / "self" / "mountinfo"):
        left, _, right = line.partition(" - ")
        fields, kind = left.split(), right.split()
        if len(fields) < 5 or len(kind) < 3:
            continue
        place = proc.parent / fields[4].lstrip("/")
        if kind[0] == "cgroup2":
            mounts[2].append((place, fields[3]))
        elif kind[0] == "cgroup" and controller in kind[2].split(","):
            mounts[1].append((place, fields[3]))
    return mounts


def _below(path: str, mount_root: str) -> str:
    """Path of a cgroup below a mount. A container often sees its own cgroup as the root of the mount."""
    if mount_root != "/" and (path == mount_root or path.startswith(mount_root + "/")):
        return path[len(mount_root) :]
    return path


def _first_number(folder: Path, *names: str) -> int | None:
    """Number in the first of some files that holds one."""
    texts = (" ".join(words(folder / name)) for name in names)
    return next((int(text) for text in texts if text.isdigit()), None)
