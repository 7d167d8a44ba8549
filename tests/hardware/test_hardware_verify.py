"""A run beside its prediction, with a kernel that a test writes."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from machines import config

from rlz.hardware.detect import Roots
from rlz.hardware.plan import Prediction
from rlz.hardware.verify import Verifier
from rlz.tracking.snapshot import Snapshot, WorkerSnapshot

PREDICTED = Prediction(
    env_steps_per_s=100.0,
    updates_per_s=100.0,
    frames_per_s=25_600.0,
    bound="update-bound",
    evidence="",
    executor="compiled",
)


@dataclass
class Machine:
    """Two cores, a cgroup, and a run on them; a tick is five seconds."""

    folder: Path
    own: float = 1.0
    others: float = 0.0
    waiting: float = 0.0
    throttled: tuple[int, float] = (0, 0.0)
    rate: float = 100.0
    values: dict[str, float] = field(default_factory=lambda: {"train/compiled": 1.0, "train/threads": 2.0})
    facts: dict[str, Any] = field(default_factory=dict)
    sampler_waits: float = 0.9
    now: float = 0.0
    steps: float = 0.0
    busy: float = 0.0
    pressed: float = 0.0
    pauses: int = 0
    paused: float = 0.0

    def roots(self) -> Roots:
        proc, group = self.folder / "proc", self.folder / "cgroup" / "box"
        (proc / "self").mkdir(parents=True, exist_ok=True)
        (proc / "pressure").mkdir(exist_ok=True)
        group.mkdir(parents=True, exist_ok=True)
        (proc / "self" / "cgroup").write_text("0::/box\n")
        self.write()
        return Roots(proc=proc, cgroup=self.folder / "cgroup")

    def write(self) -> None:
        half = round(100 * self.busy / 2)
        lines = [f"cpu{core} {half} 0 0 {round(100 * self.now)} 0 0 0 0 0 0" for core in (0, 1)]
        lines.append("cpu2 999999999 0 0 0 0 0 0 0 0 0")  # not one of ours
        (self.folder / "proc" / "stat").write_text("cpu 0 0 0 0 0 0 0 0 0 0\n" + "\n".join(lines) + "\n")
        pressure = f"some avg10=0.00 avg60=0.00 avg300=0.00 total={round(1e6 * self.pressed)}\n"
        (self.folder / "proc" / "pressure" / "cpu").write_text(pressure)
        stat = f"nr_periods 9\nnr_throttled {self.pauses}\nthrottled_usec {round(1e6 * self.paused)}\n"
        (self.folder / "cgroup" / "box" / "cpu.stat").write_text(stat)

    def tick(self) -> Snapshot:
        self.now += 5.0
        self.steps += 5.0 * self.rate
        self.busy += 5.0 * (self.own + self.others)
        self.pressed += 5.0 * self.waiting
        self.pauses += self.throttled[0]
        self.paused += self.throttled[1]
        self.write()
        return self.snapshot()

    def snapshot(self) -> Snapshot:
        def worker(name: str, cpu: float, waits: dict[str, float]) -> WorkerSnapshot:
            return WorkerSnapshot(
                name, name.partition("-")[0], 7, 0, 1, 1, 1, 100 * cpu, 0, 0, 0, None, 0, waits, "", 0.0, 0.0
            )

        workers = worker("learner", self.own, {}), worker("sampler-0", 0.0, {"limiter": self.sampler_waits})
        values: dict[str, Any] = {
            **{"wall_s": self.now, "env_steps": round(self.steps), "updates": round(self.steps)},
            **{
                "frames": 256 * round(self.steps),
                "total_timesteps": 10**6,
                "env_steps_per_s": self.rate,
                "updates_per_s": self.rate,
            },
            **{"frames_per_s": 256 * self.rate, "replay_ratio": 1.0, "replay_ratio_now": 1.0, "policy_lag": 0.0},
            **{"policy_lag_mean": 0.0, "policy_version": 1, "episodes": 1, "return_mean": 0.0, "length_mean": 200.0},
            **{"rows": 0, "rows_lost": 0, "checkpoints": 0, "evaluations": 0, "evaluations_skipped": 0, "restarts": 0},
            **{"values": dict(self.values), "workers": workers},
        }
        return Snapshot(**values | self.facts)


def said(machine: Machine, ticks: int = 12, prediction: Prediction = PREDICTED, **options: Any) -> list[str]:
    """What the verifier says over a minute."""
    verifier = Verifier(
        *(prediction, config(**options)),
        roots=machine.roots(),
        cores={0, 1},
        clock=lambda: machine.now,
        foreign_gpu_users=lambda own: 0 if 7 in own and "cuda" not in options.get("device", "") else 2,
    )
    return [text for _ in range(ticks) if (text := verifier.look(machine.tick())) is not None]


def test_a_run_that_goes_as_planned_is_not_mentioned(tmp_path: Path) -> None:
    assert said(Machine(tmp_path, rate=85.0)) == []
    assert said(Machine(tmp_path, rate=115.0)) == []


@pytest.mark.parametrize(
    ("change", "options", "cause"),
    [
        (
            {"others": 1.0, "waiting": 0.5},
            {},
            "other processes use 1.0 of the 2 cores, and somebody waited for a core 50%",
        ),
        ({"throttled": (40, 2.0), "others": 1.0}, {}, "quota of this container paused it 160 times, 40% of the time"),
        ({"sampler_waits": 0.0}, {}, "the environment is slower than when it was measured"),
        ({}, {}, "updates are slower"),
        ({}, {"device": "cuda:0"}, "2 other processes use the GPU"),
    ],
)
def test_a_slower_run_is_explained_once(
    tmp_path: Path, change: dict[str, Any], options: dict[str, Any], cause: str
) -> None:
    (text,) = said(Machine(tmp_path, rate=60.0, **change), **options)
    assert "60 env steps/s instead of 100 (-40%) and 15,360 frames/s instead of 25,600 (-40%)" in text
    assert cause in text
    assert "`rlz profile --fresh`" in text


def test_idle_cores_are_nobodys_fault(tmp_path: Path) -> None:
    (text,) = said(Machine(tmp_path, rate=60.0, own=0.5, others=0.5))
    assert "other processes" not in text


def test_an_evaluator_that_plays_is_named(tmp_path: Path) -> None:
    machine = Machine(tmp_path, rate=60.0)
    verifier = Verifier(PREDICTED, config(), roots=machine.roots(), cores={0, 1}, clock=lambda: machine.now)
    found = [verifier.look(replace(machine.tick(), evaluations=tick // 4)) for tick in range(12)]
    assert ["the evaluator was playing" in text for text in found if text] == [True]


def test_a_faster_run_says_why(tmp_path: Path) -> None:
    (text,) = said(Machine(tmp_path, rate=150.0))
    assert "(+50%)" in text
    assert "more time than when it was measured" in text
    eager = PREDICTED.model_copy(update={"executor": "eager"})
    (text,) = said(Machine(tmp_path, rate=150.0), prediction=eager)
    assert "updates are compiled here" in text


def test_nothing_is_said_before_the_run_is_warm(tmp_path: Path) -> None:
    eager = {"train/compiled": 0.0, "train/threads": 1.0}
    assert said(Machine(tmp_path, rate=20.0, values=eager)) == []
    (text,) = said(Machine(tmp_path, rate=20.0, values=eager), ticks=50)  # it stays eager
    assert "updates are not compiled here" in text
    assert len(said(Machine(tmp_path, rate=20.0, values=eager), compile=False)) == 1  # as it was asked for


def test_a_learner_that_is_compiled_late_is_looked_at_again(tmp_path: Path) -> None:
    machine = Machine(tmp_path, rate=100.0)
    verifier = Verifier(
        PREDICTED, config(compile=False), roots=machine.roots(), cores={0, 1}, clock=lambda: machine.now
    )
    machine.values, machine.rate = {"train/compiled": 0.0, "train/threads": 1.0}, 50.0
    found = [verifier.look(machine.tick()) for _ in range(4)]
    machine.values, machine.rate = {"train/compiled": 1.0, "train/threads": 2.0}, 100.0
    found += [verifier.look(machine.tick()) for _ in range(12)]
    assert found == [None] * 16
    assert verifier.done


def test_a_kernel_that_tells_nothing(tmp_path: Path) -> None:
    machine = Machine(tmp_path, rate=60.0)
    verifier = Verifier(PREDICTED, config(), roots=Roots(proc=tmp_path / "none", cgroup=tmp_path / "none"), cores={0})
    machine.roots()
    found = [verifier.look(machine.tick()) for _ in range(12)]
    assert sum(text is not None for text in found) == 1


def test_a_run_that_found_a_better_batch_size_is_not_blamed(tmp_path: Path) -> None:
    options = {"replay_ratio": "free", "batch_size": "auto_256"}
    values = {"train/compiled": 1.0, "train/threads": 1.0, "train/batch_size": 1024.0}
    machine = Machine(tmp_path, rate=60.0)
    machine.values |= values
    assert said(machine, **options) == []
    machine = Machine(tmp_path, rate=60.0)
    machine.values |= values | {"train/batch_size": 256.0, "train/trying": 1.0}
    assert said(machine, **options) == []  # it compiles for another size, or has some environments paused
    machine = Machine(tmp_path, rate=60.0)
    machine.values |= values | {"train/batch_size": 256.0, "train/trying": 0.0}
    assert len(said(machine, **options)) == 1
