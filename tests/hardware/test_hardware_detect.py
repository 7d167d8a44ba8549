import json
import os
import shutil

from rlz.hardware import detect as module
from rlz.hardware.detect import Roots, detect, parse_gpus, usable_cores


def machine(tmp_path, *, cgroup, files, cpuinfo="model name\t: Testor 9000\nflags\t\t: fpu avx2 fma\n"):
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "self" / "cgroup").write_text(cgroup)
    (proc / "cpuinfo").write_text(cpuinfo)
    (proc / "meminfo").write_text("MemTotal:       16000000 kB\nMemAvailable:   8000000 kB\nHugePages_Total: 0\n")
    groups.mkdir()
    for name, text in files.items():
        path = groups / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Roots(proc=proc, cgroup=groups, shm=tmp_path)


def test_this_machine():
    found = detect()
    assert 1 <= found.cores <= found.cores_allowed == len(os.sched_getaffinity(0))
    assert found.memory > found.memory_available > 0
    assert json.loads(json.dumps(found.to_json())) == found.to_json()


def test_limits_of_cgroup_version_2_are_the_smallest_on_the_way_up(tmp_path):
    files = {
        "cpu.max": "max 100000\n",
        "pod/cpu.max": "150000 100000\n",
        "pod/box/cpu.max": "400000 100000\n",
        "pod/memory.max": "2000000000\n",
        "pod/box/memory.max": "max\n",
    }
    found = detect(machine(tmp_path, cgroup="0::/pod/box\n", files=files))
    assert found.cpu_quota == 1.5
    assert found.cores == 1
    assert found.memory_limit == 2_000_000_000
    assert (found.memory, found.memory_available) == (16_384_000_000, 8_192_000_000)
    assert (found.cpu, found.simd) == ("Testor 9000", ("avx2", "fma"))


def test_limits_of_cgroup_version_1(tmp_path):
    files = {
        "cpu/box/cpu.cfs_quota_us": "50000\n",
        "cpu/box/cpu.cfs_period_us": "100000\n",
        "memory/box/memory.limit_in_bytes": "9223372036854771712\n",
    }
    found = detect(machine(tmp_path, cgroup="4:memory:/box\n3:cpu,cpuacct:/box\n", files=files))
    assert (found.cpu_quota, found.cores, found.memory_limit) == (0.5, 1, None)


def test_a_machine_that_tells_nothing(tmp_path):
    found = detect(Roots(proc=tmp_path / "none", cgroup=tmp_path / "none", shm=tmp_path / "none"))
    assert found.cores >= 1
    assert (found.cpu_quota, found.memory_limit, found.shm, found.memory) == (None, None, None, 0)


def test_cores_of_an_arm_machine(tmp_path):
    cpuinfo = "processor\t: 0\nFeatures\t: fp asimd bf16\n"
    found = detect(machine(tmp_path, cgroup="", files={}, cpuinfo=cpuinfo))
    assert found.simd == ("asimd", "bf16")


def test_usable_cores():
    assert [usable_cores(4, None), usable_cores(4, 2.9), usable_cores(2, 8.0), usable_cores(4, 0.3)] == [4, 2, 2, 1]


def test_gpus_from_nvidia_smi(tmp_path, monkeypatch):
    text = "NVIDIA H100 80GB HBM3, 81559, 9.0, 570.1\nbroken line\nName, [N/A], 9.0, 1\n"
    (gpu,) = parse_gpus(text)
    assert (gpu.name, gpu.memory, gpu.compute_capability) == ("NVIDIA H100 80GB HBM3", 81559 * 2**20, "9.0")
    fake = tmp_path / "nvidia-smi"
    fake.write_text("#!/bin/sh\necho 'Card, 1024, 8.6, 1.2'\n")
    fake.chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda name: str(fake))
    assert [gpu.name for gpu in module.detect().gpus] == ["Card"]
