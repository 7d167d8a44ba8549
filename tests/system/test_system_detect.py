import json
import os
from dataclasses import replace

from rlz.system.detect import Roots, cpu_list, detect


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
    return Roots(proc=proc, cgroup=groups, shm=tmp_path, sys=tmp_path / "sys")


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
    none = tmp_path / "none"
    found = detect(Roots(proc=none, cgroup=none, shm=none, sys=none))
    assert found.cores >= 1
    assert (found.cpu_quota, found.memory_limit, found.shm, found.memory) == (None, None, None, 0)


def test_cores_of_an_arm_machine(tmp_path):
    cpuinfo = "processor\t: 0\nFeatures\t: fp asimd bf16\n"
    found = detect(machine(tmp_path, cgroup="", files={}, cpuinfo=cpuinfo))
    assert found.simd == ("asimd", "bf16")


def test_facts_that_change_results(tmp_path):
    files = {"cpu.stat": "nr_periods 10\nnr_throttled 4\nthrottled_usec 2500000\n", "cpu.max": "max 100000\n"}
    roots = machine(tmp_path, cgroup="0::/\n", files=files, cpuinfo="model name: T\nflags: avx2 hypervisor\n")
    cpu = roots.sys / "devices/system/cpu"
    for core in os.sched_getaffinity(0):  # every two are one
        place = cpu / f"cpu{core}" / "topology"
        place.mkdir(parents=True)
        (place / "thread_siblings_list").write_text(f"{core // 2 * 2}-{core // 2 * 2 + 1}\n")
    for path, text in {
        "devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave\n",
        "devices/system/cpu/intel_pstate/no_turbo": "1\n",
        "devices/system/node/node0/cpulist": "0-3,8\n",
        "devices/system/node/node0/meminfo": "Node 0 MemTotal:  1024 kB\nNode 0 MemFree: 1 kB\n",
        "devices/system/node/node1/cpulist": "4-7\n",
        "class/power_supply/BAT0/type": "Battery\n",
        "class/power_supply/BAT0/status": "Discharging\n",
        "class/power_supply/AC/type": "Mains\n",
        "class/power_supply/AC/online": "0\n",
        "kernel/mm/transparent_hugepage/shmem_enabled": "always [advise] never\n",
    }.items():
        (roots.sys / path).parent.mkdir(parents=True, exist_ok=True)
        (roots.sys / path).write_text(text)
    found = detect(roots)
    assert [(node.cores, node.memory) for node in found.numa] == [(5, 1024 * 1024), (4, 0)]
    assert (found.governor, found.turbo, found.on_battery, found.virtual) == ("powersave", False, True, True)
    assert (found.throttled_s, found.load, found.huge_pages) == (2.5, 0.0, "always [advise] never")
    assert found.cores_physical <= found.cores_allowed
    text = "\n".join(replace(found, load=3.25).cautions())
    for words in ("saves power", "on battery", "2 NUMA nodes", "virtual machine", "paused this container for 2", "3.2"):
        assert words in text


def test_a_quiet_machine_needs_no_caution(tmp_path):
    assert detect(machine(tmp_path, cgroup="", files={})).cautions() == []


def test_lists_of_cores():
    assert [cpu_list(text) for text in ("0-2,5", "", "7", "x")] == [{0, 1, 2, 5}, set(), {7}, set()]
