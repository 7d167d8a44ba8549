"""Throughput mode in a learner: one state under updates of several batch sizes."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from rlz._native import RUNNING
from rlz.learning import adaptation
from rlz.learning.engine import Engine
from rlz.records.checkpoint import newest_checkpoint
from rlz.transport.stats import Stat
from rlz.workers import replay_updates
from rlz.workers import throughput as throughput_module
from rlz.workers.learner import Learner
from support.learner import Run, config


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows of one update, no pauses."""
    short = {"SETTLE_S": 0.0, "WINDOW_S": 0.0, "WINDOW_UPDATES": 1, "PAUSE_S": 0.0, "LONGEST_PAUSE_S": 0.0}
    for name, value in {**short, "ROUNDS": 1, "ROWS_PER_BATCH": 0, "TRIED": 10.0}.items():
        monkeypatch.setattr(adaptation, name, value)
    monkeypatch.setattr(throughput_module, "ADAPT_S", 0.0)


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    said: list[str] = []
    for module in (replay_updates, throughput_module):
        monkeypatch.setattr(module, "notice", said.append)
    return said


def throughput(**values: Any) -> Any:
    free = {"replay_ratio": "free", "ratio_slack": None, "batch_size": "auto", "total_timesteps": 10**6}
    return config(**{**free, "buffer_size": 2048, "num_envs": 4, "threads": 1, **values})


def updates(learner: Learner) -> Any:
    return learner._updates


def chooser(learner: Learner) -> adaptation.Adaptation:
    return updates(learner)._throughput.adaptation  # type: ignore[no-any-return]


def go(run: Run, learner: Learner, count: int) -> set[int]:
    """Batch sizes that were used."""
    used = set()
    for _ in range(count):
        assert learner.step(None)
        run.sample(1)
        used.add(updates(learner).batch_size)
    return used


@pytest.mark.parametrize("prioritized", [False, True])
def test_one_state_goes_on_under_updates_of_every_size(
    tmp_path: Path, lines: list[str], monkeypatch: pytest.MonkeyPatch, prioritized: bool
) -> None:
    run = Run(tmp_path, throughput(prioritized=prioritized))
    learner = run.learner()
    seen: list[int] = []
    update = Engine.update

    def counted(self: Engine, batch: Any, rate: float) -> Any:
        seen.append(len(batch.reward))
        assert rate == pytest.approx(3e-4 * min((seen[-1] / 256) ** 0.5, 4.0))
        return update(self, batch, rate)

    monkeypatch.setattr(Engine, "update", counted)
    learner.start()
    run.sample(50)
    used = go(run, learner, 200)
    assert {256, 512} <= used <= {256, 512, 1024, 2048}  # no more rows than the buffer has
    assert len(seen) == 200 == int(learner.state_dict()["updates"]) == run.streams.limiter.updates
    learner._flush(0.0)
    row = run.streams.stats.read()[0]
    assert (row[Stat.FRAMES], row[Stat.UPDATES]) == (sum(seen), 200)
    assert row[Stat.BATCH_SIZE] == updates(learner).batch_size
    assert any(line.startswith("by turns, to compare them: batch size 256") for line in lines)
    assert any(line.startswith("batch size") and "frames/s" in line for line in lines)
    run.streams.limiter.stop()
    while learner.step(None):
        pass
    learner.close()
    saved = newest_checkpoint(tmp_path)
    chosen = chooser(learner).chosen
    assert (saved.extra["batch_size"], saved.extra["row_uses"]) == (chosen.batch_size, chosen.row_uses)
    assert all(torch.isfinite(tensor).all() for tensor in learner.state_dict().values())


def test_a_resumed_run_goes_on_with_what_it_had_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(tmp_path, throughput())
    learner = run.learner()
    chooser(learner)._base = chooser(learner).operation = adaptation.Operation(1024, 16.0)
    learner.start()
    learner._saving.wait()
    learner.close()
    saved = newest_checkpoint(tmp_path)
    other = Run(tmp_path, throughput())
    resumed = other.learner(resume=str(saved.path), incarnation=1)
    resumed.start()
    assert updates(resumed).batch_size == 1024
    assert updates(resumed).allowance is not None
    assert updates(resumed).allowance.uses == 16.0
    resumed.close()


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4503599627370496 bytes"),
        MemoryError("Unable to allocate 1.00 PiB"),
    ],
)
def test_a_size_without_memory_is_given_up_and_the_run_goes_on(
    tmp_path: Path, lines: list[str], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    run = Run(tmp_path, throughput())
    learner = run.learner()
    update = Engine.update

    def short_of_memory(self: Engine, batch: Any, rate: float) -> Any:
        if len(batch.reward) == 512:
            raise error
        return update(self, batch, rate)

    monkeypatch.setattr(Engine, "update", short_of_memory)
    learner.start()
    run.sample(50)
    go(run, learner, 60)
    said = [line for line in lines if "cannot be used" in line]
    assert len(said) == 1
    assert said[0].startswith(f"batch size 512 with 256 uses of each row cannot be used: {type(error).__name__}: ")
    assert (updates(learner).batch_size, set(updates(learner).trainers)) == (256, {256}), (
        "what cannot be used keeps no memory"
    )
    assert run.streams.limiter.state == RUNNING
    learner.close()


def test_memory_that_runs_out_in_the_other_of_two_sizes_leaves_the_one_in_use(
    tmp_path: Path, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path, throughput())
    learner = run.learner()
    update, failed = Engine.update, []

    def short_of_memory(self: Engine, batch: Any, rate: float) -> Any:
        if len(batch.reward) == 512 and 1024 in updates(learner).trainers and not failed:
            failed.append(True)
            raise MemoryError("both are too much")
        return update(self, batch, rate)

    monkeypatch.setattr(Engine, "update", short_of_memory)
    learner.start()
    run.sample(50)
    go(run, learner, 90)
    assert failed
    assert any("both are too much" in line for line in lines)
    assert updates(learner).trainer is updates(learner).trainers[updates(learner).batch_size]
    assert 1024 not in updates(learner).trainers
    learner.close()


def test_another_error_ends_the_run_also_while_sizes_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path, throughput())
    learner = run.learner()
    update = Engine.update

    def broken(self: Engine, batch: Any, rate: float) -> Any:
        if len(batch.reward) == 512:
            raise RuntimeError("shapes differ")
        return update(self, batch, rate)

    monkeypatch.setattr(Engine, "update", broken)
    learner.start()
    run.sample(50)
    with pytest.raises(RuntimeError, match="shapes differ"):
        go(run, learner, 60)
    learner.close()


def test_too_little_memory_for_what_is_in_use_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(tmp_path, throughput(batch_size=256))

    def short_of_memory(self: Engine, batch: Any, rate: float) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    learner = run.learner()
    monkeypatch.setattr(Engine, "update", short_of_memory)
    learner.start()
    run.sample(50)
    with pytest.raises(torch.OutOfMemoryError):
        learner.step(None)
    learner.close()


@pytest.mark.parametrize(("uses", "batch_size"), [(1.0, 64), (4.0, 64), (512.0, 64)])
def test_samplers_of_a_free_run_wait_until_rows_were_learned_from(tmp_path: Path, uses: float, batch_size: int) -> None:
    run = Run(tmp_path, throughput(batch_size=batch_size, min_replay_ratio=uses, learning_starts=10))
    learner = run.learner()
    learner.start()
    limiter = run.streams.limiter
    run.sample(10_000)
    margin = max(4, math.ceil(2 * batch_size / uses))
    assert limiter.env_steps == 10 + margin, "no more before the first update"
    for _ in range(30):
        learner.step(None)
        run.sample(10_000)
        trained_on = limiter.env_steps - 10
        assert uses * (trained_on - margin) <= limiter.updates * batch_size < uses * (trained_on - margin + 1)
    learner.step(None)
    learner._flush(0.0)
    assert run.streams.stats.read()[0][Stat.ROW_USES] == uses
    # What slow samplers did not take is not owed to them.
    for _ in range(200):
        learner.step(None)
    before = limiter.env_steps
    run.sample(10_000)
    assert limiter.env_steps <= before + margin
    learner.close()


def test_samplers_that_never_wait(tmp_path: Path) -> None:
    run = Run(tmp_path, throughput(batch_size=64, min_replay_ratio=0.0, learning_starts=10))
    learner = run.learner()
    learner.start()
    run.sample(3000)
    assert run.streams.limiter.env_steps == 3000
    learner.close()
