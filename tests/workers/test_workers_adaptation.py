"""Throughput mode's choice of batch size and uses of each row, beside a simulated machine."""

import functools
import random
from dataclasses import dataclass, field

import pytest

from rlz.learning import adaptation
from rlz.learning.adaptation import Adaptation, Operation, Seen, batch_sizes, knee, use_counts

TICK_S = 0.1


@functools.cache
def pace(
    operation: Operation, cores: float, overhead_s: float, frame_s: float, env_s: float, envs: int, envs_per_core: int
) -> tuple[float, float]:
    """Env steps/s and frames/s: samplers wait for the learner, and take its core."""
    most, wanted = operation.batch_size / (overhead_s + frame_s * operation.batch_size), envs / env_s
    low, high = 0.0, 1.0  # part of the time that the samplers do not wait
    for _ in range(30):
        part = (low + high) / 2
        share = min(1.0, cores / (1.0 + part * envs / envs_per_core))
        fast = operation.row_uses * part * wanted > most
        low, high = (low, part) if fast else (part, high)
    return part * wanted * share, most * share


@dataclass
class Machine:
    """A run on a machine with some cores: samplers take them from the learner.

    `overhead_s` per update beside `frame_s` per row makes the knee; `busy` cores belong to somebody else; `noise` is
    the relative spread from one tick to the next; over minutes all rates drift together by `drift`.
    """

    overhead_s: float = 3e-3
    frame_s: float = 5e-6
    env_s: float = 1e-3
    envs: int = 8
    envs_per_core: int = 1
    cores: float = 4.0
    busy: float = 0.0
    noise: float = 0.1
    drift: float = 0.3
    compile_s: float = 20.0
    broken: frozenset[int] = frozenset()
    seed: int = 0
    at: float = 0.0
    env_steps: float = 0.0
    updates: float = 0.0
    frames: float = 0.0
    compiled_at: dict[int, float] = field(default_factory=dict)
    history: list[tuple[float, Operation]] = field(default_factory=list)
    log: list[tuple[float, str]] = field(default_factory=list)

    def pace(self, operation: Operation) -> tuple[float, float]:
        """Env steps/s and frames/s without noise."""
        facts = self.cores - self.busy, self.overhead_s, self.frame_s, self.env_s, self.envs, self.envs_per_core
        return pace(operation, *facts)

    def run(self, adapter: Adaptation, seconds: float) -> None:
        """Let the run go on."""
        rng = random.Random(f"{self.seed} {self.at}")
        until = self.at + seconds
        level = 1.0
        while self.at < until:
            if int(self.at) % 60 == 0:
                level = 1.0 + self.drift * rng.uniform(-1, 1)
            steps, frames = self.pace(adapter.operation)
            self.at += TICK_S
            self.env_steps += TICK_S * level * steps * rng.uniform(1 - self.noise, 1 + self.noise)
            made = TICK_S * level * frames * rng.uniform(1 - self.noise, 1 + self.noise)
            self.frames += made
            self.updates += made / adapter.operation.batch_size
            wanted = adapter.wanted
            ready = wanted is None or self.at - self.compiled_at.setdefault(wanted, self.at) >= self.compile_s
            counts = (self.at, int(self.env_steps), int(self.updates), int(self.frames))
            if wanted in self.broken or adapter.operation.batch_size in self.broken:
                lines = adapter.refuse("out of memory")
            else:
                lines = adapter.look(Seen(*counts, settled=True, ready=ready))
            self.log += [(self.at, line) for line in lines]
            if not self.history or self.history[-1][1] != adapter.chosen:
                self.history.append((self.at, adapter.chosen))

    def best(self, batches: list[int], uses: list[float]) -> Operation:
        """What it should come to."""
        size = knee({size: self.pace(Operation(size, uses[-1]))[1] for size in batches})
        return Operation(size, knee({count: self.pace(Operation(size, count))[1] for count in uses}))


def adapter(start: int = 256, least: float = 1.0, largest: int = 16_384) -> tuple[Adaptation, list[int], list[float]]:
    batches, counts = batch_sizes(largest), use_counts(least)
    return Adaptation(Operation(start, counts[-1]), batches=batches, uses=counts), batches, counts


def near(found: Operation, machine: Machine, batches: list[int], uses: list[float]) -> None:
    """Both knees within a step of the ladder; the learner loses little, and samplers wait for no more than that."""
    best = machine.best(batches, uses)
    assert abs(batches.index(found.batch_size) - batches.index(best.batch_size)) <= 1
    assert abs(uses.index(found.row_uses) - uses.index(best.row_uses)) <= 1
    alone = max(machine.pace(Operation(size, uses[-1]))[1] for size in batches)
    assert machine.pace(found)[1] >= 0.7 * alone


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    "machine",
    [
        {"overhead_s": 1e-3, "frame_s": 1e-5},  # a small CPU: the knee is near 1,024
        {"overhead_s": 3e-4, "frame_s": 3e-8},  # a card: the largest is best
        {"overhead_s": 1e-6, "frame_s": 1e-5},  # large batches gain nothing
        {"cores": 1.0},
        {"cores": 64.0, "envs_per_core": 4},
    ],
)
def test_it_comes_to_the_knee_and_shares_the_cores_and_stays_there(machine: dict[str, float], seed: int) -> None:
    plant = Machine(seed=seed, **machine)  # type: ignore[arg-type]
    chooser, batches, uses = adapter()
    plant.run(chooser, 3600)
    near(chooser.chosen, plant, batches, uses)
    settled = len(plant.history)
    plant.run(chooser, 4 * 3600)
    near(chooser.chosen, plant, batches, uses)
    assert len(plant.history) - settled <= 2, plant.history


@pytest.mark.parametrize("seed", range(3))
def test_it_never_swings_between_two_settings_that_are_as_good(seed: int) -> None:
    plant = Machine(seed=seed, noise=0.3, overhead_s=2.56e-3 * 0.9 / 0.2, frame_s=1e-5, drift=0.5)
    chooser, _, _ = adapter()
    plant.run(chooser, 12 * 3600)
    assert len(plant.history) <= 8, plant.history
    assert len([at for at, _ in plant.history if at > 4 * 3600]) <= 2, plant.history


def test_it_follows_when_the_machine_changes() -> None:
    plant = Machine(cores=9.0, envs_per_core=1, noise=0.02)
    chooser, batches, uses = adapter()
    plant.run(chooser, 3600)
    near(chooser.chosen, plant, batches, uses)
    alone = chooser.chosen
    assert alone.row_uses == 1.0, "a core for everybody"
    plant.busy = 7.0
    plant.run(chooser, 7200)
    near(chooser.chosen, plant, batches, uses)
    assert chooser.chosen.row_uses > 1.0, "the learner keeps its core"
    plant.busy, plant.overhead_s = 0.0, 3e-2  # an update became expensive: larger batches pay now
    plant.run(chooser, 4 * 3600)
    near(chooser.chosen, plant, batches, uses)
    assert chooser.chosen.batch_size > alone.batch_size


def test_what_does_not_work_is_left_out_and_said() -> None:
    plant = Machine(overhead_s=3e-4, frame_s=3e-8, broken=frozenset({4096}))
    chooser, _, _ = adapter()
    plant.run(chooser, 7200)
    assert chooser.chosen.batch_size == 2048
    refused = [line for _, line in plant.log if "cannot be used: out of memory" in line]
    assert len(refused) == 1
    assert "4096" in refused[0]


def test_batches_wait_for_rows_and_for_the_compiler() -> None:
    plant = Machine(env_s=0.1, envs=1, compile_s=60.0)
    chooser, _, _ = adapter()
    tried: list[tuple[float, int]] = []
    for _ in range(6000):
        plant.run(chooser, TICK_S)
        size = chooser.operation.batch_size
        if size != 256 and (not tried or tried[-1][1] != size):
            tried.append((plant.at, size))
            assert plant.env_steps >= adaptation.ROWS_PER_BATCH * size * 0.99
            assert plant.at - plant.compiled_at[size] >= 60.0
    assert tried


@pytest.mark.parametrize("card", [False, True])
def test_a_run_has_its_feet_before_it_compares_and_tries_a_tenth_of_the_time(card: bool) -> None:
    """It compared from the first second on: what Pendulum-v1 needs 10 s for took 28, with half of the updates."""
    plant = Machine(overhead_s=3e-4, frame_s=3e-8 if card else 1e-5, compile_s=0.0)
    chooser, _, _ = adapter()
    tried = 0.0
    while plant.at < 3600:
        before = plant.at
        plant.run(chooser, TICK_S)
        tried += (plant.at - before) * (chooser.operation != chooser.chosen)
        assert plant.at > 60 or tried == 0
        assert tried <= adaptation.TRIED * plant.at + 5.0
    assert plant.history[-1][1] != plant.history[0][1]


def test_changes_say_why_and_what_came_of_them() -> None:
    plant = Machine(overhead_s=1e-3, frame_s=1e-5, noise=0.0, drift=0.0)
    chooser, _, _ = adapter()
    plant.run(chooser, 1200)
    change = next(line for _, line in plant.log if " -> " in line)
    assert change.startswith("batch size: 256 -> 1024, the smallest with 90% of the most frames/s")
    assert "frames/s become " in change
    assert all(operation.batch_size != 256 for _, operation in plant.history[1:])


@pytest.mark.parametrize("least", [0.0, 2.0, 1000.0])
def test_rows_are_never_used_less_often_than_the_user_wants(least: float) -> None:
    plant = Machine(cores=64.0)
    chooser, _, _ = adapter(least=least)
    for _ in range(1000):
        plant.run(chooser, TICK_S)
        assert chooser.operation.row_uses >= least
    plant.run(chooser, 3600)
    assert chooser.chosen.row_uses == least


@pytest.mark.parametrize(
    ("frames", "now", "margin", "wanted"),
    [
        ({256: 1.0, 512: 1.05}, None, 1.0, 256),
        ({256: 1.0, 512: 1.2, 1024: 1.25}, None, 1.0, 512),
        ({256: 0.88, 512: 1.0}, 256, 1.05, 256),  # misses by less than the margin
        ({256: 0.84, 512: 1.0}, 256, 1.05, 512),
        ({256: 0.92, 512: 1.0}, 512, 1.05, 512),  # has it, but without enough to spare
        ({256: 0.95, 512: 1.0}, 512, 1.05, 256),
    ],
)
def test_the_knee(frames: dict[int, float], now: int | None, margin: float, wanted: int) -> None:
    assert knee(frames, now, margin) == wanted


def test_ladders() -> None:
    assert batch_sizes(100) == [256]
    assert batch_sizes(2000) == [256, 512, 1024]
    assert batch_sizes(10**9)[-1] == adaptation.LARGEST_BATCH
    assert use_counts(1.0) == [1, 4, 16, 64, 256]
    assert (use_counts(3.0), use_counts(0.0)) == ([3, 12, 48, 192, 768], [0, 1, 4, 16, 64, 256])
    assert use_counts(300.0) == [300]
