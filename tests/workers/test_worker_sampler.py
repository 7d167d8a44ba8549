"""What a sampler writes, for environments whose every number is known."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlz._native import FLAG_FIRST, FLAG_TERMINATED, FLAG_TRUNCATED
from rlz.errors import EnvError, NonFiniteError
from rlz.transport.stats import Stat, Waiting
from rlz.workers.sampler import Sampler
from support.harness import Run, config

Make = Callable[..., tuple[Run, Sampler]]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    runs: list[Run] = []

    def build(**values: Any) -> tuple[Run, Sampler]:
        run = Run(config(**values), tmp_path)
        runs.append(run)
        return run, Sampler(run.spec("sampler"), run.streams)

    yield build
    for run in runs:
        run.streams.close()


def drive(run: Run, sampler: Sampler, *, publish: bool = True) -> None:
    if publish:
        run.publish()
    sampler.start()
    while sampler.step(0.0):
        pass
    sampler.close()


def flags(meta: Any) -> list[int]:
    return [int(word) & 0xFFFF for word in meta]


@pytest.mark.parametrize(("ending", "flag"), [("terminate_after", FLAG_TERMINATED), ("truncate_after", FLAG_TRUNCATED)])
def test_rows_keep_true_final_observations_and_tell_ends_apart(make: Make, ending: str, flag: int) -> None:
    run, sampler = make(total_timesteps=11, env_kwargs={ending: 4}, gamma=0.9)
    drive(run, sampler)
    rows, meta = run.rows()
    steps = [1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3]
    assert rows["reward"].tolist() == steps
    assert rows["next_obs"][:, 1].tolist() == steps
    assert rows["obs"][:, 1].tolist() == [step - 1 for step in steps]
    assert rows["next_obs"][:, 0].tolist() == [1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3]
    assert rows["obs"][:, 0].tolist() == rows["next_obs"][:, 0].tolist()
    gamma = np.float32(0.9)
    at_end = 0.0 if ending == "terminate_after" else gamma
    assert rows["discount"].tolist() == [at_end if step == 4 else gamma for step in steps]
    assert flags(meta) == [FLAG_FIRST if step == 1 else flag if step == 4 else 0 for step in steps]


def test_terminated_and_truncated_at_once_does_not_bootstrap(make: Make) -> None:
    run, sampler = make(total_timesteps=3, env_kwargs={"terminate_after": 1, "truncate_after": 1})
    drive(run, sampler)
    rows, meta = run.rows()
    assert rows["discount"].tolist() == [0.0, 0.0, 0.0]
    assert flags(meta) == [FLAG_FIRST | FLAG_TERMINATED | FLAG_TRUNCATED] * 3


def test_the_action_in_the_row_is_the_one_the_environment_saw(make: Make, tmp_path: Path) -> None:
    log = tmp_path / "log"
    run, sampler = make(total_timesteps=50, learning_starts=25, env_kwargs={"log": str(log)})
    run.publish(scale=1.0)
    drive(run, sampler, publish=False)
    rows, _ = run.rows()
    seen = np.array([line.split()[1:] for line in log.read_text().splitlines()], np.float64)
    low, high = np.array([-1.0, 0.0]), np.array([3.0, 10.0])
    np.testing.assert_allclose(low + (rows["action"] + 1) / 2 * (high - low), seen, atol=1e-5)
    np.testing.assert_allclose(rows["next_obs"][:, 2], seen[:, 0], atol=1e-6)
    assert np.abs(rows["action"]).max() <= 1.0


@pytest.mark.parametrize("envs", [1, 3])
def test_exactly_the_first_steps_are_random_and_the_total_is_exact(make: Make, envs: int) -> None:
    run, sampler = make(total_timesteps=40, learning_starts=17, num_envs=envs)
    drive(run, sampler)
    assert run.limiter.env_steps == 40
    assert sum(run.replay.committed()) == 40
    versions = np.concatenate([run.rows(lane)[1] >> np.uint64(32) for lane in range(envs)])
    assert int((versions == 0).sum()) == 17  # uniform: no parameters were used
    actions = np.concatenate([run.rows(lane)[0]["action"] for lane in range(envs)])
    assert len(np.unique(actions[versions == 0])) == 34
    assert run.stat("sampler", Stat.ENV_STEPS) == 40
    assert run.stat("sampler", Stat.POLICY_LAG_COUNT) == 23


def test_warm_up_is_uniform_over_the_box(make: Make) -> None:
    run, sampler = make(total_timesteps=4000, learning_starts=4000, buffer_size=4000)
    drive(run, sampler)
    actions = run.rows()[0]["action"]
    assert abs(actions.mean()) < 0.03
    assert abs(actions.var() - 1 / 3) < 0.02
    assert actions.min() < -0.99
    assert actions.max() > 0.99


def test_after_the_warm_up_a_sampler_waits_for_parameters_and_says_so(make: Make) -> None:
    run, sampler = make(total_timesteps=20, learning_starts=5)
    sampler.start()
    for _ in range(8):
        assert sampler.step(0.0)
    assert run.limiter.env_steps == 5
    assert sampler.step(0.05)
    assert run.stat("sampler", Stat.WAIT_PARAMETERS_S) > 0.03
    assert run.stat("sampler", Stat.WAITING_FOR) == 0
    run.publish()
    assert sampler.step(0.0)
    assert run.limiter.env_steps == 6


def test_a_stop_ends_a_sampler_that_waits_for_parameters(make: Make) -> None:
    run, sampler = make(total_timesteps=20, learning_starts=0)
    sampler.start()
    run.limiter.stop()
    assert not sampler.step(None)
    assert run.limiter.env_steps == 0


def test_the_replay_ratio_holds_a_sampler_and_the_wait_is_counted(make: Make) -> None:
    run, sampler = make(total_timesteps=100, learning_starts=10, replay_ratio=1.0, ratio_slack=2)
    run.publish()
    sampler.start()
    for _ in range(50):
        sampler.step(0.0)
    assert run.limiter.env_steps == 12
    sampler.step(0.05)
    assert run.stat("sampler", Stat.WAIT_LIMITER_S) > 0.03
    assert int(Waiting.LIMITER) > 0


def test_policy_lag_is_what_was_published_meanwhile(make: Make) -> None:
    run, sampler = make(total_timesteps=10, learning_starts=0, num_envs=2)
    run.publish()
    sampler.start()
    act = sampler._policy

    class Publishing:
        """Publishes twice between the choice of an action and its step."""

        version = 1

        def refresh(self, subscriber: Any) -> int:
            return act.refresh(subscriber)

        def act(self, obs: Any, actions: Any, **more: Any) -> None:
            act.act(obs, actions)
            run.publish()
            run.publish()

        def uniform(self, actions: Any) -> None:
            act.uniform(actions)

    sampler._policy = Publishing()  # type: ignore[assignment]
    for _ in range(3):
        sampler.step(0.0)
    sampler.close()
    assert run.stat("sampler", Stat.POLICY_LAG_SUM) == 12
    assert run.stat("sampler", Stat.POLICY_LAG_COUNT) == 6
    assert (run.rows()[1] >> np.uint64(32)).tolist() == [1, 3, 5]


def test_episodes_are_reported(make: Make) -> None:
    run, sampler = make(total_timesteps=10, env_kwargs={"truncate_after": 4})
    drive(run, sampler)
    assert run.stat("sampler", Stat.EPISODES) == 2
    assert run.stat("sampler", Stat.RETURN_SUM) == 20
    assert run.stat("sampler", Stat.LENGTH_SUM) == 8
    _, events = run.streams.stats.events(2, 0)
    assert events[:, :4].tolist() == [[10, 4, 4, 0], [10, 4, 8, 0]]


def seeds_of(log: Path) -> list[str]:
    return [line.split()[0] for line in log.read_text().splitlines()]


def test_the_time_of_resets_is_counted_apart_from_steps(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    run, sampler = make(total_timesteps=9, env_kwargs={"truncate_after": 4})
    environment = sampler._envs[0]
    reset = environment.reset

    def slow(*arguments: Any) -> None:
        time.sleep(0.02)
        reset(*arguments)

    monkeypatch.setattr(environment, "reset", slow)
    drive(run, sampler)
    counted = run.streams.stats.read()[2][Stat.RESET_S]
    assert counted >= 2 * 0.02  # the first one, at the start, ends no episode


def test_only_the_first_reset_of_an_incarnation_is_seeded_and_each_differently(make: Make, tmp_path: Path) -> None:
    log = tmp_path / "log"
    values = {"total_timesteps": 12, "num_envs": 2, "env_kwargs": {"truncate_after": 2, "log": str(log)}}
    run, sampler = make(**values)
    drive(run, sampler)
    first = seeds_of(log)
    assert len(set(first)) == 3  # two seeds, and None for every later reset
    assert all(int(seed) < 2**30 for seed in set(first) - {"None"})
    log.unlink()
    run, unused = make(**values)
    unused.close()
    drive(run, Sampler(run.spec("sampler", worker_id=9, incarnation=1), run.streams))
    assert set(first) & set(seeds_of(log)) == {"None"}


def test_a_new_incarnation_draws_other_actions_and_the_same_one_the_same(tmp_path: Path) -> None:
    actions = []
    for incarnation in (0, 0, 1):
        run = Run(config(total_timesteps=10), tmp_path)
        drive(run, Sampler(run.spec("sampler", incarnation=incarnation), run.streams))
        actions.append(run.rows()[0]["action"])
        run.streams.close()
    assert (actions[0] == actions[1]).all()
    assert (actions[0] != actions[2]).all()


def test_integer_observations_and_shapes_are_kept(make: Make) -> None:
    run, sampler = make(env="Pixels-v0", total_timesteps=6)
    drive(run, sampler)
    rows, _ = run.rows()
    assert rows["obs"].dtype == np.uint8
    assert rows["obs"].shape == (6, 2, 3)
    assert rows["obs"][:, 0, 0].tolist() == [255, 1, 2, 3, 4, 255]
    assert rows["next_obs"][:, 1, 2].tolist() == [1, 2, 3, 4, 5, 1]


@pytest.mark.parametrize(
    ("kwargs", "error", "parts"),
    [
        ({"fail_at": 5}, EnvError, ["Counting-v0", "sampler-0", "step 5", "ValueError: a bug in the environment"]),
        ({"exit_at": 5}, EnvError, ["Counting-v0", "sampler-0", "step 5", "called exit(3)"]),
        ({"fail_in_reset": 2, "truncate_after": 3}, EnvError, ["reset", "the simulator said no"]),
        ({"nan_at": 5}, NonFiniteError, ["Counting-v0", "sampler-0", "step 5", "number 1 is nan"]),
        ({"big_at": 5}, NonFiniteError, ["number 2 is 1e+300", "not a finite float32 number", "scales it"]),
        ({"inf_reward_at": 5}, NonFiniteError, ["reward inf", "step 5"]),
    ],
)
def test_a_bad_environment_is_named_with_step_and_worker(
    make: Make, kwargs: dict[str, Any], error: type[Exception], parts: list[str]
) -> None:
    run, sampler = make(env_kwargs=kwargs)
    with pytest.raises(error) as caught:
        drive(run, sampler)
    for part in parts:
        assert part in str(caught.value)
    expected = 3 if "fail_in_reset" in kwargs else 4
    assert run.replay.committed() == [expected], "the bad transition is not in the buffer"


def test_native_observations_keep_what_float32_rounds(make: Make) -> None:
    run, sampler = make(env_kwargs={"fine_at": 5}, obs_dtype="native", total_timesteps=6)
    drive(run, sampler)
    assert run.rows()[0]["next_obs"][4, 2] == 2**24 + 1


def test_native_observations_that_no_network_can_take_are_refused(make: Make) -> None:
    run, sampler = make(env_kwargs={"big_at": 5}, obs_dtype="native")
    with pytest.raises(NonFiniteError, match="number 2 is 1e\\+300: not a finite float32 number"):
        drive(run, sampler)
    assert run.replay.committed() == [4]


def test_environments_that_draw_from_the_process_repeat_themselves(make: Make) -> None:
    drawn = []
    for seed, incarnation in ((5, 0), (5, 0), (6, 0), (5, 1)):
        run, _ = make(env="Global-v0", total_timesteps=8, learning_starts=100, seed=seed)
        run.streams.reap(3)
        sampler = Sampler(run.spec("sampler", incarnation=incarnation), run.streams)
        drive(run, sampler)
        rows = run.rows()[0]
        drawn.append(np.concatenate([rows["obs"], rows["next_obs"], rows["reward"][:, None]], 1))
    first, again, other, successor = drawn
    assert (first == again).all()
    assert (first != other).all()
    assert (first != successor).all()


def test_an_observation_of_another_shape_is_an_error(make: Make) -> None:
    run, sampler = make(env="WrongShape-v0")
    with pytest.raises(EnvError, match=r"shape \(1,\), not \(3,\)"):
        drive(run, sampler)


def test_a_successor_gets_the_step_that_its_predecessor_left_open(make: Make) -> None:
    run, sampler = make(total_timesteps=30, learning_starts=12)
    sampler.start()
    for _ in range(7):
        sampler.step(0.0)
    tickets = np.zeros(1, np.int64)
    assert run.limiter.acquire_steps([0], tickets, worker=3, timeout=0.0) == 1
    assert tickets[0] == 7  # taken, and its worker dies
    run.streams.reap(3)
    successor = Sampler(run.spec("sampler", worker_id=4, incarnation=1), run.streams)
    drive(run, successor)
    assert run.limiter.env_steps == 30
    rows, meta = run.rows()
    assert flags(meta)[7] == FLAG_FIRST
    assert rows["obs"][7, 1] == 0.0
    assert int((meta >> np.uint64(32) == 0).sum()) == 12


def test_environments_wait_at_the_limit_and_the_warm_up_stays_exact(make: Make) -> None:
    run, sampler = make(total_timesteps=60, learning_starts=17, num_envs=3)
    run.publish()
    run.limiter.set_step_limit(11)
    sampler.start()
    for _ in range(20):
        sampler.step(0.0)
    assert sorted(run.limiter.lane_steps()) == [3, 4, 4]
    run.limiter.set_step_limit(2**64 - 1)
    drive(run, sampler)
    assert run.limiter.env_steps == 60
    assert min(run.limiter.lane_steps()) >= 19
    versions = np.concatenate([run.rows(lane)[1] >> np.uint64(32) for lane in range(3)])
    assert int((versions == 0).sum()) == 17


def test_a_sampler_imports_no_torch_and_stays_small() -> None:
    code = """
import sys
import rlz.workers.sampler, rlz.workers.evaluator, rlz.runtime.controller, rlz.runtime.train, rlz.runtime.evaluate
from rlz.config import run_config
from rlz import envs
env = envs.make(run_config(env="Ant-v4"))
env.reset(seed=1)
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
