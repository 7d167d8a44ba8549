"""Cores that this process can keep busy, and the kernel's files that tell."""

import os
from pathlib import Path

import pytest

from rlz.learning.threads import candidates
from rlz.system import cgroup
from rlz.system import cores as module
from rlz.system.cores import cores, ladder, usable_cores


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root / "proc"


def test_usable_cores() -> None:
    assert [usable_cores(4, None), usable_cores(4, 2.9), usable_cores(2, 8.0), usable_cores(4, 0.3)] == [4, 2, 2, 1]


def test_a_ladder_ends_with_the_most() -> None:
    assert [ladder(most) for most in (1, 2, 6, 8)] == [[1], [1, 2], [1, 2, 4, 6], [1, 2, 4, 8]]


def test_a_learner_does_not_try_threads_that_its_quota_would_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    quotas = {None: [1, 2, 4, 8, 16, 32, 64], 1.5: [1], 4.0: [1, 2, 4]}
    for quota, numbers in quotas.items():
        monkeypatch.setattr(module, "cpu_quota", lambda quota=quota: quota)
        assert candidates("auto", cores()) == numbers


def test_a_quota_of_version_1_where_the_container_sees_itself_as_the_root(tmp_path: Path) -> None:
    proc = write(
        tmp_path,
        {
            "proc/self/cgroup": "3:cpu,cpuacct:/docker/abc\n",
            "proc/self/mountinfo": "36 32 0:32 /docker/abc /groups/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n",
            "groups/cpu,cpuacct/cpu.cfs_quota_us": "150000\n",
            "groups/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
        },
    )
    assert cgroup.cpu_quota(proc) == 1.5


def test_without_mount_points_cgroups_are_where_they_usually_are(tmp_path: Path) -> None:
    proc = write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/pod/box\n",
            "cg/pod/cpu.max": "300000 100000\n",
            "cg/pod/box/cpu.max": "max 100000\n",
        },
    )
    assert [folder.relative_to(tmp_path).as_posix() for folder in cgroup.folders("cpu", proc, tmp_path / "cg")] == [
        *("cg/pod/box", "cg/pod", "cg")
    ]
    assert cgroup.cpu_quota(proc, tmp_path / "cg") == 3.0
