"""A run beside its prediction, with a kernel that a test writes."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from rlz.planning.plan import Prediction
from rlz.planning.verify import Verifier
from rlz.system.detect import Roots
from rlz.tracking.snapshot import Snapshot, WorkerSnapshot
from support.machines import config

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
    """Two cores and a run on them; a tick is five seconds.

    `frame_rate`: updates per second, where it is not the rate of the env steps.
    """

    folder: Path
    own: float = 1.0
    others: float = 0.0
    rate: float = 100.0
    frame_rate: float | None = None
    values: dict[str, float] = field(default_factory=lambda: {"train/compiled": 1.0, "train/threads": 2.0})
    sampler_waits: float = 0.9
    learner_waits: float = 0.0
    now: float = 0.0
    steps: float = 0.0
    updates: float = 0.0
    busy: float = 0.0

    def write(self) -> None:
        half = round(100 * self.busy / 2)
        lines = [f"cpu{core} {half} 0 0 {round(100 * self.now)} 0 0 0 0 0 0" for core in (0, 1)]
        lines.append("cpu2 999999999 0 0 0 0 0 0 0 0 0")  # not one of ours
        (self.folder / "stat").write_text("cpu 0 0 0 0 0 0 0 0 0 0\n" + "\n".join(lines) + "\n")

    def verifier(self, prediction: Prediction = PREDICTED, **options: Any) -> Verifier:
        self.write()
        roots = Roots(proc=self.folder)
        return Verifier(prediction, config(**options), roots=roots, cores={0, 1}, clock=lambda: self.now)

    def tick(self) -> Snapshot:
        self.now += 5.0
        self.steps += 5.0 * self.rate
        self.updates += 5.0 * (self.rate if self.frame_rate is None else self.frame_rate)
        self.busy += 5.0 * (self.own + self.others)
        self.write()
        return self.snapshot()

    def snapshot(self) -> Snapshot:
        def worker(name: str, cpu: float, waits: dict[str, float]) -> WorkerSnapshot:
            rates = self.rate, 0, self.rate / 200
            role = name.partition("-")[0]
            usage = 1, 1, 1, 100 * cpu
            return WorkerSnapshot(
                name,
                role,
                {"sampler": "env_steps", "learner": "updates"}.get(role, "episodes"),
                7,
                0,
                *usage,
                *rates,
                None,
                0,
                waits,
                "",
                0.0,
                0.0,
                0.0,
            )

        workers = (
            worker("learner", self.own, {"limiter": self.learner_waits}),
            worker("sampler-0", 0.0, {"limiter": self.sampler_waits}),
        )
        values: dict[str, Any] = {
            **{"wall_s": self.now, "env_steps": round(self.steps), "updates": round(self.updates)},
            **{
                "frames": 256 * round(self.updates),
                "total_timesteps": 10**6,
                "env_steps_per_s": self.rate,
                "updates_per_s": self.rate,
            },
            **{"frames_per_s": 256 * self.rate, "replay_ratio": 1.0, "replay_ratio_now": 1.0, "policy_lag": 0.0},
            **{"policy_lag_mean": 0.0, "policy_version": 1, "episodes": 1, "return_mean": 0.0, "length_mean": 200.0},
            **{"rows": 0, "rows_lost": 0, "checkpoints": 0, "evaluations": 0, "evaluations_skipped": 0, "restarts": 0},
            **{"values": dict(self.values), "workers": workers},
        }
        return Snapshot(**values)


def said(machine: Machine, ticks: int = 12, **options: Any) -> list[str]:
    """What the verifier says over a minute."""
    verifier = machine.verifier(**options)
    return [text for _ in range(ticks) if (text := verifier.look(machine.tick())) is not None]


def test_a_run_that_goes_as_planned_is_not_mentioned(tmp_path: Path) -> None:
    assert said(Machine(tmp_path, rate=85.0)) == []
    assert said(Machine(tmp_path, rate=115.0)) == []


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"others": 1.0}, "other processes use 1.0 of the 2 cores"),
        ({"own": 0.5, "others": 0.5}, "updates are slower"),  # idle cores are nobody's fault
        ({"sampler_waits": 0.0, "learner_waits": 0.4}, "the environment is slower"),
        ({}, "updates are slower"),
    ],
)
def test_a_slower_run_is_explained_once(tmp_path: Path, change: dict[str, Any], cause: str) -> None:
    (text,) = said(Machine(tmp_path, rate=60.0, **change))
    assert "60 env steps/s instead of 100 (-40%) and 15,360 frames/s instead of 25,600 (-40%)" in text
    assert f"Probably: {cause}" in text
    assert "`rlz profile --fresh`" in text


@pytest.mark.parametrize(
    ("steps", "updates", "cause"), [(100.0, 60.0, "updates are slower"), (60.0, 100.0, "the environment is slower")]
)
def test_a_free_run_blames_the_side_whose_rate_is_off(tmp_path: Path, steps: float, updates: float, cause: str) -> None:
    machine = Machine(tmp_path, rate=steps, frame_rate=updates, sampler_waits=0.0)  # free, nobody waits
    (text,) = said(machine, replay_ratio="free")
    assert cause in text


def test_a_faster_run_says_why(tmp_path: Path) -> None:
    (text,) = said(Machine(tmp_path, rate=150.0))
    assert "(+50%)" in text
    assert "more time than when it was measured" in text


def test_nothing_is_said_before_the_run_is_warm(tmp_path: Path) -> None:
    eager = {"train/compiled": 0.0, "train/threads": 1.0}
    assert said(Machine(tmp_path, rate=20.0, values=eager)) == []
    (text,) = said(Machine(tmp_path, rate=20.0, values=eager), ticks=50)  # it stays eager
    assert "updates are not compiled" in text
    assert len(said(Machine(tmp_path, rate=20.0, values=eager), compile=False)) == 1  # as it was asked for


def test_a_learner_that_is_compiled_late_is_looked_at_again(tmp_path: Path) -> None:
    machine = Machine(tmp_path, rate=100.0)
    verifier = machine.verifier(compile=False)
    machine.values, machine.rate = {"train/compiled": 0.0, "train/threads": 1.0}, 50.0
    found = [verifier.look(machine.tick()) for _ in range(4)]
    machine.values, machine.rate = {"train/compiled": 1.0, "train/threads": 2.0}, 100.0
    found += [verifier.look(machine.tick()) for _ in range(12)]
    assert found == [None] * 16
    assert verifier.done


def test_a_kernel_that_tells_nothing(tmp_path: Path) -> None:
    machine = Machine(tmp_path, rate=60.0)
    verifier = Verifier(PREDICTED, config(), roots=Roots(proc=tmp_path / "none"), cores={0})
    found = [verifier.look(machine.tick()) for _ in range(12)]
    assert sum(text is not None for text in found) == 1


def test_a_run_that_found_a_better_setting_is_not_blamed(tmp_path: Path) -> None:
    options = {"replay_ratio": "free", "batch_size": "auto_256", "num_envs": 8, "samplers": 2}
    planned = {"train/compiled": 1.0, "train/batch_size": 256.0, "train/row_uses": 1.0}

    def told(**change: float) -> list[str]:
        values = planned | {f"train/{name}": value for name, value in change.items()}
        return said(Machine(tmp_path, rate=50.0, frame_rate=150.0, values=values), **options)

    for change in ({"batch_size": 1024.0}, {"row_uses": 16.0}):
        (text,) = told(**change)
        assert "not compared with the plan: its prediction was for batch size 256 and 1 uses of each row" in text
        assert "Probably" not in text
    assert told(batch_size=256.0, trying=1.0) == []  # it compiles for another size, or holds the samplers back
    (text,) = told(trying=0.0)
    assert "Probably" in text
