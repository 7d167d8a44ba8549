import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from rlz.algorithms.registry import BUILT_IN
from rlz.algorithms.settings import learning_rate_factor
from rlz.config import RunConfig, read_config, run_config
from rlz.config.model import config_type
from rlz.config.overrides import expects
from rlz.config.presets import presets
from rlz.errors import ConfigError
from rlz.options.option import metadata


def test_defaults_are_those_of_sb3() -> None:
    config = run_config(env="Ant-v4")
    assert (config.batch_size, config.buffer_size, config.learning_starts) == (256, 1_000_000, 100)
    assert (config.learning_rate, config.gamma, config.tau) == (3e-4, 0.99, 0.005)
    assert (config.hidden, config.activation, config.ent_coef) == ((256, 256), "relu", "auto")
    assert config.total_timesteps == 1_000_000
    assert config.checkpoint_every == 300.0


def test_defaults_of_td3_are_those_of_the_paper() -> None:
    config = run_config(algo="td3", env="Ant-v4")
    assert (config.policy_delay, config.target_policy_noise, config.target_noise_clip) == (2, 0.2, 0.5)
    assert config.exploration_noise == 0.1


def test_rewards_of_rows_of_several_steps_are_not_normalised() -> None:
    with pytest.raises(ValidationError, match="--normalize-reward needs rows of single steps, and --n-step-return 3"):
        run_config(algo="dqn", env="A", normalize_reward=True, n_step_return=3)
    assert run_config(algo="dqn", env="A", normalize_obs=True, n_step_return=3).normalize_obs


def test_a_batch_that_does_not_divide_its_rollout_is_told_its_neighbours_at_once() -> None:
    with pytest.raises(ValidationError, match=r"are 2,048 rows. Use --batch-size 32 or 64, or another"):
        run_config(algo="ppo", env="CartPole-v1", n_steps=2048, num_envs=1, batch_size=60)
    with pytest.raises(ValidationError, match=r"are 1,073,741,824 rows. Use --batch-size 2 or 4,"):
        run_config(algo="ppo", env="CartPole-v1", n_steps=2**24, num_envs=64, batch_size=3)


def test_defaults_of_dqn_are_those_of_stable_baselines3() -> None:
    config = run_config(algo="dqn", env="Some-v0")
    assert (config.batch_size, config.learning_rate, config.hidden, config.tau) == (32, 1e-4, (64, 64), 1.0)
    # SB3 moves its target network in every 10,000th env step and makes one update in four.
    assert config.target_every / config.replay_ratio == 10_000
    epsilon = config.exploration_initial_eps, config.exploration_final_eps, config.exploration_fraction
    assert (*epsilon, config.max_grad_norm, config.double, config.dueling) == (1.0, 0.05, 0.1, 10.0, False, False)


@pytest.mark.parametrize("algo", ["sac", "td3", "ddpg"])
def test_a_dump_has_the_options_of_its_algorithm_alone(algo: str) -> None:
    config = run_config(algo=algo, env="Ant-v4")  # type: ignore[arg-type]
    assert {"policy_delay", "target_policy_noise", "target_noise_clip"} & config.model_dump().keys() == (
        {"policy_delay", "target_policy_noise", "target_noise_clip"} if algo == "td3" else set()
    )
    assert ("ent_coef" in config.model_dump()) == ("target_entropy" in config.model_dump()) == (algo == "sac")
    assert ("exploration_noise" in config.model_dump()) == (algo != "sac")
    assert run_config(config.model_dump(mode="json")) == config
    assert read_config(config.to_toml()) == config


def test_is_frozen_and_refuses_unknown_fields() -> None:
    config = run_config(env="Ant-v4")
    with pytest.raises(ValidationError):
        config.seed = 2  # type: ignore[misc]
    with pytest.raises(ValidationError):
        run_config(env="Ant-v4", sede=2)  # type: ignore[call-arg]


def test_environments_follow_samplers_unless_given() -> None:
    assert run_config(env="Ant-v4", samplers=3).num_envs == 3
    assert run_config(env="Ant-v4", samplers=3, num_envs=7).num_envs == 7


@pytest.mark.parametrize(
    ("ratio", "exact"), [(1, (1, 1)), (0.25, (1, 4)), (0.1, (1, 10)), (4.0, (4, 1)), (1e-3, (1, 1000)), ("free", None)]
)
def test_replay_ratio_is_an_exact_fraction(ratio: float | str, exact: tuple[int, int] | None) -> None:
    assert run_config(env="Ant-v4", replay_ratio=ratio).ratio() == exact


@pytest.mark.parametrize(
    ("options", "slack"),
    [
        ({}, 1.0),
        ({"num_envs": 4}, 4.0),
        ({"replay_ratio": 8}, 8.0),
        ({"replay_ratio": 0.25}, 1.0),
        ({"replay_ratio": "free", "num_envs": 2}, 2.0),
        ({"ratio_slack": 100}, 100.0),
    ],
)
def test_default_slack_is_the_largest_of_environments_and_ratio(options: dict[str, object], slack: float) -> None:
    assert run_config(env="Ant-v4", **options).slack() == slack  # type: ignore[arg-type]


def test_n_step_needs_a_row_before_the_first_update() -> None:
    run_config(env="A", n_step_return=5, num_envs=2, learning_starts=9)
    with pytest.raises(ValidationError, match=r"--learning-starts 8 is too few.*Use --learning-starts 9"):
        run_config(env="A", n_step_return=5, num_envs=2, learning_starts=8)


def test_the_part_of_a_run_that_is_done() -> None:
    config = run_config(env="A", total_timesteps=1000)
    assert [config.done(steps) for steps in (-1, 0, 500, 1000, 2000)] == [0.0, 0.0, 0.5, 1.0, 1.0]


def test_learning_rate_constant_or_linear() -> None:
    assert run_config(env="A", learning_rate=1e-3).learning_rate_at(1.0) == 1e-3
    linear = run_config(env="A", learning_rate="lin_4e-4", total_timesteps=1000)
    assert linear.learning_rate_at(0) == 4e-4
    assert linear.learning_rate_at(0.5) == pytest.approx(2e-4)
    assert linear.learning_rate_at(1) == linear.learning_rate_at(2) == 0.0


def test_a_batch_size_that_rlz_chooses() -> None:
    free = {"env": "A", "replay_ratio": "free"}
    for value, first in (("auto", 256), ("auto_1024", 1024), ("auto_1e3", 1000)):
        config = run_config(**free, batch_size=value)
        assert (config.first_batch_size(), config.adapts()) == (first, True)
    fixed = run_config(env="A", batch_size="1024")
    assert (fixed.batch_size, fixed.first_batch_size(), fixed.adapts()) == (1024, 1024, False)
    auto = run_config(**free, batch_size="auto", learning_rate=1e-3)
    rates = [auto.learning_rate_at(0, size) for size in (256, 1024, 4096, 65_536)]
    assert rates == pytest.approx([1e-3, 2e-3, 4e-3, 4e-3])
    assert run_config(**free, batch_size="auto", scale_learning_rate=1).learning_rate_at(0, 4096) == 3e-4
    assert fixed.learning_rate_at(0) == 3e-4  # a size that is given changes nothing else
    with pytest.raises(ValidationError, match="needs --replay-ratio free"):
        run_config(env="A", batch_size="auto")
    with pytest.raises(ValidationError, match="--devices do not go together"):
        run_config(**free, batch_size="auto", devices="cpu,cpu")
    with pytest.raises(ValidationError, match="needs --mode async"):
        run_config(**free, batch_size="auto", mode="serial")


def test_initial_temperature() -> None:
    assert run_config(env="A").first_ent_coef == 1.0
    assert run_config(env="A", ent_coef="auto_0.1").first_ent_coef == 0.1
    assert run_config(env="A", ent_coef="0.2").first_ent_coef == 0.2


@pytest.mark.parametrize("value", [1_000_000, 1e6, "1e6", "1000000", "1_000_000"])
def test_integers_may_be_written_as_whole_numbers(value: object) -> None:
    config = run_config(env="A", total_timesteps=value)  # type: ignore[arg-type]
    assert config.total_timesteps == 1_000_000
    assert isinstance(config.total_timesteps, int)


@pytest.mark.parametrize("value", [1.5, "1.5", "1e-3", "x", True, None, [1], "1e400", "nan", 0, -1])
def test_integers_that_are_none(value: object) -> None:
    with pytest.raises(ValidationError):
        run_config(env="A", total_timesteps=value)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", ["256,256", " 256 , 256 ", [256, 256], (256, 256.0)])
def test_hidden_accepts_text_and_lists(value: object) -> None:
    assert run_config(env="A", hidden=value).hidden == (256, 256)  # type: ignore[arg-type]
    assert run_config(env="A", hidden="none").hidden == run_config(env="A", hidden=[]).hidden == ()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("gamma", [-0.1, 1.1, "nan", "x", True, [0.5]]),
        ("tau", [0, 1.5]),
        ("learning_rate", [0, -1, 2, "lin_", "lin_x", "lin_0", "log_1"]),
        ("replay_ratio", [0, -1, "fre", "inf", 5000]),
        ("ratio_slack", [0, 0.5]),
        ("batch_size", [0, -1, 2.5, "aut", "auto_", "auto_0", "auto_x", 2**21, True]),
        ("ent_coef", ["auto_", "auto_0", "auto_-1", -0.1, "aut"]),
        ("target_entropy", ["aut", "nan"]),
        ("exploration_noise", [-0.1, "nan", "x"]),
        ("policy_delay", [0, 1.5, "x"]),
        ("target_policy_noise", [-0.1]),
        ("target_noise_clip", [-0.1]),
        ("hidden", ["0", "3,,3", "2.5", [-1], "x", 7.5, [[1]]]),
        ("activation", ["Relu", ""]),
        ("device", ["gpu", "cuda:", "cuda:x", 0, "cpu:0"]),
        ("threads", [0, "many", 1.5, 10**6]),
        ("samplers", [0, 1001]),
        ("name", ["", "a/b", "..", "."]),
        ("wrapper", [["a"], ["a:b:c"], "a:b", [1]]),
        ("env_kwargs", [["a"], ["1a=2"], {"a": {1}}, "a=1"]),
        ("log_every", [0, -1]),
        ("compile", ["maybe", 2]),
        ("env", ["", 3]),
    ],
)
def test_values_that_are_refused(name: str, values: list[object]) -> None:
    algo = next(algo for algo in BUILT_IN if name in config_type(algo).model_fields)
    for value in values:
        with pytest.raises(ValidationError, match=name):
            run_config(**{"algo": algo, "env": "A", name: value})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"samplers": 3, "num_envs": 2}, ("--num-envs 2", "--samplers 3")),
        ({"buffer_size": 2, "num_envs": 3}, ("--buffer-size 2", "--num-envs 3")),
        ({"ratio_slack": 2, "replay_ratio": 4}, ("--ratio-slack 2", "--replay-ratio 4")),
        ({"exchange_every": 4, "max_staleness": 2}, ("--max-staleness 2", "--exchange-every 4", "Use 3")),
        ({"device": "cpu", "devices": "cpu,cpu"}, ("--device cpu", "--devices cpu,cpu")),
        ({"mode": "serial", "replay_ratio": "free"}, ("--replay-ratio free", "--mode async")),
        ({"min_replay_ratio": 2.0}, ("--min-replay-ratio 2", "--replay-ratio free")),
    ],
)
def test_rules_between_options(options: dict[str, object], words: tuple[str, ...]) -> None:
    with pytest.raises(ValidationError) as caught:
        run_config(env="A", **options)  # type: ignore[arg-type]
    assert all(word in str(caught.value) for word in words)


def test_toml_round_trip(tmp_path: Path) -> None:
    config = run_config(
        env="pkg:Ant-v4",
        env_kwargs=["speed=2", "scale=0.5", 'name="a\\"b\\n"', "flag=True", "list=[1, 2]", "mode=human", "t={a = 1}"],  # type: ignore[arg-type]
        wrapper=("a.b:C",),
        learning_rate="lin_1e-5",
        replay_ratio="free",
        name="x y",
        seed=2**63 - 1,
        hidden=(8,),
    )
    assert config.env_kwargs == {
        "speed": 2, "scale": 0.5, "name": 'a"b\n', "flag": True, "list": [1, 2], "mode": "human", "t": {"a": 1}
    }  # fmt: skip
    assert read_config(config.to_toml()) == config
    path = tmp_path / "config.toml"
    path.write_text(config.to_toml())
    assert read_config(path) == config
    assert run_config(config.model_dump(mode="json")) == config


def test_a_value_cannot_smuggle_keys_in() -> None:
    text = "1\nother = 2"
    assert run_config(env="A", env_kwargs=[f"a={text}"]).env_kwargs == {"a": text}  # type: ignore[arg-type]


def test_from_toml_names_file_and_key(tmp_path: Path) -> None:
    path = tmp_path / "my.toml"
    path.write_text('env = "A"\nbatch_size = "many"\n')
    with pytest.raises(ConfigError, match=r'my\.toml: batch_size = "many": expected an integer from 1'):
        read_config(path)


def test_every_option_has_help_panel_and_expectation() -> None:
    for name, field in RunConfig.model_fields.items():
        assert field.description, name
        assert field.description.endswith("."), name
        assert metadata(field)["panel"], name
        assert expects(field), name


def test_infinite_arguments_survive_the_trip_to_a_worker_and_to_a_file() -> None:
    config = run_config(env="A", env_kwargs={"healthy_z_range": [0.2, float("inf")]})
    assert run_config(json.loads(json.dumps(config.model_dump(mode="json")))) == config
    assert read_config(config.to_toml()) == config


def test_a_launch_fits_into_the_slack_and_serial_mode_takes_one_at_a_time() -> None:
    config = run_config(env="Ant-v4", updates_per_launch=8)
    assert (config.launch(), config.slack()) == (8, 8.0)
    with pytest.raises(ValidationError, match="--updates-per-launch 8 is more than --ratio-slack 3"):
        run_config(env="Ant-v4", updates_per_launch=8, ratio_slack=3)
    serial = run_config(env="Ant-v4", updates_per_launch=8, mode="serial")
    assert (serial.launch(), serial.slack()) == (1, 1.0)


def test_staleness_is_least_in_serial_mode() -> None:
    def staleness(**values: object) -> int:
        return run_config(env="Ant-v4", devices=("cpu", "cpu"), **values).staleness()  # type: ignore[arg-type]

    assert [staleness(exchange_every=every) for every in (1, 4)] == [1, 7]
    assert [staleness(exchange_every=every, mode="serial") for every in (1, 4)] == [0, 3]
    assert staleness(mode="serial", max_staleness=5) == 5


@pytest.mark.parametrize(
    ("batch", "cap", "factor"), [(256, 8.0, 1.0), (1024, 8.0, 2.0), (8192, 8.0, 32**0.5), (131_072, 8.0, 8.0)]
)
def test_learning_rate_of_large_batches(batch: int, cap: float, factor: float) -> None:
    assert learning_rate_factor(batch, cap) == factor
    config = run_config(env="Ant-v4", batch_size=batch, scale_learning_rate=cap)
    assert config.learning_rate_at(0.5) == 3e-4 * factor
    linear = run_config(env="Ant-v4", batch_size=batch, scale_learning_rate=cap, learning_rate="lin_1e-3")
    assert linear.learning_rate_at(0.5) == pytest.approx(5e-4 * factor)
    assert run_config(env="Ant-v4", batch_size=batch).learning_rate_at(0) == 3e-4, "only where it was asked for"


@pytest.mark.parametrize(
    "other", [{"mode": "serial"}, {"prioritized": True}, {"devices": ("cpu", "cpu")}], ids=["serial", "per", "devices"]
)
def test_what_keeps_the_replay_buffer_on_the_host(other: dict[str, object]) -> None:
    name = "--" + next(iter(other))
    assert str(run_config(env="A", **other).replay_refusal()).startswith(name)  # type: ignore[arg-type]
    with pytest.raises(ValidationError, match=f"--replay-device device does not go together with {name}"):
        run_config(env="A", replay_device="device", **other)  # type: ignore[arg-type]
    assert run_config(env="A", replay_device="device").replay_refusal() is None


def test_a_resumed_run_cannot_change_what_was_learned() -> None:
    """Each option says so itself: those of an algorithm's networks by themselves, those of a user's file as well."""

    def fixed(algo: str, *names: str) -> set[bool]:
        return {metadata(config_type(algo).model_fields[name])["fixed"] for name in names}

    assert fixed("sac", "env", "seed", "gamma", "hidden", "network", "normalize_obs", "graph", "log_info") == {True}
    assert fixed("dqn", "dueling", "n_step_return", "priority_alpha") == fixed("ppo", "shared_network") == {True}
    assert fixed("sac", "total_timesteps", "target_critics", "samplers", "learning_rate", "eval_every") == {False}


def test_a_class_without_a_name_has_no_presets() -> None:
    """Of a notebook: its text is longer than the name of a file may be."""
    assert presets("pickle:" + 400 * "A", "CartPole-v1") == []
