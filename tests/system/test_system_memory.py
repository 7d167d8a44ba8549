import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rlz._native import check_shared_memory
from rlz.config import run_config
from rlz.config.model import ask
from rlz.envs.spaces import EnvSpec
from rlz.errors import SharedMemoryError
from rlz.planning.needs import check_memory, row_bytes
from rlz.system.memory import MIB, limits

ANT = EnvSpec("Ant-v4", (27,), "float32", (8,), "float32", (-1.0,) * 8, (1.0,) * 8, 1000)


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    write(tmp_path, "proc/meminfo", f"MemTotal: 99 kB\nMemAvailable: {8 * 1024 * 1024} kB\n")
    return tmp_path


def v2(root: Path, path: str, limit: str, used: int, cache: int = 0) -> None:
    folder = f"sys/fs/cgroup{path}"
    write(root, f"{folder}/memory.max", limit + "\n")
    write(root, f"{folder}/memory.current", f"{used}\n")
    write(root, f"{folder}/memory.stat", f"anon 1\ninactive_file {cache}\n")


MOUNT_V2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw\n"
MOUNT_V1 = "36 32 0:32 {root} /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory\n"


def test_an_ant_row_is_256_bytes_and_its_stamp() -> None:
    assert row_bytes(ANT) == 256 + 16


def test_every_ancestor_of_a_v2_cgroup_counts_and_cache_is_free(machine: Path) -> None:
    write(machine, "proc/self/cgroup", "0::/a/b\n")
    write(machine, "proc/self/mountinfo", MOUNT_V2)
    v2(machine, "/a/b", "max", 5)
    v2(machine, "/a", str(3000 * MIB), 2000 * MIB, cache=500 * MIB)
    assert [limit.available // MIB for limit in limits(machine)] == [1500, 8192]
    assert "/sys/fs/cgroup/a" in limits(machine)[0].name


def test_a_v1_cgroup_seen_from_inside_a_container(machine: Path) -> None:
    write(machine, "proc/self/cgroup", "9:name=systemd:/x\n4:memory:/docker/abc\n")
    write(machine, "proc/self/mountinfo", MOUNT_V1.format(root="/docker/abc"))
    write(machine, "sys/fs/cgroup/memory/memory.limit_in_bytes", str(700 * MIB))
    write(machine, "sys/fs/cgroup/memory/memory.usage_in_bytes", str(100 * MIB))
    assert [limit.available // MIB for limit in limits(machine)] == [600, 8192]


def test_a_v1_cgroup_without_a_limit_is_none(machine: Path) -> None:
    write(machine, "proc/self/cgroup", "4:memory:/x\n")
    write(machine, "proc/self/mountinfo", MOUNT_V1.format(root="/"))
    write(machine, "sys/fs/cgroup/memory/x/memory.limit_in_bytes", "9223372036854771712")
    write(machine, "sys/fs/cgroup/memory/x/memory.usage_in_bytes", "1")
    assert [limit.available // MIB for limit in limits(machine)] == [8192]


def test_the_address_space_limit_counts() -> None:
    code = (
        "import resource, rlz.system.memory as memory\n"
        "assert not any('ulimit' in limit.name for limit in memory.limits())\n"
        "resource.setrlimit(resource.RLIMIT_AS, (2**40, 2**40))\n"
        "print([limit.available for limit in memory.limits() if 'ulimit -v' in limit.name])"
    )
    found = json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
    assert len(found) == 1
    assert 0.9 * 2**40 < found[0] < 2**40


def test_a_refusal_before_a_run_and_one_of_the_transport_see_the_same() -> None:
    """The tightest limit of this process is the one that a segment larger than it is refused with."""
    tightest = limits()[0]
    with pytest.raises(SharedMemoryError, match=re.escape(f"are available: {tightest.name}")):
        check_shared_memory(2 * tightest.available + 2**30)


def test_a_buffer_that_does_not_fit_is_refused_with_figures_and_a_fix(machine: Path) -> None:
    config = run_config(env="Ant-v4", buffer_size=100_000_000)
    answers = ask(config, ANT)
    with pytest.raises(SharedMemoryError) as caught:
        check_memory(config, ANT, answers, machine)
    text = str(caught.value)
    assert "25.3 GiB for the replay buffer (100,000,000 rows of 272 bytes)" in text
    assert "8.0 GiB left: free memory of this machine" in text
    fits = int(text.split("--buffer-size ")[1].split(" ")[0])
    check_memory(config.model_copy(update={"buffer_size": fits}), ANT, answers, machine)
    with pytest.raises(SharedMemoryError):
        check_memory(config.model_copy(update={"buffer_size": fits + 100_000}), ANT, answers, machine)


def test_a_container_too_small_for_any_buffer_says_so(machine: Path) -> None:
    write(machine, "proc/self/cgroup", "0::/\n")
    write(machine, "proc/self/mountinfo", MOUNT_V2)
    v2(machine, "", str(200 * MIB), 100 * MIB)
    config = run_config(env="Ant-v4")
    with pytest.raises(SharedMemoryError, match=r"memory limit of the container .* raise the limit"):
        check_memory(config, ANT, ask(config, ANT), machine)


def test_this_machine_has_limits() -> None:
    found = limits()
    assert found
    assert all(limit.available > 0 for limit in found)
