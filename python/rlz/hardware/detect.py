"""What the machine is: read from the kernel, without torch and without a measurement.

Usable counts, not installed: an affinity mask and a container's quota both cut the cores, a cgroup cuts the memory.
"""

import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

_SIMD = ("sse4_2", "avx", "avx2", "fma", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "asimdhp", "sve", "bf16")
"""CPU flags that decide how fast networks run, x86-64 and aarch64."""

_PACKAGES = ("rlz", "torch", "gymnasium", "mujoco", "numpy")


@dataclass(frozen=True)
class Roots:
    """Where the kernel's files are; tests point them at a copy of another machine's."""

    proc: Path = Path("/proc")
    cgroup: Path = Path("/sys/fs/cgroup")
    shm: Path = Path("/dev/shm")


@dataclass(frozen=True)
class Gpu:
    """One GPU as nvidia-smi tells it; memory in bytes."""

    name: str
    memory: int
    compute_capability: str
    driver: str


@dataclass(frozen=True)
class Hardware:
    """The machine as this process may use it. Memory in bytes; None: not limited or not known.

    Attributes
    ----------
    cpu : model name.
    simd : the vector extensions that matter, in rising order.
    cores_online : logical cores of the machine.
    cores_allowed : of these, in the affinity mask.
    cpu_quota : cores by the cgroup's CPU quota.
    cores : usable: the smaller of mask and quota, at least 1.
    memory, memory_available : of the machine.
    memory_limit : of the cgroup.
    shm : size of /dev/shm (rlz uses memfds, which it does not limit; other programs do).
    container : what kind of container this seems to be, "" for none.
    """

    cpu: str
    architecture: str
    simd: tuple[str, ...]
    cores_online: int
    cores_allowed: int
    cpu_quota: float | None
    cores: int
    memory: int
    memory_available: int
    memory_limit: int | None
    shm: int | None
    gpus: tuple[Gpu, ...]
    kernel: str
    container: str
    python: str
    versions: dict[str, str]

    def to_json(self) -> dict[str, Any]:
        """As JSON values; keys are in docs/profile.md."""
        values = {key: value for key, value in vars(self).items() if key != "gpus"}
        return values | {"simd": list(self.simd), "gpus": [vars(gpu) for gpu in self.gpus]}


def detect(roots: Roots | None = None) -> Hardware:
    """Look at the machine; takes some milliseconds, with a GPU the time of one nvidia-smi call."""
    roots = roots or Roots()
    cpu, flags = _cpu(roots.proc)
    allowed = len(os.sched_getaffinity(0))
    quota = _cpu_quota(roots)
    memory = _meminfo(roots.proc)
    return Hardware(
        cpu=cpu,
        architecture=platform.machine(),
        simd=tuple(name for name in _SIMD if name in flags),
        cores_online=os.cpu_count() or 1,
        cores_allowed=allowed,
        cpu_quota=quota,
        cores=usable_cores(allowed, quota),
        memory=memory.get("MemTotal", 0),
        memory_available=memory.get("MemAvailable", 0),
        memory_limit=_memory_limit(roots, memory.get("MemTotal", 0)),
        shm=_file_system_size(roots.shm),
        gpus=_gpus(),
        kernel=platform.release(),
        container=_container(roots.proc),
        python=platform.python_version(),
        versions={package: found for package in _PACKAGES if (found := _version(package))},
    )


def usable_cores(allowed: int, quota: float | None) -> int:
    """Cores that can be kept busy: a quota of 1.5 keeps one core busy without being throttled."""
    return max(1, allowed if quota is None else min(allowed, int(quota)))


def _cpu(proc: Path) -> tuple[str, set[str]]:
    model, flags = "", set[str]()
    for line in _lines(proc / "cpuinfo"):
        key, _, value = (part.strip() for part in line.partition(":"))
        if key == "model name" and not model:
            model = value
        elif key in ("flags", "Features") and not flags:
            flags = set(value.split())
    return model or platform.processor() or "unknown", flags


def _meminfo(proc: Path) -> dict[str, int]:
    found = {}
    for line in _lines(proc / "meminfo"):
        key, _, value = line.partition(":")
        if value.strip().endswith("kB"):
            found[key] = int(value.split()[0]) * 1024
    return found


def _cgroup_folders(roots: Roots, controller: str) -> list[Path]:
    """Folders of this process's cgroup and its parents that can hold a limit, version 2 and version 1."""
    folders = []
    for line in _lines(roots.proc / "self" / "cgroup"):
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if number == "0" and not controllers:
            base = roots.cgroup
        elif controller in controllers.split(","):
            base = roots.cgroup / controller
        else:
            continue
        own = base / path.strip().lstrip("/")
        folders += [own, *(parent for parent in own.parents if parent.is_relative_to(base))]
    return [folder for folder in folders if folder.is_dir()]


def _cpu_quota(roots: Roots) -> float | None:
    quotas = []
    for folder in _cgroup_folders(roots, "cpu"):
        quota, period = [*_words(folder / "cpu.max"), "", ""][:2]
        if not quota:
            quota = " ".join(_words(folder / "cpu.cfs_quota_us"))
            period = " ".join(_words(folder / "cpu.cfs_period_us"))
        if quota.isdigit() and period.isdigit() and int(period) > 0:
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def _memory_limit(roots: Roots, memory: int) -> int | None:
    limits = []
    for folder in _cgroup_folders(roots, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            words = _words(folder / name)
            # Version 1 writes "no limit" as a number near 2^63.
            if words and words[0].isdigit() and (not memory or int(words[0]) < memory):
                limits.append(int(words[0]))
    return min(limits, default=None)


def _container(proc: Path) -> str:
    if Path("/.dockerenv").exists():
        return "docker"
    if Path("/run/.containerenv").exists():
        return "podman"
    text = "\n".join(_lines(proc / "1" / "cgroup"))
    return next((name for name in ("kubepods", "docker", "lxc") if name in text), "")


def _gpus() -> tuple[Gpu, ...]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return ()
    query = "--query-gpu=name,memory.total,compute_cap,driver_version"
    try:
        done = subprocess.run(
            [program, query, "--format=csv,noheader,nounits"], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return parse_gpus(done.stdout) if done.returncode == 0 else ()


def parse_gpus(text: str) -> tuple[Gpu, ...]:
    """Read nvidia-smi's CSV (name, MiB, compute capability, driver); lines that do not fit are left out."""
    gpus = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == 4 and cells[1].isdigit():
            gpus.append(Gpu(cells[0], int(cells[1]) * 1024 * 1024, cells[2], cells[3]))
    return tuple(gpus)


def _file_system_size(path: Path) -> int | None:
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return found.f_frsize * found.f_blocks


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def _words(path: Path) -> list[str]:
    return [word for line in _lines(path) for word in line.split()]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


if __name__ == "__main__":
    import json

    json.dump(detect().to_json(), sys.stdout, indent=2)
