"""Going on with a run: N + N steps are 2N steps, and what cannot go on is refused with both sides."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from rlz.config import read_config, run_config
from rlz.errors import CheckpointError, ConfigError
from rlz.learning.engine import Engine
from rlz.options.names import as_typed
from rlz.records.checkpoint import load_checkpoint, newest_checkpoint, step_folders
from rlz.records.runs import read_run
from rlz.runtime.resume import changes, resume
from rlz.runtime.train import train
from rlz.transport import Streams
from rlz.transport.stats import Stat

DQN: dict[str, Any] = {"algo": "dqn", "replay_ratio": 1.0, "target_every": 40, "double": True}
FAKE = {"learner": "support.fake_learner:Learner"}


def run(folder: Path, name: str, steps: int, workers: Any = FAKE, **values: Any) -> Path:
    defaults: dict[str, Any] = {
        "env": "support.fake_envs:Counting-v0",
        "env_kwargs": {"truncate_after": 20},
        "mode": "serial",
        "total_timesteps": steps,
        "learning_starts": 50,
        "batch_size": 16,
        "buffer_size": 150,
        "hidden": (8,),
        "eval_every": 0,
        "device": "cpu",
        "compile": False,
        "runs_dir": str(folder),
        "name": name,
    }
    assert train(run_config(**{**defaults, **values}), quiet=True, workers=workers) == 0
    return folder / name


@pytest.mark.parametrize(
    ("env", "options"),
    [
        ("Pendulum-v1", {}),
        ("Ant-v4", {}),
        ("Pendulum-v1", {"algo": "td3", "policy_delay": 4}),  # 70 updates at the cut: in the middle of a cycle
        ("Pendulum-v1", {"algo": "ddpg"}),
        ("Pendulum-v1", {"normalize_obs": True, "normalize_reward": True}),
        # Without schedules, which follow the length that a run was given.
        ("CartPole-v1", {**DQN, "exploration_fraction": 0.0, "prioritized": True, "priority_beta": 1.0}),
        (
            "CartPole-v1",
            {**DQN, "exploration_fraction": 0.0, "normalize_obs": True, "normalize_reward": True, "env_groups": 2},
        ),
        ("Pendulum-v1", {"inference": "central", "env_groups": 2}),
        ("Pendulum-v1", {"device": "auto", "devices": ("cpu", "cpu"), "updates_per_launch": 8}),
    ],
)
def test_n_and_n_steps_are_two_n_steps_bit_for_bit(tmp_path: Path, env: str, options: dict[str, Any]) -> None:
    values: dict[str, Any] = {"workers": None, "env": env, "env_kwargs": {}, "num_envs": 2, **options}
    whole = newest_checkpoint(run(tmp_path, "whole", 240, **values))
    parts = run(tmp_path, "parts", 120, **values)
    assert resume(parts, {"total_timesteps": 240}, quiet=True) == 0
    resumed = newest_checkpoint(parts)
    assert (resumed.env_steps, resumed.updates) == (whole.env_steps, whole.updates) == (240, 190)
    assert resumed.learner.keys() == whole.learner.keys()
    for name, tensor in whole.learner.items():
        assert tensor.tobytes() == resumed.learner[name].tobytes(), name
    assert resumed.rng == whole.rng
    assert resumed.workers == whole.workers
    assert resumed.version == whole.version == 191


@pytest.mark.parametrize("ratio", [0.5, 1.0, 4.0])
def test_without_its_rows_a_run_makes_no_update_before_the_buffer_has_as_many_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ratio: float
) -> None:
    rows: list[int] = []
    update = Engine.update

    def counted(self: Engine, batch: Any, rate: float) -> Any:
        rows.append(streams[-1].replay.committed()[0])
        return update(self, batch, rate)

    streams: list[Streams] = []
    create = Streams.create.__func__  # type: ignore[attr-defined]
    monkeypatch.setattr(
        Streams, "create", classmethod(lambda cls, *a, **k: streams.append(create(cls, *a, **k)) or streams[-1])
    )
    monkeypatch.setattr(Engine, "update", counted)
    path = run(
        tmp_path, "run", 120, workers=None, env="Pendulum-v1", env_kwargs={}, save_replay=False, replay_ratio=ratio,
        ratio_slack=100.0,
    )  # fmt: skip
    assert len(rows) == ratio * 70
    rows.clear()
    assert resume(path, {"total_timesteps": 240}, quiet=True) == 0
    assert rows[0] >= 50, "as many as --learning-starts"
    assert len(rows) == ratio * 70, "170 to 240: those of 120 to 170 are not made up"
    assert "updates go on at 170 env steps" in (path / "logs" / "events.log").read_text()
    rows.clear()
    # Stopped while it waited, or with its buffer: nothing is made up either.
    assert resume(path, {"total_timesteps": 260, "save_replay": True}, quiet=True) == 0
    assert len(rows) == 0
    assert resume(path, {"total_timesteps": 320}, quiet=True) == 0
    assert len(rows) == ratio * 30, "290 to 320"
    assert rows[0] >= 50


@pytest.mark.parametrize("values", [{"num_envs": 3, "buffer_size": 100}, {"n_step_return": 3, "num_envs": 2}])
def test_a_run_with_its_rows_is_not_held(tmp_path: Path, values: dict[str, Any]) -> None:
    path = run(tmp_path, "run", 120, **values)
    assert resume(path, {"total_timesteps": 240}, quiet=True, workers=FAKE) == 0
    assert newest_checkpoint(path).updates == 190
    assert "updates go on" not in (path / "logs" / "events.log").read_text()


def test_a_run_that_died_early_begins_again_with_the_same_bits(tmp_path: Path) -> None:
    values: dict[str, Any] = {"workers": None, "env": "Pendulum-v1", "env_kwargs": {}}
    whole = newest_checkpoint(run(tmp_path, "whole", 100, **values))
    died = run(tmp_path, "died", 80, **values)
    first, last = step_folders(died / "checkpoints")
    shutil.rmtree(last)
    assert load_checkpoint(first).env_steps == 0, "written before anything else"
    assert resume(died, {"total_timesteps": 100}, quiet=True) == 0
    resumed = newest_checkpoint(died)
    assert len(step_folders(died / "checkpoints")) == 2, "a resumed run does not write its checkpoint once more"
    for name, tensor in whole.learner.items():
        assert tensor.tobytes() == resumed.learner[name].tobytes(), name
    assert resumed.workers == whole.workers


def test_open_windows_and_priorities_go_on(tmp_path: Path) -> None:
    # A beta that does not rise: the run of N steps would raise it twice as fast as the one of 2N.
    values: dict[str, Any] = {
        "workers": None, "env": "Pendulum-v1", "env_kwargs": {}, "num_envs": 2, "buffer_size": 1000,
        "prioritized": True, "n_step_return": 3, "priority_beta": 1.0,
    }  # fmt: skip
    whole = newest_checkpoint(run(tmp_path, "whole", 240, **values))
    parts = run(tmp_path, "parts", 120, **values)
    first = newest_checkpoint(parts)
    assert first.replay is not None
    assert first.replay.committed == [58, 58], "two steps of each lane wait for their windows"
    assert resume(parts, {"total_timesteps": 240}, quiet=True) == 0
    resumed = newest_checkpoint(parts)
    for name, tensor in whole.learner.items():
        assert tensor.tobytes() == resumed.learner[name].tobytes(), name
    assert whole.priorities is not None
    assert resumed.priorities is not None
    for name, array in whole.priorities.items():
        assert array.tobytes() == resumed.priorities[name].tobytes(), name
    assert len(set(whole.priorities["weights"].tolist())) > 50
    assert resumed.rng == whole.rng
    assert resumed.workers == whole.workers, "open windows, with the parameter versions of their steps"
    assert resumed.workers.keys() == {"sampler-0"}
    # With other lanes the rows keep their priorities.
    more = {"total_timesteps": 250, "num_envs": 3, "samplers": 1}
    assert resume(parts, more, quiet=True) == 0
    weights = newest_checkpoint(parts).priorities
    assert weights is not None
    assert len(set(weights["weights"].tolist()) & set(whole.priorities["weights"].tolist())) > 20


def test_prioritized_draws_go_on_when_the_buffer_has_gone_round(tmp_path: Path) -> None:
    values: dict[str, Any] = {
        "workers": None, "env": "Pendulum-v1", "env_kwargs": {}, "num_envs": 2, "buffer_size": 70,
        "prioritized": True, "priority_beta": 1.0,
    }  # fmt: skip
    whole = newest_checkpoint(run(tmp_path, "whole", 400, **values))
    parts = run(tmp_path, "parts", 200, **values)
    first = newest_checkpoint(parts)
    assert first.replay is not None
    assert first.priorities is not None
    assert min(first.replay.committed) > 70, "the rows have gone round, and lie elsewhere in the new buffer"
    assert resume(parts, {"total_timesteps": 400}, quiet=True) == 0
    resumed = newest_checkpoint(parts)
    assert whole.priorities is not None
    assert resumed.priorities is not None
    for name in ("positions", "counts", "weights", "largest"):
        assert whole.priorities[name].tobytes() == resumed.priorities[name].tobytes(), name
    for name, tensor in whole.learner.items():
        assert tensor.tobytes() == resumed.learner[name].tobytes(), name
    assert resumed.rng == whole.rng


def test_counters_and_files_go_on(tmp_path: Path) -> None:
    path = run(tmp_path, "run", 200, eval_every=100, eval_episodes=1)
    before = (path / "metrics.jsonl").read_text()
    assert resume(path, {"total_timesteps": 330}, quiet=True, workers=FAKE) == 0
    checkpoint = newest_checkpoint(path)
    assert (checkpoint.env_steps, checkpoint.updates) == (330, 280)
    assert read_config(path / "config.toml").total_timesteps == 330
    assert json.loads((path / "summary.json").read_text())["env_steps"] == 330
    assert (path / "metrics.jsonl").read_text().startswith(before)
    steps = [line.split(",")[0] for line in (path / "evaluations.csv").read_text().splitlines()]
    assert steps == ["env_steps", "100", "200", "300", "330"]


def counted(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(newest_checkpoint(path).path.joinpath("state.json").read_text())["totals"]
    return found


def test_what_was_counted_goes_on_from_the_cut(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = run(tmp_path, "run", 200, eval_every=40, eval_episodes=1)
    assert json.loads((path / "summary.json").read_text())["episodes"] == 10
    best = path / "checkpoints" / "best" / "policy.json"
    description = json.loads(best.read_text())
    best.write_text(json.dumps({**description, "env_steps": 160, "evaluation": {"return_mean": 999.0}}))
    *_, cut, last = step_folders(path / "checkpoints")
    shutil.rmtree(last)  # so it would have been killed after 200 env steps, its last checkpoint at 60
    totals = counted(path)
    assert load_checkpoint(cut).env_steps == 60
    sampler = totals["workers"]["sampler-0"]
    assert {name: sampler["counters"][name] for name in ("env_steps", "rows_written", "episodes", "length_sum")} == {
        "env_steps": 60, "rows_written": 60, "episodes": 3, "length_sum": 60
    }  # fmt: skip
    assert [episode[:2] for episode in sampler["episodes"]] == [[210, 20]] * 3
    assert totals["workers"]["learner"]["counters"]["checkpoints"] == 2, "the one that holds the figure is the second"
    assert 0 < totals["wall_s"] < 60
    # As if more had happened until then.
    sampler["counters"].update(restarts=2, rows_written=57, policy_lag_sum=500, policy_lag_count=100)
    totals["workers"]["evaluator"]["counters"]["evaluations_skipped"] = 4
    state = json.loads((cut / "state.json").read_text())
    (cut / "state.json").write_text(json.dumps({**state, "totals": {**totals, "wall_s": 1000.0}}))

    assert resume(path, {"total_timesteps": 310}, workers=FAKE) == 0
    line = [json.loads(text) for text in (path / "metrics.jsonl").read_text().splitlines()][-1]
    summary = json.loads((path / "summary.json").read_text())
    assert (summary["env_steps"], summary["episodes"], line["rollout/episodes"]) == (310, 15, 15)
    assert (summary["checkpoints"], line["run/checkpoints"]) == (3, 3)
    assert (summary["restarts"], line["run/restarts"], line["workers/sampler-0/restarts"]) == (2, 2, 2)
    assert (summary["rows_lost"], line["replay/rows_lost"], line["replay/rows"]) == (3, 3, 307)
    assert summary["evaluations_skipped"] == line["run/evaluations_skipped"] == 4
    assert summary["policy_lag_mean"] > 1, "500 of the first 100 steps"
    assert 1000 < summary["wall_s"] < 1100
    assert line["wall_s"] == pytest.approx(summary["wall_s"], abs=0.01)
    assert summary["env_steps_per_s"] == pytest.approx(310 / summary["wall_s"], rel=0.01)
    # Evaluations beyond the cut are gone from the file, but the best policy is still the best.
    names, *rows = (row.split(",") for row in (path / "evaluations.csv").read_text().splitlines())
    assert [int(row[0]) for row in rows] == [51, 80, 120, 160, 200, 240, 280, 310]
    assert [int(row[names.index("best")]) for row in rows] == [1, *[0] * 7], "none is better than the one of 999"
    assert (summary["evaluations"], summary["best_evaluation_return"], read_run(path).best_return) == (8, 999.0, 999.0)
    shown = capsys.readouterr().out
    assert "4 lines of evaluations.csv from beyond the checkpoint: moved to discarded/start-1/evaluations.csv" in shown
    assert "checkpoints/best is from beyond the checkpoint (return 999.00 at 160 env steps)" in shown
    # Once more, and what the second start counted goes on as well.
    assert resume(path, {"total_timesteps": 330}, quiet=True, workers=FAKE) == 0
    summary = json.loads((path / "summary.json").read_text())
    assert (summary["episodes"], summary["checkpoints"], summary["restarts"], summary["rows_lost"]) == (16, 4, 2, 3)
    assert 1000 < summary["wall_s"] < 1100


def test_an_evaluation_that_was_cut_off_is_made_when_the_run_goes_on(tmp_path: Path) -> None:
    path = run(tmp_path, "run", 200, eval_every=100, eval_episodes=1)
    lines = (path / "evaluations.csv").read_text().splitlines(keepends=True)
    (path / "evaluations.csv").write_text("".join(lines[:-1]))
    assert resume(path, {"total_timesteps": 330}, quiet=True, workers=FAKE) == 0
    steps = [line.split(",")[0] for line in (path / "evaluations.csv").read_text().splitlines()]
    assert steps == ["env_steps", "100", "201", "300", "330"]


def test_what_was_counted_goes_on_with_other_workers(tmp_path: Path) -> None:
    from rlz import envs
    from rlz.runtime.train import make_job, make_streams
    from rlz.tracking import WorkerInfo
    from rlz.tracking.reading import Reader

    path = run(tmp_path, "run", 200, samplers=2, num_envs=2)
    checkpoint = newest_checkpoint(path)
    totals = counted(path)["workers"]
    assert [len(totals[name]["episodes"]) for name in ("sampler-0", "sampler-1")] == [5, 5]
    for samplers, num_envs in ((1, 3), (3, 3)):
        values = {"total_timesteps": 400, "samplers": samplers, "num_envs": num_envs}
        config = read_config(path / "config.toml").model_copy(update=values)
        streams = make_streams(make_job(config, envs.inspect_env(config)), checkpoint)
        infos = [WorkerInfo.of(place, 0) for place in streams.places]
        reading = Reader(streams, infos.copy).read()
        assert (reading.rows, reading.rows_lost, reading.total(Stat.EPISODES, "env_steps")) == (200, 0, 10)
        assert reading.return_mean == 210
        assert streams.stats.read()[0][Stat.POLICY_VERSION] == checkpoint.version, "shown before the learner is there"
        streams.close()


def test_workers_of_a_resumed_run_go_on_and_their_number_may_change(tmp_path: Path) -> None:
    path = run(tmp_path, "run", 200)
    overrides = {"total_timesteps": 400, "mode": "async", "samplers": 2, "num_envs": 3}
    assert resume(path, overrides, quiet=True, workers=FAKE) == 0
    checkpoint = newest_checkpoint(path)
    assert (checkpoint.env_steps, checkpoint.updates) == (400, 350)
    assert checkpoint.replay is not None
    assert sum(checkpoint.replay.committed) == 150 + 200


@pytest.mark.parametrize(
    ("env", "mode", "named"),
    [
        ("Pendulum-v1", "serial", False),
        ("support.fake_envs:Counting-v0", "serial", True),
        ("Pendulum-v1", "async", True),
    ],
)
def test_what_is_not_restored_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], env: str, mode: str, named: bool
) -> None:
    path = run(tmp_path, "run", 70, env=env, env_kwargs={})
    capsys.readouterr()
    assert resume(path, {"total_timesteps": 90, "mode": mode}, workers=FAKE) == 0
    shown = capsys.readouterr().out
    note = f"not restored: the states of the environments ({env}). Episodes that were open at the checkpoint count"
    assert (note in shown) == (note in (path / "logs" / "events.log").read_text()) == named
    assert ("not restored" in shown.lower()) == named, "and nothing else"


def test_nothing_left_to_do_is_an_error(tmp_path: Path) -> None:
    path = run(tmp_path, "run", 100)
    with pytest.raises(
        ConfigError, match=r"--total-timesteps 100 is no more than the 100 that .*--total-timesteps 200"
    ):
        resume(path, quiet=True, workers=FAKE)


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        ({"name": "other"}, r"--name other: the run is .*/run, and keeps its folder"),
        ({"gamma": 0.9}, r"--gamma 0.9: the run was trained with --gamma 0.99"),
        ({"n_step_return": 3}, r"--n-step-return 3: the run was trained with --n-step-return 1"),
        ({"prioritized": True}, r"--prioritized: the run was trained with --no-prioritized"),
        ({"hidden": (9,)}, r"--hidden 9: the run was trained with --hidden 8"),
        ({"env": "Pendulum-v1"}, r"--env Pendulum-v1: the run was trained with --env support.fake_envs:Counting-v0"),
    ],
)
def test_what_was_learned_cannot_change(tmp_path: Path, overrides: dict[str, Any], text: str) -> None:
    path = run(tmp_path, "run", 60)
    with pytest.raises(ConfigError, match=text):
        resume(path, {"total_timesteps": 400, **overrides}, quiet=True, workers=FAKE)


@pytest.mark.parametrize(
    ("before", "overrides"),
    [
        ({}, {"ent_coef": "auto_0.1"}),
        ({"ent_coef": 0.2}, {"ent_coef": "auto_0.1"}),
        ({"mode": "async", "replay_ratio": "free", "batch_size": "auto"}, {"batch_size": "auto_1024"}),
    ],
)
def test_a_value_to_start_with_is_refused_where_the_checkpoint_has_it(
    tmp_path: Path, before: dict[str, Any], overrides: dict[str, Any]
) -> None:
    path = run(tmp_path, "run", 60, **before)
    (option, value) = next(iter(overrides.items()))
    with pytest.raises(ConfigError, match=f"--{option.replace('_', '-')} {value}: a resumed run goes on from"):
        resume(path, {"total_timesteps": 400, **overrides}, quiet=True, workers=FAKE)


@pytest.mark.parametrize(
    ("option", "value"),
    [("tau", 0.01), ("ent_coef", 0.2), ("target_entropy", -3.0), ("buffer_size", 200), ("eval_episodes", 3)],
)
def test_every_change_of_learning_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, value: float
) -> None:
    path = run(tmp_path, "run", 60)
    before = getattr(read_config(path / "config.toml"), option)
    assert resume(path, {"total_timesteps": 80, option: value}, workers=FAKE) == 0
    line = f"from now on {as_typed(option, value)}, until here {as_typed(option, before)}"
    assert line in capsys.readouterr().out
    assert "total-timesteps" not in (path / "logs" / "events.log").read_text()


def test_a_change_of_batch_size_is_told(tmp_path: Path) -> None:
    path = run(tmp_path, "run", 60)
    assert resume(path, {"total_timesteps": 80, "batch_size": 64}, quiet=True, workers=FAKE) == 0
    config = read_config(path / "config.toml")
    assert changes(config.model_copy(update={"batch_size": 32}), config) == [
        "from now on --batch-size 64, until here --batch-size 32"
    ]
    assert changes(config, config) == []


def test_an_environment_with_other_spaces_is_refused(tmp_path: Path) -> None:
    path = run(tmp_path, "run", 60)
    for state in path.glob("checkpoints/step-*/state.json"):  # as an older rlz wrote it, without checksums
        state.write_text(json.dumps({**json.loads(state.read_text()), "files": {}}))
    description = newest_checkpoint(path).path / "policy.json"
    value = json.loads(description.read_text())
    value["env_spec"]["obs_shape"] = [4]
    description.write_text(json.dumps(value))
    with pytest.raises(CheckpointError, match=r"then: .*'obs_shape': \[4\](.|\n)*now: .*'obs_shape': \[3\]"):
        resume(path, {"total_timesteps": 400}, quiet=True, workers=FAKE)


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is no run"):
        resume(tmp_path)


def test_a_broken_checkpoint_is_put_aside_and_the_one_before_it_used(tmp_path: Path) -> None:
    path = run(tmp_path, "run", 60)
    old = newest_checkpoint(path)
    assert resume(path, {"total_timesteps": 80}, quiet=True, workers=FAKE) == 0
    (newest_checkpoint(path).path / "learner.safetensors").unlink()
    assert resume(path, {"total_timesteps": 70}, quiet=True, workers=FAKE) == 0
    assert newest_checkpoint(path).env_steps == 70
    assert old.path.is_dir()
    assert (path / "checkpoints" / "latest").resolve() == newest_checkpoint(path).path
    assert [p.name[:24] for p in (path / "checkpoints").glob("broken-*")] == ["broken-step-000000000080"]
