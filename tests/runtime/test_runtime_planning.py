"""From `--plan` to the plan of a run, its file, and a run that goes on with it."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from rlz.config import RunConfig, resolve, resolve_with_origins, run_config
from rlz.envs import inspect_env
from rlz.errors import ConfigError
from rlz.planning import cache
from rlz.planning.plan import CHOICES, Plan
from rlz.planning.planned import FILE, planned, planned_again
from rlz.planning.planner import plan
from rlz.planning.profile_model import Profile
from rlz.system.detect import detect
from rlz.system.memory import limits
from rlz.workers.job import Job
from support.machines import profile


@pytest.fixture
def found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Profile:
    """A profile of this machine for SAC on Pendulum-v1 in the cache: four environments in a process are far better."""
    monkeypatch.setenv("RLZ_PROFILES", str(tmp_path / "profiles"))
    made = profile(replace(detect(), load=0.0), gain_of_envs=3.0)
    cache.save(made)
    return made


def config(**options: object) -> RunConfig:
    return resolve("sac", "Pendulum-v1", {"replay_ratio": "free", **options}, None)


def test_a_plan_from_a_busy_machine_says_so(found: Profile) -> None:
    assert planned(config()).notes == []
    cache.save(found.model_copy(update={"hardware": replace(found.hardware, load=2.0)}))
    (note,) = planned(config()).notes
    assert "its rates are too low" in note


def test_a_run_follows_the_profile_of_its_machine(found: Profile) -> None:
    made = planned(config())
    assert made.config.num_envs == 4 * made.config.samplers
    memory = min((limit.available for limit in limits()), default=None)
    assert made.plan == plan(config(), (), found, memory=memory)
    assert made.plan.basis == "profile"
    assert made.notes == []
    assert "plan from the profile of this machine" in made.plan.headline()
    assert "predicted" in made.plan.headline()


def test_off_serial_and_no_profile(found: Profile) -> None:
    for options, basis in (
        ({"plan": "off"}, "off"),
        ({"mode": "serial", "replay_ratio": 1.0}, "serial"),
        ({"hidden": "32"}, "defaults"),
    ):
        run = config(**options)
        made = planned(run)
        assert (made.config, made.plan.basis, made.plan.prediction) == (run, basis, None)


def test_only_what_the_user_gave_is_given(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text("threads = 2\n")
    resolved = resolve_with_origins("sac", "Ant-v4", {"samplers": "2"}, file)
    assert {"threads", "samplers"} <= set(resolved.given())
    assert "learning_starts" not in resolved.given()  # of the preset


def test_a_damaged_profile_is_said_and_not_used(found: Profile) -> None:
    (path,) = cache.cache_folder().iterdir()
    path.write_text("{")
    made = planned(config())
    assert (made.config, made.plan.basis) == (config(), "defaults")
    assert str(path) in made.notes[0]


def test_a_plan_from_a_file(found: Profile, tmp_path: Path) -> None:
    first = planned(config()).plan
    path = tmp_path / "plan.toml"
    path.write_text(first.to_toml())
    again = planned(config(plan=str(path)))
    assert again.plan.choices == first.choices
    assert again.plan.prediction == first.prediction
    assert again.config == first.apply(config(plan=str(path)))
    mine = planned(config(plan=str(path), threads=1, num_envs=3), ("threads", "num_envs"))
    assert (mine.config.threads, mine.config.num_envs) == (1, 3)
    assert mine.plan.given == ("num_envs", "threads")
    assert mine.plan.prediction is None  # of another setting
    for options in ({"replay_ratio": 2}, {"batch_size": 512}, {"compile": False}):
        other_learning = planned(config(plan=str(path), **options), tuple(options)).plan
        assert (other_learning.choices, other_learning.prediction) == (first.choices, None), options
    each = first.choices["num_envs"] // first.choices["samplers"]  # type: ignore[operator]
    more = planned(config(plan=str(path), samplers=3), ("samplers",)).config
    assert (more.samplers, more.num_envs) == (3, 3 * each)
    fewer = planned(config(plan=str(path), num_envs=1), ("num_envs",)).config
    assert (fewer.samplers, fewer.num_envs) == (1, 1)
    with pytest.raises(ConfigError, match=r"does not fit the other options: --buffer-size 2 is less"):
        planned(config(plan=str(path), buffer_size=2), ("buffer_size",))
    other = first.model_copy(update={"machine": "elsewhere"})
    path.write_text(other.to_toml())
    made = planned(config(plan=str(path)))
    assert "made for another machine" in made.notes[0]
    assert made.plan.prediction is None
    with pytest.raises(ConfigError, match=r"nothing\.toml"):
        planned(config(plan=str(tmp_path / "nothing.toml")))


def test_a_run_that_goes_on_keeps_its_plan(found: Profile, tmp_path: Path) -> None:
    first = planned(config(threads=1), ("threads",))
    (tmp_path / FILE).write_text(first.plan.to_toml())
    assert planned_again(tmp_path, first.config, ("total_timesteps",)) == first
    other = first.config.model_copy(update={"samplers": 1, "num_envs": 1})
    assert planned_again(tmp_path, other, ("samplers",)).config == other
    assert planned_again(tmp_path, other, ("samplers",)).plan.prediction is None
    chosen = planned_again(tmp_path, other, ("plan",))  # --plan auto once more
    assert (chosen.config.num_envs, chosen.config.threads) == (first.config.num_envs, 1)
    assert chosen.plan.given == ("threads",)


def test_a_run_without_a_plan_goes_on_without(found: Profile, tmp_path: Path) -> None:
    run = config(samplers=2, num_envs=2)
    assert planned_again(tmp_path, run, ()).config == run
    again = planned_again(tmp_path, run, ("plan",))
    assert again.config == run.model_copy(update={"inference": "inline"}), "which was left to the plan"
    assert set(again.plan.given) == set(CHOICES) - {"inference"}
    (tmp_path / FILE).write_text("basis = 1")
    assert "is no plan of rlz" in planned_again(tmp_path, run, ()).notes[0]


def test_cores_of_pinned_workers() -> None:
    run = run_config(env="Pendulum-v1", pin=True, samplers=2)

    spaces = inspect_env(run)

    def cores(allowed: list[int]) -> dict[str, tuple[int, ...]]:
        return {place.name: place.cores for place in Job.of(run, spaces, cores=allowed).places}

    roomy = cores([0, 1, 2, 3, 8])
    assert roomy == {"learner": (0, 1, 2), "evaluator": (0, 1, 2, 3, 8), "sampler-0": (3,), "sampler-1": (8,)}
    assert cores([4, 6])["learner"] == (4,)
    assert cores([4, 6])["sampler-0"] == cores([4, 6])["sampler-1"] == (6,)
    assert set(cores([4]).values()) == {()}
    assert all(place.cores == () for place in Job.of(run.model_copy(update={"pin": False}), spaces).places)


def test_a_worker_keeps_to_its_cores(tmp_path: Path) -> None:
    from rlz.workers import base

    cores = sorted(os.sched_getaffinity(0))
    spec = base.WorkerSpec(
        **{"role": "sampler", "name": "s", "index": 0, "worker_id": 2, "slot": 2, "parent_pid": 1},
        **{"run_dir": str(tmp_path), "config": {}, "env_spec": {}, "cores": (cores[-1],)},
            **{"asked": {}, "graph": {}, "placement": {}},
    )  # fmt: skip
    assert base.WorkerSpec.from_json(spec.to_json()) == spec
    try:
        base._prepare(spec)
        assert os.sched_getaffinity(0) == {cores[-1]}
    finally:
        os.sched_setaffinity(0, cores)
        os.umask(0o022)


def test_the_plan_is_in_the_run_folder_and_verified(
    found: Profile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run writes its plan down, says it, and hands the snapshots of its log to the verifier."""
    from rlz.planning import verify
    from rlz.runtime.train import train

    looked: list[float] = []

    class Seen:
        def __init__(self, prediction: object, config: RunConfig) -> None:
            assert prediction is not None

        def look(self, snapshot: object) -> str | None:
            looked.append(1.0)
            return "not as planned: a test" if len(looked) == 1 else None

    monkeypatch.setattr(verify, "Verifier", Seen)
    monkeypatch.setattr(cache, "load", lambda _: cache.Found(found))
    run = run_config(
        **{"env": "support.fake_envs:Counting-v0", "env_kwargs": {"truncate_after": 20}, "hidden": (8,)},
        **{"eval_every": 0, "total_timesteps": 300, "learning_starts": 50, "buffer_size": 1000, "log_every": 0.1},
        runs_dir=str(tmp_path),
    )  # fmt: skip
    prediction = planned(config()).plan.prediction
    made = Plan(basis="file", choices={"samplers": 1}, reasons={"samplers": "why"}, prediction=prediction)
    workers = {"learner": "support.fake_learner:Learner"}
    assert train(run, plan=made, notes=["hello"], quiet=True, workers=workers) == 0
    (folder,) = (path for path in tmp_path.iterdir() if path.name.startswith("sac__"))
    assert Plan.read(folder / FILE) == made
    events = (folder / "logs" / "events.log").read_text()
    for words in ("hello", "plan from a file: samplers 1; predicted", "not as planned: a test"):
        assert events.count(words) == 1
    assert json.loads((folder / "summary.json").read_text())["status"] == "completed"
