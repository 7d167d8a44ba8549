"""The planner on machines that are not here: rules that hold for its plans."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from rlz.config import RunConfig
from rlz.errors import ConfigError
from rlz.planning.model import BOUNDS, Setting
from rlz.planning.plan import CHOICES, Plan, explain
from rlz.planning.planner import open_settings, plan
from rlz.planning.profile_model import Profile
from rlz.system.detect import Hardware
from support.machines import GIB, config, hardware, profile, together

LEARNING = (
    *("batch_size", "replay_ratio", "learning_rate", "scale_learning_rate", "precision", "total_timesteps", "gamma"),
    *(
        "buffer_size",
        "learning_starts",
        "n_step_return",
        "ratio_slack",
        "devices",
        "hidden",
        "seed",
    ),
)

MACHINES: dict[str, tuple[Hardware, dict[str, Any]]] = {
    "this one": (hardware(2), {"steps": 25_000.0, "updates": 85.0}),
    "one core": (hardware(1), {}),
    "a quota of 1.5 cores": (hardware(1, cores_online=64, cores_allowed=64, cpu_quota=1.5), {}),
    "little memory": (hardware(8, memory=2 * GIB, memory_limit=2 * GIB), {"updates": 4000.0}),
    "a laptop of 4 cores": (hardware(4), {"steps": 3000.0, "updates": 90.0}),
    "64 cores and 2 cards": (hardware(64, gpus=2, memory=256 * GIB), {"steps": 4000.0, "card": 9400.0}),
    "8 cards": (hardware(128, gpus=8, memory=1024 * GIB), {"steps": 4000.0, "card": 9400.0}),
}


def made(name: str, **options: Any) -> tuple[RunConfig, Plan, Profile]:
    machine, rates = MACHINES[name]
    run = config(**options)
    found = profile(machine, run=run, **rates)
    return run, plan(run, tuple(options), found), found


def threads_of(run: RunConfig) -> int:
    """Threads that the plan gives the learner to begin with."""
    assert isinstance(run.threads, str)
    return int(run.threads.removeprefix("auto_"))


@pytest.mark.parametrize("ratio", [1, "free", 0.25, 8])
@pytest.mark.parametrize("name", MACHINES)
def test_rules_that_every_plan_keeps(name: str, ratio: float | str) -> None:
    run, chosen, found = made(name, replay_ratio=ratio)
    planned = chosen.apply(run)
    machine = found.hardware
    assert {option: getattr(planned, option) for option in LEARNING} == {o: getattr(run, o) for o in LEARNING}
    assert set(chosen.choices) <= set(CHOICES)
    assert set(chosen.reasons) == set(chosen.choices)
    assert all(chosen.reasons.values())
    assert 1 <= planned.samplers <= machine.cores
    assert planned.num_envs % planned.samplers == 0
    assert 1 <= threads_of(planned) <= machine.cores
    if ratio == "free":
        assert planned.samplers + threads_of(planned) <= max(2, machine.cores), "the learner needs a core"
    assert planned.device in ("cpu", *(f"cuda:{index}" for index in range(len(machine.gpus))))
    assert not planned.pin  # nothing has shown that it helps
    assert chosen.prediction is not None
    assert chosen.prediction.bound in BOUNDS
    if ratio != "free":
        steps, updates = chosen.prediction.env_steps_per_s, chosen.prediction.updates_per_s
        assert updates == pytest.approx(float(ratio) * steps, rel=0.01)
    assert plan(run, ("replay_ratio",), found) == chosen  # a pure function


def test_one_sampler_is_enough_where_updates_are_the_limit() -> None:
    for name in ("this one", "one core", "a quota of 1.5 cores", "a laptop of 4 cores"):
        _, chosen, _ = made(name)
        assert (chosen.choices["samplers"], chosen.choices["num_envs"]) == (1, 1), name


def test_one_core_has_one_thread_and_one_sampler_also_when_free() -> None:
    for name in ("one core", "a quota of 1.5 cores"):
        _, chosen, _ = made(name, replay_ratio="free")
        assert (chosen.choices["samplers"], chosen.choices["threads"]) == (1, "auto_1")
        assert chosen.prediction is not None
        assert chosen.prediction.bound == "cores-bound"


def test_free_learners_leave_the_samplers_their_cores() -> None:
    for name in ("this one", "a laptop of 4 cores"):
        run, chosen, found = made(name, replay_ratio="free")
        planned = chosen.apply(run)
        assert planned.samplers + threads_of(planned) <= found.hardware.cores


def test_a_card_gets_as_many_samplers_as_it_can_use_and_no_more() -> None:
    run, chosen, _ = made("64 cores and 2 cards")
    planned = chosen.apply(run)
    assert (planned.device, planned.threads) == ("cuda:0", "auto_1")
    assert 2 <= planned.samplers <= 4  # 4,000 env steps/s each, 9,400 updates/s
    assert "updates/s alone: cpu" in chosen.reasons["device"]
    many = config(replay_ratio=0.1)
    assert plan(many, (), profile(MACHINES["8 cards"][0], steps=4000, card=9400)).apply(many).samplers >= 16


def test_a_cpu_that_is_faster_than_its_card_is_used() -> None:
    run = config()
    assert plan(run, (), profile(hardware(16, gpus=1), updates=200, card=150)).choices["device"] == "cpu"


def test_little_memory_allows_few_samplers() -> None:
    run, chosen, _ = made("little memory", replay_ratio=0.1)
    roomy = plan(run, ("replay_ratio",), profile(hardware(8, memory=64 * GIB), updates=4000.0))
    assert chosen.choices["samplers"] < roomy.choices["samplers"]
    assert "there is memory for" in chosen.reasons["samplers"]
    assert plan(run, (), profile(hardware(8, memory=64 * GIB), updates=4000.0), memory=GIB).choices["samplers"] == 1


def test_threads_are_left_to_the_learner_where_only_eager_updates_were_measured() -> None:
    whole = profile(hardware(4))
    eager = whole.model_copy(update={"updates": tuple(one for one in whole.updates if one.executor == "eager")})
    chosen = plan(config(), (), eager)
    assert chosen.choices["threads"] == "auto"
    assert "eager updates only" in chosen.reasons["threads"]
    assert chosen.apply(config()).threads == "auto"
    assert chosen.prediction is not None
    assert chosen.prediction.executor == "eager"
    assert plan(config(compile=False), ("compile",), eager).choices["threads"] == "auto_4"


def test_options_that_are_given_win() -> None:
    run, chosen, _ = made("64 cores and 2 cards", samplers=3, threads=2, device="cpu", publish_every=7)
    assert chosen.given == ("samplers", "threads", "device", "publish_every")
    assert set(chosen.choices) == {"num_envs", "spin_count", "pin", "updates_per_launch", "inference"}
    planned = chosen.apply(run)
    assert (planned.samplers, planned.threads, planned.device, planned.publish_every) == (3, 2, "cpu", 7)
    assert planned.num_envs % 3 == 0
    run, chosen, _ = made("a laptop of 4 cores", num_envs=2, replay_ratio=0.01)
    assert chosen.apply(run).num_envs == 2
    assert chosen.apply(run).samplers <= 2


def test_serial_mode_and_no_profile_change_nothing() -> None:
    serial = config(mode="serial")
    assert plan(serial, (), profile(hardware(2))).apply(serial) == serial
    run = config()
    chosen = plan(run)
    assert (chosen.apply(run), chosen.basis, chosen.prediction) == (run, "defaults", None)
    assert "`rlz profile` makes one" in chosen.headline()
    assert (chosen.choices["threads"], chosen.reasons["threads"]) == ("auto", "measured live, on updates")
    assert set(chosen.choices) == {*CHOICES} - {"batch_size"}, "plan.toml holds what was chosen then as well"


def test_a_profile_with_too_few_figures_is_as_good_as_none() -> None:
    bare = profile(hardware(2)).model_copy(update={"updates": (), "joint": ()})
    assert plan(config(), (), bare).basis == "defaults"


def test_what_was_measured_together_is_the_prediction() -> None:
    found = profile(hardware(2), joint=[together(140, 140), together(190, 190, spin_count=10_000)])
    chosen = plan(config(), (), found)
    assert chosen.choices["spin_count"] == 10_000
    assert chosen.prediction is not None
    assert chosen.prediction.env_steps_per_s == 190
    assert "measured together in this setting" in chosen.prediction.evidence
    assert chosen.reasons["spin_count"] == "measured together, by turns: 1000: 140 env steps/s, 10000: 190 env steps/s"


def test_the_model_is_corrected_by_what_was_measured_together() -> None:
    alone = plan(config(replay_ratio=4), ("replay_ratio",), profile(hardware(2)))
    together_half = profile(hardware(2), joint=[together(65, 65)])
    both = plan(config(replay_ratio=4), ("replay_ratio",), together_half)
    assert alone.prediction is not None
    assert both.prediction is not None
    assert both.prediction.env_steps_per_s < 0.7 * alone.prediction.env_steps_per_s
    assert "corrected" in both.prediction.evidence
    assert "may be too high" in alone.prediction.evidence


def test_a_promise_must_be_large_to_beat_a_measurement() -> None:
    free = config(replay_ratio="free")
    measured = together(4000, 70, None, threads=1, sampler_waits=0.0, sampler_cpu=1.0, learner_cpu=1.0)
    close = profile(hardware(2), steps=4000, updates=80, gain_of_envs=1.1, joint=[measured])
    assert plan(free, ("replay_ratio",), close).choices["num_envs"] == 1
    far = profile(hardware(2), steps=4000, updates=80, gain_of_envs=2.0, joint=[measured])
    assert plan(free, ("replay_ratio",), far).choices["num_envs"] == 4


@pytest.mark.parametrize("cores", [2, 4, 8])
def test_what_the_learner_found_good_beside_a_sampler_holds_for_what_was_not_measured(cores: int) -> None:
    # Alone, all threads look best; beside the sampler one was. Environments in the sampler do not change that.
    found = profile(hardware(cores), joint=[together(80, 80, threads=1)])
    chosen = plan(config(), (), found)
    assert (chosen.choices["num_envs"], chosen.choices["threads"]) == (1, "auto_1")
    assert chosen.prediction is not None
    assert chosen.prediction.env_steps_per_s == 80
    assert "beside the samplers 1 was at least as good" in chosen.reasons["threads"]


def test_threads_beside_one_device_say_nothing_about_another() -> None:
    beside_the_cpu = profile(hardware(8, gpus=1), card=9000.0, joint=[together(80, 80, threads=2)])
    on_card = plan(config(device="cuda:0"), ("device",), beside_the_cpu)
    assert (on_card.basis, on_card.choices["threads"]) == ("profile", "auto_1")
    beside_the_card = [together(4000, 4000, threads=1, device="cuda:0", precision="tf32")]
    on_cpu = plan(config(device="cpu"), ("device",), profile(hardware(8, gpus=1), card=9000.0, joint=beside_the_card))
    assert on_cpu.choices["threads"] == "auto_8"


def test_threads_auto_given_leaves_them_to_measurements() -> None:
    found = profile(hardware(4), joint=[together(80, 80, threads=1)])
    chosen = plan(config(threads="auto"), ("threads",), found)
    assert chosen.choices["num_envs"] == 1
    assert chosen.prediction is not None
    assert chosen.prediction.env_steps_per_s == 80
    free = plan(config(threads="auto", replay_ratio="free"), ("threads", "replay_ratio"), profile(hardware(4)))
    assert free.prediction is not None
    assert "threads" in free.given


def test_measurements_of_other_learning_say_nothing() -> None:
    eager = [together(140, 140, executor="eager"), together(190, 190, spin_count=10_000, executor="eager")]
    large = [together(140, 140, batch_size=512), together(190, 190, spin_count=10_000, batch_size=512)]
    for joint in (eager, large):
        chosen = plan(config(), (), profile(hardware(2), joint=joint))
        assert chosen.choices["spin_count"] == 1000
        assert "not measured" in chosen.reasons["spin_count"]


def test_a_card_that_was_not_measured_is_left_to_the_run() -> None:
    run = config()
    unseen = profile(hardware(16, gpus=1), updates=200)
    chosen = plan(run, (), unseen)
    assert (chosen.choices["device"], chosen.prediction) == ("auto", None)
    assert "no updates on the card" in chosen.reasons["device"]
    assert plan(config(device="cpu"), ("device",), unseen).prediction is not None


def test_a_profile_without_figures_for_the_device_says_so() -> None:
    chosen = plan(config(device="cuda:1"), ("device",), profile(hardware(16, gpus=2), card=9000))
    assert chosen.basis == "defaults"
    assert "the profile has no updates in tf32 on cuda:1" in chosen.headline()
    assert chosen.given == ("device",)


def test_throughput_mode_with_a_profile_that_says_nothing_begins_as_without_one() -> None:
    free = config(replay_ratio="free", batch_size="auto", device="cuda:1")
    chosen = plan(free, ("replay_ratio", "device"), profile(hardware(8, gpus=2), card=9000))
    assert chosen.basis == "defaults"
    assert (chosen.choices["samplers"], chosen.choices["num_envs"]) == (4, 16)
    assert "no updates in tf32 on cuda:1" in chosen.headline()


def test_pinning_must_have_been_measured_to_help() -> None:
    little = profile(hardware(2), joint=[together(140, 140), together(145, 145, pinned=True)])
    much = profile(hardware(2), joint=[together(140, 140), together(160, 160, pinned=True)])
    assert [plan(config(), (), one).choices["pin"] for one in (little, much)] == [False, True]


def test_a_server_must_have_been_measured_to_help() -> None:
    little, much = (
        profile(hardware(2), actor_us=50.0, joint=[together(140, 140), together(rate, rate, inference="central")])
        for rate in (145, 160)
    )
    plans = [plan(config(), (), one) for one in (little, much)]
    assert [one.choices["inference"] for one in plans] == ["inline", "central"]
    assert plans[0].reasons["inference"] == "140 env steps/s, with central 145: measured together"
    assert plans[1].apply(config()).inference == "central"
    assert "inference" not in plan(config(inference="inline"), ("inference",), much).choices
    assert plan(config(inference="auto"), ("inference",), much).choices["inference"] == "central", "auto leaves it"
    cheap = plan(config(), (), profile(hardware(2), joint=[together(140, 140)]))
    assert cheap.choices["inference"] == "inline"
    assert cheap.reasons["inference"] == "choosing actions takes 5% of a sampler's time, and no server could save more"
    assert plan(config(), ()).choices["inference"] == "auto", "without a profile, as in each sampler"


def test_another_wait_must_have_been_measured_to_help() -> None:
    plans = [
        plan(config(), (), profile(hardware(2), joint=[together(140, 140), together(rate, rate, spin_count=10_000)]))
        for rate in (145, 150)
    ]
    assert [one.choices["spin_count"] for one in plans] == [1000, 10_000]
    assert "10000: 145 env steps/s" in plans[0].reasons["spin_count"]
    # Both together may be worth it, which does not make one of them so.
    spins, both = together(144, 144, spin_count=10_000), together(148, 148, spin_count=10_000, pinned=True)
    chosen = plan(config(), (), profile(hardware(2), joint=[together(140, 140), spins, both])).choices
    assert (chosen["spin_count"], chosen["pin"]) == (10_000, True)
    given = [together(140, 140, spin_count=0), together(142, 142, spin_count=0, pinned=True)]
    chosen = plan(config(spin_count=0), ("spin_count",), profile(hardware(2), joint=given)).choices
    assert chosen["pin"] is False


def test_actors_are_published_less_often_where_it_costs_too_much() -> None:
    run = config(replay_ratio=16)
    chosen = plan(run, (), profile(hardware(4), steps=4000.0, updates=4000.0, publish_us=500.0, run=run))
    every = chosen.choices["publish_every"]
    assert isinstance(every, int)
    assert every > 1
    assert chosen.prediction is not None
    assert chosen.prediction.updates_per_s / every >= 50
    assert made("this one")[1].choices["publish_every"] == 1
    assert made("64 cores and 2 cards")[1].choices["publish_every"] == "auto", "copied beside the updates"


def with_launches(rates: dict[int, float], bf16: float = 0.0) -> Profile:
    """A card with compiled rates by updates in a launch."""
    found = profile(hardware(16, gpus=1), steps=4000.0, updates=200.0, card=5000.0)
    compiled = next(rate for rate in found.updates if (rate.device, rate.executor) == ("cuda:0", "compiled"))
    others = tuple(rate for rate in found.updates if rate is not compiled)
    made = [compiled.model_copy(update={"launch": count, "updates_per_s": rate}) for count, rate in rates.items()]
    if bf16:
        made.append(compiled.model_copy(update={"precision": "bf16", "updates_per_s": bf16}))
    return found.model_copy(update={"updates": (*others, *made)})


@pytest.mark.parametrize(
    ("rates", "slack", "launch"),
    [
        ({1: 5000.0, 16: 7000.0}, None, 16),
        ({1: 6900.0, 16: 7000.0}, None, 1),
        ({1: 4000.0, 4: 6000.0, 16: 7000.0}, 5.0, 4),
        ({16: 7000.0}, None, "auto"),
    ],
)
def test_updates_of_a_launch_are_chosen_on_a_card(
    rates: dict[int, float], slack: float | None, launch: int | str
) -> None:
    chosen = plan(config(ratio_slack=slack), ("ratio_slack",), with_launches(rates))
    assert chosen.choices["device"] == "cuda:0"
    assert chosen.choices["updates_per_launch"] == launch
    assert chosen.apply(config(ratio_slack=slack)).updates_per_launch == launch
    assert made("this one")[1].choices["updates_per_launch"] == 1


def test_environments_within_a_sampler_keep_the_rules_of_the_configuration() -> None:
    run = config(n_step_return=5, learning_starts=10, replay_ratio="free")
    found = profile(hardware(2), gain_of_envs=5.0, run=run)
    assert plan(run, ("n_step_return", "learning_starts", "replay_ratio"), found).apply(run).num_envs == 1


def test_what_is_left_open_is_measured_together() -> None:
    held = open_settings(config(), profile(hardware(2)))
    assert held == [Setting()]  # one sampler waits most of the time: nothing else can help
    free = open_settings(config(replay_ratio="free"), profile(hardware(4), gain_of_envs=2.0))
    assert free[0] == Setting()
    assert len(free) > 1
    assert any(setting.envs_per_sampler == 4 for setting in free)
    assert open_settings(config(), profile(hardware(8, gpus=1), card=9000))[0].device == "cuda:0"


def test_a_plan_is_a_file_and_back(tmp_path: Path) -> None:
    _, chosen, _ = made("this one")
    path = tmp_path / "plan.toml"
    path.write_text(chosen.to_toml())
    assert Plan.read(path) == chosen
    assert tomllib.loads(path.read_text())["prediction"]["bound"] == "update-bound"
    rows = {name: (value, reason) for name, value, reason in explain(chosen)}
    assert rows["--samplers"][0] == "1"
    assert rows["limit"][1] == BOUNDS["update-bound"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("basis = 3", "basis"),
        ("basis = [", "is not TOML"),
        ('basis = "profile"\nsurplus = 1', "surplus"),
        ('basis = "profile"\n[choices]\nbatch_size = 512', "a plan cannot choose batch_size"),
        ('basis = "profile"\n[choices]\nsamplers = 0', "samplers 0 cannot be used"),
        ('basis = "profile"\n[choices]\nthreads = "many"', "threads 'many' cannot be used"),
    ],
)
def test_files_that_are_no_plan(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words):
        Plan.read(path)
    with pytest.raises(ConfigError, match="Give auto, off, or the path"):
        Plan.read(tmp_path / "none.toml")


def test_throughput_mode_begins_at_the_knee_that_was_measured() -> None:
    free = config(replay_ratio="free", batch_size="auto")
    given = ("replay_ratio", "batch_size")
    chosen = plan(free, given, profile(hardware(2)))
    size = chosen.apply(free).first_batch_size()
    assert chosen.choices["batch_size"] == f"auto_{size}"
    assert chosen.apply(free).adapts()
    assert f"{size}: " in chosen.reasons["batch_size"]
    assert chosen.prediction is not None
    assert chosen.prediction.frames_per_s == pytest.approx(size * chosen.prediction.updates_per_s, rel=1e-2)
    # Where an update of 8,192 rows takes hardly longer than one of 256, no smaller one is at the knee.
    slow_launch = profile(hardware(2))
    rates = [
        rate.model_copy(update={"updates_per_s": 100.0, "frames_per_s": 100.0 * rate.batch_size, "batch_size": size})
        for rate in slow_launch.updates
        for size in (rate.batch_size, 8192)
    ]
    slow_launch = slow_launch.model_copy(update={"updates": tuple(rates)})
    assert plan(free, given, slow_launch).choices["batch_size"] == "auto_8192"


def test_a_batch_size_is_never_chosen_unasked() -> None:
    for options in ({"replay_ratio": "free"}, {"replay_ratio": "free", "batch_size": "auto_512"}):
        run = config(**options)
        chosen = plan(run, tuple(options), profile(hardware(2)))
        assert "batch_size" not in chosen.choices
        assert chosen.apply(run).batch_size == run.batch_size


def test_throughput_mode_without_a_profile_samples_on_half_of_the_cores() -> None:
    free = config(replay_ratio="free", batch_size="auto")
    for cores, samplers in ((1, 1), (2, 1), (8, 4)):
        chosen = plan(free, ("batch_size",), cores=cores).apply(free)
        assert (chosen.samplers, chosen.num_envs, chosen.batch_size) == (samplers, 4 * samplers, "auto")
    assert plan(free, ("samplers", "batch_size"), cores=8).apply(free).samplers == 1
    assert plan(free, (), memory=GIB, cores=64).apply(free).samplers <= 4
    fixed = config(replay_ratio="free")
    assert plan(fixed, (), cores=8).apply(fixed) == fixed
