"""What the machine is: read from the kernel, without torch and without a measurement.

Usable counts, not installed: an affinity mask and a container's quota both cut the cores, a cgroup cuts the memory.
"""

import hashlib
import json
import os
import platform
import sys
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rlz.system import cgroup
from rlz.system.cores import usable_cores
from rlz.system.gpus import Gpu, GpuLink, gpus
from rlz.system.kernel_files import lines, words

_SIMD = ("sse4_2", "avx", "avx2", "fma", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "asimdhp", "sve", "bf16")
"""CPU flags that decide how fast networks run, x86-64 and aarch64."""

_PACKAGES = ("rlz", "torch", "gymnasium", "mujoco", "numpy")

_FINGERPRINT = (
    *("cpu", "architecture", "simd", "cores_online", "cores_allowed", "cores", "cores_physical", "cpu_quota"),
    *("memory", "memory_limit", "numa", "gpus", "gpu_links", "governor", "turbo", "python", "versions"),
)
"""Facts on which rates depend and that last longer than a run."""


@dataclass(frozen=True)
class Roots:
    """Where the kernel's files are; tests point them at a copy of another machine's."""

    proc: Path = Path("/proc")
    cgroup: Path = Path("/sys/fs/cgroup")
    shm: Path = Path("/dev/shm")
    sys: Path = Path("/sys")


BUSY = 0.5
"""Cores that others use, from which on what is measured is too low."""


@dataclass(frozen=True)
class NumaNode:
    """A part of the machine with its own memory (bytes); reaching another node's takes longer."""

    cores: int
    memory: int


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
    cores_physical : of those in the mask, counted without their second hardware threads.
    numa : nodes with memory of their own.
    memory, memory_available : of the machine.
    memory_limit : of the cgroup.
    shm : size of /dev/shm (rlz uses memfds, which it does not limit; other programs do).
    gpus : that this process may use (CUDA_VISIBLE_DEVICES), cuda:0 first; gpu_links : between each two of them.
    container : what kind of container this seems to be, "" for none.
    virtual : a virtual machine.
    governor : of the CPU's clock, "" where it is not known; turbo: the clock may exceed its base, None: not known.
    on_battery : no mains.
    huge_pages : for shared memory, the kernel's setting in brackets.
    throttled_s : seconds that the quota has kept this cgroup waiting so far.
    load : cores that others used right before a measurement; 0.0 where nobody has looked.
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
    cores_physical: int = 0
    numa: tuple[NumaNode, ...] = ()
    gpu_links: tuple[GpuLink, ...] = ()
    virtual: bool = False
    governor: str = ""
    turbo: bool | None = None
    on_battery: bool = False
    huge_pages: str = ""
    throttled_s: float = 0.0
    load: float = field(default=0.0, compare=False)

    def to_json(self) -> dict[str, Any]:
        """As JSON values; keys are in docs/profile.md."""
        values: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return values

    def fingerprint(self) -> str:
        """Digest of everything that rates depend on and that does not change by itself."""
        values = self.to_json()
        facts = json.dumps([values[name] for name in _FINGERPRINT], sort_keys=True)
        return hashlib.sha256(facts.encode()).hexdigest()[:16]

    def cautions(self) -> list[str]:
        """Facts about power, container and neighbours that make rates smaller or less steady, in words."""
        found = []
        if self.cpu_quota is not None and self.cpu_quota < self.cores_allowed:
            found.append(
                f"a quota allows {self.cpu_quota:.3g} of {self.cores_allowed} cores: beyond it everything pauses"
            )
        if self.throttled_s >= 1.0:
            found.append(f"the quota has paused this container for {self.throttled_s:.0f} s so far")
        if 0 < self.cores_physical < self.cores_allowed:
            found.append(
                f"{self.cores_allowed} cores are {self.cores_physical} with two hardware threads each: two busy "
                "threads of one core do less than twice the work of one"
            )
        if self.governor == "powersave" and self.turbo is False:
            found.append("the CPU saves power (governor powersave, no turbo)")
        if self.on_battery:
            found.append("the machine runs on battery, which usually lowers its clock")
        if len(self.numa) > 1:
            found.append(f"{len(self.numa)} NUMA nodes: memory of another node is slower")
        if self.virtual:
            found.append("a virtual machine: its host may give the cores to others")
        if self.load > BUSY:
            found.append(f"other processes used {self.load:.1f} cores before the measurement: rates are too low")
        return found


def detect(roots: Roots | None = None) -> Hardware:
    """Look at the machine; takes some milliseconds, with a GPU the time of one nvidia-smi call."""
    roots = roots or Roots()
    cpu, flags = _cpu(roots.proc)
    allowed = len(os.sched_getaffinity(0))
    quota = cgroup.cpu_quota(roots.proc, roots.cgroup)
    memory = _meminfo(roots.proc)
    cards, links = gpus()
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
        gpus=cards,
        kernel=platform.release(),
        container=_container(roots.proc),
        python=platform.python_version(),
        versions={package: found for package in _PACKAGES if (found := _version(package))},
        cores_physical=_physical_cores(roots.sys, os.sched_getaffinity(0)),
        numa=_numa(roots.sys),
        gpu_links=links,
        virtual="hypervisor" in flags,
        governor=" ".join(words(roots.sys / "devices/system/cpu/cpu0/cpufreq/scaling_governor")),
        turbo=_turbo(roots.sys),
        on_battery=_on_battery(roots.sys),
        huge_pages=" ".join(lines(roots.sys / "kernel/mm/transparent_hugepage/shmem_enabled")),
        throttled_s=cgroup.throttled(roots.proc, roots.cgroup)[1],
    )


def _cpu(proc: Path) -> tuple[str, set[str]]:
    model, flags = "", set[str]()
    for line in lines(proc / "cpuinfo"):
        key, _, value = (part.strip() for part in line.partition(":"))
        if key == "model name" and not model:
            model = value
        elif key in ("flags", "Features") and not flags:
            flags = set(value.split())
    return model or platform.processor() or "unknown", flags


def _meminfo(proc: Path) -> dict[str, int]:
    found = {}
    for line in lines(proc / "meminfo"):
        key, _, value = line.partition(":")
        if value.strip().endswith("kB"):
            found[key] = int(value.split()[0]) * 1024
    return found


def cpu_list(text: str) -> set[int]:
    """Cores of the kernel's list format, such as 0-3,8."""
    cores = set[int]()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first.isdigit() and (not last or last.isdigit()):
            cores |= set(range(int(first), int(last or first) + 1))
    return cores


def _physical_cores(sys: Path, allowed: set[int]) -> int:
    siblings = {
        frozenset(cpu_list(" ".join(lines(sys / f"devices/system/cpu/cpu{core}/topology/thread_siblings_list"))))
        for core in allowed
    }
    return 0 if frozenset() in siblings else len(siblings)


def _numa(sys: Path) -> tuple[NumaNode, ...]:
    nodes = []
    for folder in sorted((sys / "devices/system/node").glob("node[0-9]*")):
        memory = 0
        for line in lines(folder / "meminfo"):
            cells = line.split()
            if "MemTotal:" in cells and cells[-1] == "kB":
                memory = int(cells[-2]) * 1024
        nodes.append(NumaNode(len(cpu_list(" ".join(lines(folder / "cpulist")))), memory))
    return tuple(nodes)


def _turbo(sys: Path) -> bool | None:
    cpu = sys / "devices/system/cpu"
    if found := words(cpu / "intel_pstate/no_turbo"):
        return found[0] == "0"
    if found := words(cpu / "cpufreq/boost"):
        return found[0] == "1"
    return None


def _on_battery(sys: Path) -> bool:
    supplies = list((sys / "class/power_supply").glob("*"))
    mains = [words(supply / "online") for supply in supplies if words(supply / "type") == ["Mains"]]
    draining = any(words(supply / "status") == ["Discharging"] for supply in supplies)
    return draining and ["1"] not in mains


def _memory_limit(roots: Roots, memory: int) -> int | None:
    limits = (cgroup.memory_limit(folder) for folder in cgroup.folders("memory", roots.proc, roots.cgroup))
    return min((limit for limit in limits if limit is not None and (not memory or limit < memory)), default=None)


def _container(proc: Path) -> str:
    if Path("/.dockerenv").exists():
        return "docker"
    if Path("/run/.containerenv").exists():
        return "podman"
    text = "\n".join(lines(proc / "1" / "cgroup"))
    return next((name for name in ("kubepods", "docker", "lxc") if name in text), "")


def _file_system_size(path: Path) -> int | None:
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return found.f_frsize * found.f_blocks


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


if __name__ == "__main__":
    json.dump(detect().to_json(), sys.stdout, indent=2)
