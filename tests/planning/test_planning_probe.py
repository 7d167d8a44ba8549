"""What `rlz profile` does with its time. Measurements are faked, but for one that is as small as can be."""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from rlz.bench.children import Child
from rlz.errors import RlzError
from rlz.planning import probe, report
from rlz.planning.joint import SAME_IN_BOTH
from rlz.planning.planner import plan
from rlz.planning.profile_model import Profile
from rlz.system.detect import Hardware
from rlz.system.memory import Limit
from support.machines import config, hardware, profile

DOCS = Path(__file__).parents[2] / "docs" / "profile.md"


def test_a_child_answers_and_says_why_it_ended() -> None:
    code = "import sys\nfor line in sys.stdin: print('noise'); print(line.strip() if 'a' in line else 1/0, flush=True)"
    with Child([sys.executable, "-c", code]) as child:
        assert child.ask({"a": 1}, 30.0) == {"a": 1}
        with pytest.raises(RlzError, match="ZeroDivisionError"):
            child.ask({"b": 1}, 30.0)


def test_a_child_that_is_late_is_killed_with_its_own_children() -> None:
    code = "import subprocess, time; print('{}', flush=True); subprocess.run(['sleep', '600'])"
    child = Child([sys.executable, "-c", code])
    assert child.line(30.0) == {}
    with pytest.raises(TimeoutError):
        child.line(0.1)
    begin = time.monotonic()
    child.close()
    child.close()
    assert time.monotonic() - begin < 10


class FakeChild:
    """Stands for the three programs of a measurement: answers as a made-up machine, some of them too late."""

    hardware: Hardware
    slow: str = ""
    jobs: list[dict[str, Any]]
    actor_us: float

    def __init__(self, command: list[str], env: dict[str, str] | None = None) -> None:
        self.module = command[2].rpartition(".")[2]
        self.job = json.loads(command[3])
        self.env = env or {}
        self.whole = profile(FakeChild.hardware, steps=1000.0, actor_us=FakeChild.actor_us).to_json()
        self.answers: Iterator[dict[str, Any]] = iter(getattr(self, f"_{self.module}")())
        FakeChild.jobs.append(self.job | {"module": self.module, "spin": self.env.get("GOMP_SPINCOUNT")})

    def __enter__(self) -> "FakeChild":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def send(self, job: dict[str, Any]) -> None:
        self.asked = job

    def line(self, timeout: float) -> dict[str, Any] | None:
        if self.module == "sampling" and hasattr(self, "asked"):
            return {"env_steps_per_s": 900.0 * self.asked["num_envs"]}
        found = next(self.answers, None)
        if found is not None and FakeChild.slow and FakeChild.slow in json.dumps(found):
            raise TimeoutError
        return found

    def ask(self, job: dict[str, Any], timeout: float) -> dict[str, Any]:
        if FakeChild.slow == job["do"]:
            raise TimeoutError
        rates: dict[str, Any] = {
            "costs": {k: v for k, v in self.whole["sampling"].items() if k not in ("rates", "share_of_bare")},
            "sample": {"env_steps_per_s": 1000.0},
            "transport": self.whole["transport"],
            "memory": {"memory": self.whole["memory"]},
        }
        found: dict[str, Any] = rates[job["do"]]
        return found

    def error(self) -> str:
        return ""

    def _sampling(self) -> list[dict[str, Any]]:
        return [{"ready": True}]

    def _updates(self) -> list[dict[str, Any]]:
        lines: list[dict[str, Any]] = [
            {"plan": [*(f"update {n}" for n, _ in enumerate(self.whole["updates"])), "bf16"]}
        ]
        for number, rate in enumerate(self.whole["updates"]):
            lines += [{"next": f"update {number}"}, {"done": f"update {number}", "update": rate}]
        return [*lines, {"done": "bf16"}]

    def _machine(self) -> list[dict[str, Any]]:
        tasks = {"memory, 1 thread": {"memory": self.whole["memory"][0]}}
        tasks["matrix products on cpu, fp32, 1 thread"] = {"product": self.whole["products"][0]}
        lines: list[dict[str, Any]] = [{"plan": list(tasks)}]
        for name, figures in tasks.items():
            lines += [{"next": name}, {"done": name, **figures}]
        return lines

    def _joint(self) -> list[dict[str, Any]]:
        lines: list[dict[str, Any]] = []
        for number, setting in enumerate(self.job["settings"]):
            lines.append({"next": number})
            if setting["envs_per_sampler"] == 4:
                lines.append({"error": "no luck"})
                continue
            place = {key: setting[key] for key in SAME_IN_BOTH}
            rates = {"env_steps_per_s": 75.0, "updates_per_s": 75.0, "frames_per_s": 19200.0, "seconds": 1.0}
            waits = {"sampler_waits": 0.9, "learner_waits": 0.0, "batch_waits": 0.0, "publish_share": 0.0}
            rest = {"batch_size": 256, "replay_ratio": setting["replay_ratio"], "precision": "fp32", "threads": 1}
            cores = {"sampler_cpu": 0.1, "learner_cpu": 1.0, "executor": "compiled"}
            lines.append({"joint": {**place, **rates, **waits, **rest, **cores}})
        return lines


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> type[FakeChild]:
    """A machine of two cores that is measured by `FakeChild`."""
    FakeChild.hardware, FakeChild.slow, FakeChild.jobs, FakeChild.actor_us = hardware(2), "", [], 5.0
    monkeypatch.setattr(probe, "Child", FakeChild)
    monkeypatch.setattr(probe, "detect", lambda: FakeChild.hardware)
    return FakeChild


def test_measurements_are_ordered_by_what_they_decide(machine: type[FakeChild]) -> None:
    told: list[tuple[str, float]] = []
    found = probe.profile(config(), 60.0, progress=lambda text, part: told.append((text, part)))
    modules = [job["module"] for job in machine.jobs]
    assert modules == ["updates", "sampling", "sampling", "joint", "joint", "joint"], "the learner compiles meanwhile"
    assert [part for _, part in told] == sorted(part for _, part in told)
    assert "update 0" in dict(told)
    assert found.sampling is not None
    assert {(rate.processes, rate.envs_per_process) for rate in found.sampling.rates} == {
        *((1, 1), (2, 1), (1, 4), (2, 4), (1, 16), (2, 16))
    }
    together = [(one.replay_ratio, one.spin_count, one.pinned) for one in found.joint]
    assert together[:2] == [(1.0, 1000, False), (None, 1000, False)]
    assert {(1.0, 10_000, False), (1.0, 1000, True)} <= set(together)
    assert [job["spin"] for job in machine.jobs if job["spin"]] == ["1000", "1000", "10000", "1000"]
    assert all("no luck" in text for text in found.skipped)
    assert plan(config(), (), found).basis == "profile"


def test_others_that_keep_cores_busy_are_seen() -> None:
    assert probe._others() < 64  # whatever this machine does
    with Child([sys.executable, "-c", "print('{}', flush=True)\nwhile True: pass"]) as busy:
        assert busy.line(30.0) == {}
        assert probe._others() > 0.3


def test_a_free_run_is_pinned_as_a_free_run(machine: type[FakeChild]) -> None:
    found = probe.profile(config(replay_ratio="free"), 60.0)
    together = [(one.replay_ratio, one.spin_count, one.pinned) for one in found.joint]
    assert together[:2] == [(None, 1000, False), (1.0, 1000, False)]
    assert together[-1] == (None, 1000, True)
    assert all(spin == 1000 for _, spin, _ in together)


def test_a_server_is_measured_where_choosing_actions_takes_time(
    machine: type[FakeChild],
) -> None:
    found = probe.profile(config(), 60.0)
    assert {one.inference for one in found.joint} == {"inline"}, "5 us beside steps of 100 us"
    machine.actor_us = 50.0
    found = probe.profile(config(), 60.0)
    assert [(one.inference, one.pinned, one.spin_count) for one in found.joint if one.inference == "central"] == [
        ("central", False, 1000)
    ]
    assert {one.inference for one in probe.profile(config(inference="inline"), 60.0).joint} == {"inline"}
    assert {one.inference for one in probe.profile(config(inference="central"), 60.0).joint} == {"central"}


def test_without_an_environment_what_needs_none_is_measured(machine: type[FakeChild], tmp_path: Path) -> None:
    told: list[str] = []
    found = probe.profile(budget=5.0, progress=lambda text, _: told.append(text))
    assert [(job["module"], job["threads"]) for job in machine.jobs] == [("machine", [1, 2])]
    assert (found.workload, found.sampling, found.budget_s, found.skipped) == (None, None, 5.0, ())
    assert (len(found.memory), len(found.products)) == (1, 1)
    assert "memory, 1 thread" in told
    assert Profile.model_validate_json(json.dumps(found.to_json())) == found
    with (tmp_path / "out.txt").open("w") as file:
        console = Console(file=file, width=80, record=True)
        report.show(found, console)
    text = console.export_text()
    assert "10.0 GB/s with 1 thread" in text
    assert "matrix products, cpu, fp32, 1 thread" in text


@pytest.mark.parametrize(
    ("slow", "skipped"),
    [('"plan"', ("memory, matrix products and copies",)), ('"product"', ("matrix products on cpu, fp32, 1 thread",))],
)
def test_without_an_environment_what_did_not_fit_is_listed(
    machine: type[FakeChild], slow: str, skipped: tuple[str, ...]
) -> None:
    machine.slow = slow
    assert probe.profile().skipped == skipped


@pytest.mark.parametrize(("free", "samplers"), [(1 << 40, 64), (1 << 30, 3), (1, 1), (None, 1)])
def test_no_more_samplers_are_measured_than_fit_into_half_of_the_memory_that_is_left(
    machine: type[FakeChild], monkeypatch: pytest.MonkeyPatch, free: int | None, samplers: int
) -> None:
    """A container's limit counts, however much memory the machine has."""
    machine.hardware = hardware(64, memory=1 << 38)
    left = [] if free is None else [Limit("machine", 1 << 38), Limit("container", free)]
    monkeypatch.setattr(probe, "limits", lambda: left)
    probe.profile(config(), 60.0)
    assert [job["module"] for job in machine.jobs].count("sampling") == samplers


def test_one_core_is_not_asked_about_threads_that_wait(machine: type[FakeChild]) -> None:
    machine.hardware = hardware(1)
    found = probe.profile(config(), 60.0)
    assert [job["module"] for job in machine.jobs] == ["sampling", "updates", "joint"]
    assert machine.jobs[1]["threads"] == [1]
    assert plan(config(), (), found).choices["threads"] == "auto_1"


@pytest.mark.parametrize(
    ("slow", "skipped"),
    [
        ("transport", "replay buffer, parameters or memory"),
        ('"done": "update 3"', "update 3"),
        ('"next": 0', "1 sampler x 1 and a learner, replay ratio 1"),
        ('"plan"', "samplers and learner together: one side alone has no figures"),
    ],
)
def test_what_did_not_fit_is_listed(machine: type[FakeChild], slow: str, skipped: str) -> None:
    machine.slow = slow
    assert skipped in probe.profile(config(), 60.0).skipped


def test_a_slow_learner_gets_the_time_of_what_would_be_in_vain(machine: type[FakeChild]) -> None:
    parts: list[float] = []
    clock = probe.Budget(100.0)
    left, clock.left = clock.left, lambda part=1.0: parts.append(part) or left(part)  # type: ignore[assignment,func-returns-value,misc]
    found: dict[str, Any] = {"skipped": []}
    probe._updates(config(), clock, probe._learner(config(), hardware(2), clock, {}), found)
    first = next(number for number, part in enumerate(parts) if part == probe.UPDATES_UNTIL)
    assert set(parts[:first]) == {probe.JOINT_UNTIL}
    assert set(parts[first:]) == {probe.UPDATES_UNTIL}
    assert len(found["updates"]) == 5


def test_an_environment_that_makes_no_step_is_an_error(machine: type[FakeChild]) -> None:
    machine.slow = "costs"
    with pytest.raises(RlzError, match=r"Pendulum-v1 could not be measured within 9 s.*--budget"):
        probe.profile(config(), 9.0)


def shown(found: Profile, tmp_path: Path, width: int = 80) -> str:
    with (tmp_path / "out.txt").open("w") as file:
        console = Console(file=file, width=width, record=True)
        report.show(found, console)
        report.show_plan(plan(config(), (), found), console)
        return console.export_text()


def test_the_report_is_for_people(machine: type[FakeChild], tmp_path: Path) -> None:
    machine.hardware = hardware(2, gpus=2, cpu_quota=1.9, cores_allowed=64, virtual=True)
    text = shown(probe.profile(config(), 60.0), tmp_path, width=200)
    for words in (
        "2 usable (2 online, 64 allowed, quota 1.9)",
        "0-1 NV18",
        "note: a quota allows 1.9 of 64 cores",
        "1 environment each",
        "samplers x envs",
        "update-bound",
        "--samplers",
        "the profile has no updates on the card",
    ):
        assert words in text
    machine.hardware = hardware(2)
    assert "prediction" in shown(probe.profile(config(), 60.0), tmp_path)
    assert "…" not in shown(probe.profile(config(), 60.0), tmp_path)  # 80 columns are enough


def test_every_key_is_documented(machine: type[FakeChild]) -> None:
    docs = DOCS.read_text()
    found = probe.profile(config(), 60.0)
    values = found.to_json()
    for group, names in values.items():
        one = names[0] if isinstance(names, list) and names else names
        keys = one if isinstance(one, dict) else {}
        assert any(f"`{group}{end}" in docs for end in ("`", "[]`", ".")), group
        missing = [key for key in keys if f"`{key}`" not in docs and f"`{group}.{key}`" not in docs]
        assert missing == [], group


@pytest.mark.slow
def test_a_real_one_ends_in_time_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All parts with tiny networks; which of them fit depends on how busy this machine is."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    run = config(hidden="8", batch_size=16, compile=False)
    begin = time.monotonic()
    found = probe.profile(run, 12.0)
    assert time.monotonic() - begin < 20.0
    assert found.sampling is not None
    assert found.sampling.rates[0].env_steps_per_s > 0
    assert 0 < found.sampling.share_of_bare < 2
    assert found.updates or found.skipped
    assert list(tmp_path.iterdir()) == []
