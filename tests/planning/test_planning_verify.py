"""A run beside its prediction, with a kernel that a test writes."""

import subprocess
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from rlz.planning.plan import Prediction
from rlz.planning.verify import Verifier
from rlz.system.cards import Cards, foreign, look_at_cards, slowed
from rlz.system.detect import Roots
from rlz.tracking.snapshot import Snapshot, WorkerSnapshot
from support.machines import config, hardware, profile

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
    """Two cores, a cgroup, and a run on them; a tick is five seconds.

    `frame_rate`: updates per second, where it is not the rate of the env steps.
    """

    folder: Path
    own: float = 1.0
    others: float = 0.0
    waiting: float = 0.0
    throttled: tuple[int, float] = (0, 0.0)
    rate: float = 100.0
    frame_rate: float | None = None
    hot: int = 0
    clock: int | None = None
    resets: float = 0.0
    length: float = 200.0
    values: dict[str, float] = field(default_factory=lambda: {"train/compiled": 1.0, "train/threads": 2.0})
    facts: dict[str, Any] = field(default_factory=dict)
    sampler_waits: float = 0.9
    learner_waits: dict[str, float] = field(default_factory=dict)
    now: float = 0.0
    steps: float = 0.0
    updates: float = 0.0
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
        return Roots(proc=proc, cgroup=self.folder / "cgroup", sys=self.folder / "sys")

    def write(self) -> None:
        half = round(100 * self.busy / 2)
        lines = [f"cpu{core} {half} 0 0 {round(100 * self.now)} 0 0 0 0 0 0" for core in (0, 1)]
        lines.append("cpu2 999999999 0 0 0 0 0 0 0 0 0")  # not one of ours
        (self.folder / "proc" / "stat").write_text("cpu 0 0 0 0 0 0 0 0 0 0\n" + "\n".join(lines) + "\n")
        pressure = f"some avg10=0.00 avg60=0.00 avg300=0.00 total={round(1e6 * self.pressed)}\n"
        (self.folder / "proc" / "pressure" / "cpu").write_text(pressure)
        stat = f"nr_periods 9\nnr_throttled {self.pauses}\nthrottled_usec {round(1e6 * self.paused)}\n"
        (self.folder / "cgroup" / "box" / "cpu.stat").write_text(stat)
        if self.clock is not None:
            self._write_clocks(self.clock)

    def _write_clocks(self, mhz: int) -> None:
        """A CPU with a clock and counters of heat; the second core is idle."""
        for core, now in ((0, mhz), (1, 800)):
            folder = self.folder / "sys" / "devices/system/cpu" / f"cpu{core}"
            for name in ("cpufreq", "thermal_throttle"):
                (folder / name).mkdir(parents=True, exist_ok=True)
            (folder / "cpufreq" / "scaling_cur_freq").write_text(f"{1000 * now}\n")
            (folder / "cpufreq" / "cpuinfo_max_freq").write_text("4000000\n")
            (folder / "thermal_throttle" / "core_throttle_count").write_text(f"{self.hot * (core == 0)}\n")
            (folder / "thermal_throttle" / "package_throttle_count").write_text("900\n")  # long ago

    def tick(self) -> Snapshot:
        self.now += 5.0
        self.steps += 5.0 * self.rate
        self.updates += 5.0 * (self.rate if self.frame_rate is None else self.frame_rate)
        self.busy += 5.0 * (self.own + self.others)
        self.pressed += 5.0 * self.waiting
        self.pauses += self.throttled[0]
        self.paused += self.throttled[1]
        self.write()
        return self.snapshot()

    def snapshot(self) -> Snapshot:
        def worker(name: str, cpu: float, waits: dict[str, float]) -> WorkerSnapshot:
            rates = self.rate, 0, self.rate / self.length
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
                self.resets * (role == "sampler"),
            )

        workers = (
            worker("learner", self.own, self.learner_waits),
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
        return Snapshot(**values | self.facts)


def no_cards(names: list[str], own: set[int]) -> Cards:
    raise AssertionError("the learner is on no card")


def said(
    machine: Machine,
    ticks: int = 12,
    prediction: Prediction = PREDICTED,
    sampling: Any = None,
    cards: Any = no_cards,
    **options: Any,
) -> list[str]:
    """What the verifier says over a minute."""
    verifier = Verifier(
        *(prediction, config(**options)),
        roots=machine.roots(),
        cores={0, 1},
        sampling=sampling,
        clock=lambda: machine.now,
        cards=cards,
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
        (
            {"sampler_waits": 0.0, "learner_waits": {"limiter": 0.4}},
            {},
            "the environment is slower than when it was measured: its steps, or its resets",
        ),
        ({}, {}, "updates are slower"),
        ({"learner_waits": {"batch": 0.3}}, {}, "the learner waits for rows of the replay buffer, 30% of the time"),
        ({"sampler_waits": 0.0}, {}, "both sides are slower"),
        ({"clock": 1500}, {}, "the CPU's clock is low, 1,500 MHz of 4,000"),
        ({"clock": 3000}, {}, "updates are slower"),
    ],
)
def test_a_slower_run_is_explained_once(
    tmp_path: Path, change: dict[str, Any], options: dict[str, Any], cause: str
) -> None:
    (text,) = said(Machine(tmp_path, rate=60.0, **change), **options)
    assert "60 env steps/s instead of 100 (-40%) and 15,360 frames/s instead of 25,600 (-40%)" in text
    assert cause in text
    assert "`rlz profile --fresh`" in text


@pytest.mark.parametrize(
    ("steps", "updates", "cause"),
    [
        (100.0, 60.0, "updates are slower"),
        (60.0, 100.0, "the environment is slower"),
        (60.0, 60.0, "both sides are slower"),
        (60.0, 150.0, "more of the cores' time goes to the learner"),
    ],
)
def test_a_free_run_blames_the_side_whose_rate_is_off(tmp_path: Path, steps: float, updates: float, cause: str) -> None:
    machine = Machine(tmp_path, rate=steps, frame_rate=updates, sampler_waits=0.0)  # free, nobody waits
    (text,) = said(machine, replay_ratio="free")
    assert cause in text


def test_updates_that_are_not_compiled_do_not_explain_slow_samplers(tmp_path: Path) -> None:
    eager = {"train/compiled": 0.0, "train/threads": 1.0}
    (text,) = said(
        Machine(tmp_path, rate=60.0, frame_rate=100.0, sampler_waits=0.0, values=eager), ticks=50, replay_ratio="free"
    )
    assert "the environment is slower" in text


def test_heat_is_counted_while_the_run_is_looked_at(tmp_path: Path) -> None:
    machine = Machine(tmp_path, rate=60.0, clock=3500, hot=3)
    assert "updates are slower" in said(machine)[0]  # it was hot before
    machine = Machine(tmp_path, rate=60.0, clock=3500, hot=3)
    verifier = Verifier(PREDICTED, config(), roots=machine.roots(), cores={0, 1}, clock=lambda: machine.now)
    found = []
    for _ in range(12):
        machine.hot += 2
        found.append(verifier.look(machine.tick()))
    assert [
        "the CPU is too hot and has slowed its cores down meanwhile (8 times" in text for text in found if text
    ] == [True]


def test_slow_resets_are_told_from_slow_steps(tmp_path: Path) -> None:
    sampling = profile(hardware(2)).sampling
    assert sampling is not None
    assert sampling.reset_us is not None
    held_up: dict[str, Any] = {"rate": 60.0, "sampler_waits": 0.0, "learner_waits": {"limiter": 0.4}}
    (text,) = said(Machine(tmp_path, **held_up, resets=0.3), sampling=sampling)  # 60 steps/s: an episode in 3.3 s
    assert "resets of the environment take 30% of the samplers' time: 1,000,000 us instead of 100" in text
    (text,) = said(Machine(tmp_path, **held_up, resets=0.05), sampling=sampling)
    assert "the environment's steps are slower than when they were measured" in text
    sampling = sampling.model_copy(
        update={"reset_us": sampling.reset_us.model_copy(update={"mean": 20_000.0}), "episode_length": 50.0}
    )
    (text,) = said(Machine(tmp_path, **held_up, resets=0.24, length=5.0), sampling=sampling)  # 20 ms, 12 times a second
    assert "take 24% of the samplers' time: episodes have 5 steps instead of 50" in text


def test_cards_are_looked_at_where_the_learner_is(tmp_path: Path) -> None:
    asked: list[tuple[list[str], set[int]]] = []

    def cards(answer: Cards) -> Any:
        return lambda names, own: asked.append((names, own)) or answer

    (text,) = said(Machine(tmp_path, rate=60.0), cards=cards(Cards(users=2)), device="cuda:1")
    assert "2 other processes use the GPU" in text
    (text,) = said(Machine(tmp_path, rate=60.0), cards=cards(Cards(slowed="it is too hot")), devices="cuda:0,cuda:1")
    assert "Likely cause: it is too hot" in text
    assert asked == [(["cuda:1"], {7}), (["cuda:0", "cuda:1"], {7})]


def test_pids_of_another_namespace_are_not_taken_for_others() -> None:
    assert foreign("7\n901\n902\n", own={7, 8}) == 2
    assert foreign("7\n", own={7, 8}) == 0
    assert foreign("4001\n4002\n", own={7, 8}) == 0  # the host's: one of them may be our learner
    assert foreign("[Not Supported]\n", own={7}) == 0


@pytest.mark.parametrize("group", ["clocks_event_reasons", "clocks_throttle_reasons"])  # of new and old drivers
def test_nvidia_smi_is_asked_about_the_learners_card(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(
        """#!/bin/sh
[ "$1 $2" = "-i GPU-b" ] || exit 1
case "$3" in
  --query-compute-apps=pid) printf '7\\n%s\\n901\\n' "$HELPER" ;;
  --query-gpu=temperature.gpu,$GROUP.*) echo "91, Active, Not Active, Not Active" ;;
  *) echo "Field is not a valid field to query."; exit 2 ;;
esac
"""
    )
    monkeypatch.setenv("GROUP", group)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b")
    with subprocess.Popen(["sleep", "600"]) as helper:  # such as a compiler's
        monkeypatch.setenv("HELPER", str(helper.pid))
        seen = look_at_cards(["cuda:1"], {7})
        helper.kill()
    assert seen.slowed == "the GPU has lowered its clock: it is too hot (91 degrees Celsius)"
    assert seen.users == 1
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert look_at_cards(["cuda:0"], {7}) == Cards()  # it fails: nothing is said


def test_why_a_card_has_lowered_its_clock() -> None:
    assert slowed("") == slowed("45, Not Active, Not Active, Not Active\n") == slowed("45, [N/A], [N/A], [N/A]\n") == ""
    hot = slowed("45, Not Active, Not Active, Not Active\n88, Not Active, Active, Not Active\n")
    assert hot == "the GPU has lowered its clock: it is too hot (88 degrees Celsius)"


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


def test_a_run_that_found_a_better_setting_is_not_blamed(tmp_path: Path) -> None:
    options = {"replay_ratio": "free", "batch_size": "auto_256", "num_envs": 8, "samplers": 2}
    planned = {"train/compiled": 1.0, "train/batch_size": 256.0, "train/row_uses": 1.0}

    def told(**change: float) -> list[str]:
        values = planned | {f"train/{name}": value for name, value in change.items()}
        return said(Machine(tmp_path, rate=50.0, frame_rate=150.0, values=values), **options)

    for change in ({"batch_size": 1024.0}, {"row_uses": 16.0}):
        (text,) = told(**change)
        assert "not compared with the plan: its prediction was for batch size 256 and 1 uses of each row" in text
        assert "cause" not in text
    assert told(batch_size=256.0, trying=1.0) == []  # it compiles for another size, or holds the samplers back
    (text,) = told(trying=0.0)
    assert "Likely cause" in text
