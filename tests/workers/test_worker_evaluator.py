"""When the evaluator scores, what it scores, and what it leaves behind."""

import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlz._native import STOPPING
from rlz.records.runs import best_return
from rlz.transport.stats import Stat
from rlz.workers.environment import training_seed
from rlz.workers.evaluation import evaluation_seeds, held_out_seeds
from rlz.workers.evaluator import Evaluator
from support.harness import Run, config

Make = Callable[..., tuple[Run, Evaluator]]
LENGTH = 3


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    runs: list[Run] = []

    def build(**values: Any) -> tuple[Run, Evaluator]:
        defaults = {"total_timesteps": 100, "eval_every": 10, "eval_episodes": 2, "learning_starts": 0}
        kwargs = {"truncate_after": LENGTH, **values.pop("env_kwargs", {})}
        kwargs = {key: value for key, value in kwargs.items() if value is not None}
        run = Run(config(**{**defaults, **values}, env_kwargs=kwargs), tmp_path)
        runs.append(run)
        return run, Evaluator(run.spec("evaluator"), run.streams)

    yield build
    for run in runs:
        run.streams.close()


def advance(run: Run, steps: int) -> None:
    """Count env steps as a sampler would."""
    tickets = np.zeros(1, np.int64)
    for _ in range(steps):
        assert run.limiter.acquire_steps([0], tickets, worker=9, timeout=0.0) == 1
        run.limiter.complete_step(0)


def events(run: Run) -> Any:
    return run.streams.stats.events(1, 0)[1]


def test_it_scores_the_first_version_after_each_multiple_once(make: Make) -> None:
    run, evaluator = make()
    evaluator.start()
    for steps in range(36):
        run.publish(scale=1.0, seed=steps)
        assert evaluator.step(0.0)
        advance(run, 1)
    assert [int(event[1]) for event in events(run)] == [10, 20, 30]
    assert [int(event[0]) for event in events(run)] == [11, 21, 31]  # the version published at that step
    assert run.stat("evaluator", Stat.EVALUATIONS) == 3
    assert run.stat("evaluator", Stat.EVALUATIONS_SKIPPED) == 0
    assert run.stat("evaluator", Stat.EPISODES) == 6
    assert events(run)[0][3:10].tolist() == [6, 0, 6, 6, LENGTH, 0, 2]


def test_what_passes_while_it_is_busy_is_skipped_and_counted(make: Make) -> None:
    run, evaluator = make()
    run.publish(env_steps=12)
    busy = [False]
    play_on = evaluator._may_go_on

    def slow() -> bool:
        if not busy[0]:
            busy[0] = True
            run.publish(env_steps=24)
            run.publish(env_steps=37)
        return play_on()

    evaluator._may_go_on = slow  # type: ignore[method-assign]
    evaluator.step(0.0)
    evaluator.step(0.0)
    assert [int(event[1]) for event in events(run)] == [12]
    assert run.stat("evaluator", Stat.EVALUATIONS_SKIPPED) == 2
    run.publish(env_steps=41)
    evaluator.step(0.0)
    assert [int(event[1]) for event in events(run)] == [12, 41]
    assert [int(event[0]) for event in events(run)] == [1, 4]


def test_evaluations_of_a_free_run_take_a_part_of_the_time_only(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    rests: list[float] = []
    for ratio in ("free", 1.0):
        run, evaluator = make(replay_ratio=ratio)
        seconds = evaluator._rest

        def rest(duration: float, seconds: Callable[[float], None] = seconds, run: Run = run) -> None:
            rests.append(duration)
            run.publish(env_steps=24)
            run.publish(env_steps=37)
            seconds(0.0)

        monkeypatch.setattr(evaluator, "_rest", rest)
        run.publish(env_steps=12)
        evaluator.step(0.0)
        evaluator.step(0.0)
        assert [int(event[1]) for event in events(run)] == [12]
        assert run.stat("evaluator", Stat.EVALUATIONS_SKIPPED) == (2 if ratio == "free" else 0)
        if ratio == "free":
            played = float(events(run)[0][10])
            assert rests == [pytest.approx(9 * played)]
    assert len(rests) == 1


def test_the_end_of_a_run_ends_a_rest(make: Make) -> None:
    run, evaluator = make()
    threading.Timer(0.05, run.limiter.stop).start()
    begin = time.monotonic()
    evaluator._rest(60.0)
    assert time.monotonic() - begin < 30.0
    assert run.limiter.state == STOPPING


def test_the_final_parameters_are_scored_once(make: Make) -> None:
    run, evaluator = make(total_timesteps=20)
    advance(run, 10)
    run.publish()
    assert evaluator.step(0.0)
    advance(run, 10)
    run.publish(seed=1)  # at the last multiple: left to the final evaluation
    assert evaluator.step(0.0)
    assert len(events(run)) == 1
    final = run.publish(seed=2)
    run.limiter.finish()
    assert not evaluator.step(None)
    assert not evaluator.step(None)
    assert [(int(event[0]), int(event[1])) for event in events(run)] == [(1, 10), (final, 20)]


def test_a_stopped_run_gets_no_final_evaluation(make: Make) -> None:
    run, evaluator = make()
    advance(run, 5)
    run.publish()
    run.limiter.stop()
    assert not evaluator.step(None)
    run.limiter.finish()
    assert not evaluator.step(None)
    assert len(events(run)) == 0


def test_a_stop_ends_an_evaluation_in_the_middle(make: Make) -> None:
    run, evaluator = make(eval_episodes=1000)
    run.publish(env_steps=10)
    calls = [0]
    play_on = evaluator._may_go_on

    def count() -> bool:
        calls[0] += 1
        if calls[0] == 5:
            run.limiter.stop()
        return play_on()

    evaluator._may_go_on = count  # type: ignore[method-assign]
    evaluator.step(0.0)
    assert not evaluator.step(None)
    assert calls[0] == 5
    assert len(events(run)) == 0


def test_best_is_written_from_the_very_parameters_that_were_scored(make: Make, tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    run, evaluator = make(env_kwargs={"truncate_after": 0, "terminate_after": 5})
    best = tmp_path / "checkpoints" / "best"
    run.publish(env_steps=10, scale=1.0, seed=1)
    play_on = evaluator._may_go_on

    def publish_meanwhile() -> bool:
        run.publish(env_steps=11, scale=1.0, seed=2)
        return play_on()

    evaluator._may_go_on = publish_meanwhile  # type: ignore[method-assign]
    evaluator.step(0.0)
    description = json.loads((best / "policy.json").read_text())
    assert (description["version"], description["env_steps"]) == (1, 10)
    assert description["evaluation"]["return_mean"] == 15
    size = run.streams.parameters.nbytes // 4
    expected = np.random.default_rng(1).standard_normal(size, np.float32)
    written = np.concatenate([t.reshape(-1) for t in load_file(best / "policy.safetensors").values()])
    assert sorted(written.tolist()) == sorted(expected.tolist())
    # An equal score is no better one.
    run.publish(env_steps=20)
    evaluator.step(0.0)
    assert json.loads((best / "policy.json").read_text())["env_steps"] == 10
    assert [bool(event[11]) for event in events(run)] == [True, False]
    # The policy that was scored last is kept as well, and no other one.
    evaluated = json.loads((best.parent / "evaluated" / "policy.json").read_text())
    assert (evaluated["env_steps"], evaluated["evaluation"]["return_mean"]) == (20, 15)
    run.publish(env_steps=30)
    evaluator.step(0.0)
    assert {path.resolve().name for path in best.parent.iterdir()} == {
        (best.parent / name).resolve().name for name in ("best", "evaluated")
    }


def test_best_can_be_loaded_and_gives_the_same_figures(
    make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import rlz
    from rlz.runtime.evaluate import evaluate

    run, evaluator = make()
    run.publish(env_steps=10, scale=1.0)
    evaluator.step(0.0)
    policy = rlz.load(tmp_path)
    assert policy.env_steps == 10
    assert evaluate(tmp_path, episodes=2) == 0
    assert "return  6.00 +- 0.00 over 2 episodes" in capsys.readouterr().out


def test_an_evaluation_repeats_itself_where_episodes_draw_from_the_process(make: Make) -> None:
    returns = []
    for _ in range(2):
        run, evaluator = make(env="Global-v0", env_kwargs={"truncate_after": None})
        run.publish(env_steps=10, scale=1.0)
        evaluator.step(0.0)
        returns.append(events(run)[0][3:7].tolist())
        random.random()
    assert returns[0] == returns[1]


def test_a_successor_goes_on_where_its_predecessor_was(make: Make) -> None:
    run, evaluator = make()
    run.publish(env_steps=10)
    evaluator.step(0.0)
    run.streams.reap(3)
    successor = Evaluator(run.spec("evaluator", worker_id=4, incarnation=1), run.streams)
    successor.step(0.0)
    assert len(events(run)) == 1
    run.publish(env_steps=20)
    successor.step(0.0)
    assert [int(event[1]) for event in events(run)] == [10, 20]
    assert bool(events(run)[1][11]) is False, "the best so far was remembered"


def test_evaluation_seeds_are_a_fixed_list_apart_from_training() -> None:
    seeds = evaluation_seeds(100)
    assert seeds == evaluation_seeds(200)[:100]
    assert len(set(seeds)) == 100
    training = {training_seed(np.random.SeedSequence(i)) for i in range(1000)}
    assert max(training) < 2**30 <= min(seeds)


def test_held_out_seeds_are_those_of_no_evaluation_and_no_training() -> None:
    seeds = held_out_seeds(10_000)
    assert seeds[:100] == held_out_seeds(100)
    assert len({*seeds, *evaluation_seeds(10_000)}) == 20_000
    assert 2**30 <= min(seeds) <= max(seeds) < 2**31


def test_the_best_policy_is_scored_on_held_out_starts_at_the_end(
    make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from rlz.runtime.evaluate import evaluate

    run, evaluator = make(env="Pendulum-v1", env_kwargs={"truncate_after": None}, total_timesteps=20)
    advance(run, 10)
    run.publish(scale=0.3, seed=1)
    evaluator.step(0.0)
    assert best_return(tmp_path, "held_out") is None
    advance(run, 10)
    run.publish(scale=0.3, seed=2)
    run.limiter.finish()
    assert not evaluator.step(None)
    chosen, held_out = best_return(tmp_path), best_return(tmp_path, "held_out")
    assert None is not chosen != held_out is not None
    assert chosen == max(event[3] for event in events(run))
    for seeds, expected in (("training", chosen), ("held-out", held_out)):
        assert evaluate(tmp_path, episodes=2, seeds=seeds) == 0
        assert f"return  {expected:.2f} " in capsys.readouterr().out
    assert len(events(run)) == 2, "no evaluation of its own"


def test_a_disk_that_is_full_does_not_end_the_evaluator(
    make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, evaluator = make()
    (tmp_path / "checkpoints").write_text("in the way")
    run.publish(env_steps=10)
    evaluator.step(0.0)
    assert len(events(run)) == 1
    assert "best could not be written" in capsys.readouterr().err
