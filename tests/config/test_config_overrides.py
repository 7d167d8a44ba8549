import tomllib
from pathlib import Path

import pytest

from rlz.algorithms.registry import BUILT_IN
from rlz.config import resolve, resolve_with_origins, run_config
from rlz.config.overrides import known_options
from rlz.config.presets import presets
from rlz.errors import ConfigError, UsageError


def test_later_layers_win_and_origins_are_told(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text("seed = 7\nbatch_size = 128\nlearning_starts = 50\n")
    resolved = resolve_with_origins("sac", "Ant-v4", {"batch_size": "64"}, path)
    config, origins = resolved.config, resolved.origins
    assert (config.batch_size, config.seed, config.learning_starts, config.gamma) == (64, 7, 50, 0.99)
    assert origins["batch_size"] == "command line"
    assert origins["seed"] == origins["learning_starts"] == str(path)
    assert origins["total_timesteps"] == 'preset sac.toml [env."Ant-v*"]'
    assert "gamma" not in origins


def test_environment_and_algorithm_may_come_from_the_file(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(run_config(env="Pendulum-v1", seed=3).to_toml())
    config = resolve(None, None, {}, path)
    assert (config.algo, config.env, config.seed) == ("sac", "Pendulum-v1", 3)
    assert config.learning_rate == 3e-4  # the file is complete: no preset shows through


def test_env_kwargs_are_merged_key_by_key(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text("env_kwargs = { a = 1, b = 2 }\n")
    resolved = resolve_with_origins("sac", "Ant-v4", {"env_kwargs": ["b=3"]}, path)
    assert resolved.config.env_kwargs == {"a": 1, "b": 3}
    assert resolved.origins["env_kwargs"] == f"{path}, command line"


def test_render_is_toml_with_origins() -> None:
    resolved = resolve_with_origins("sac", "Ant-v4", {"total_timesteps": "2e4", "env_kwargs": ["x=1"]})
    text = resolved.render()
    assert run_config(**tomllib.loads(text)) == resolved.config
    lines = {line.split(" = ")[0]: line for line in text.splitlines()}
    assert lines["total_timesteps"].startswith("total_timesteps = 20000")
    assert lines["total_timesteps"].endswith("# command line")
    assert lines["gamma"].endswith("# default")
    assert lines["num_envs"].endswith("# default: one per sampler and group")
    assert lines["learning_starts"].endswith('# preset sac.toml [env."Ant-v*"]')


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": "0"}, "--batch-size 0: expected an integer from 1 to 1048576, auto, or auto_ before"),
        ({"tau": "0"}, "--tau 0: expected a number above 0 and at most 1."),
        ({"activation": "rlu"}, "--activation rlu: expected relu, tanh, silu or elu. Did you mean relu or elu?"),
        ({"env_kwargs": ["a"]}, "--env-kwargs a: expected key=value"),
        ({"wrapper": ["x"]}, "--wrapper x: expected module:Class"),
        ({"replay_ratio": "fre"}, "--replay-ratio fre: expected a number above 0 and at most 1024"),
        ({"num_envs": "1", "samplers": "2"}, "--num-envs 1 is less than --samplers 2"),
        ({"device": "gpu"}, "--device gpu: expected auto, cpu, cuda or cuda:N"),
        ({"sede": 3}, "Did you mean seed"),
        ({"policy_delay": "2"}, "--policy-delay is an option of td3, not of sac. Leave it out."),
    ],
)
def test_option_errors_give_value_and_range(options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        resolve("sac", "Ant-v4", options)
    assert message in str(caught.value)


def test_all_errors_are_told_at_once() -> None:
    with pytest.raises(UsageError) as caught:
        resolve("sac", "Ant-v4", {"samplers": "0", "gamma": "2"})
    assert len(str(caught.value).splitlines()) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seed = 1\nn_envs = 3", "unknown key 'n_envs'. rlz calls it num_envs."),
        ("seed = 1\nbatch-size = 3", "Write batch_size: keys have underscores."),
        ("seed = 1\nbach_size = 3", "Did you mean batch_size"),
        ("[project]\nname = 'x'", "is it another program's file?"),
        ("a: 1", "is not TOML"),
        ("gamma = true", "gamma = true: expected a number from 0 to 1."),
        ("gamma = [1]", "gamma = [1]: expected a number from 0 to 1."),
        ("seed = 2026-01-01", "seed = 2026-01-01: expected an integer"),
        ("algo = 'sacc'", "Unknown algorithm 'sacc'. Did you mean sac?"),
    ],
)
def test_file_errors(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "run.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        resolve(None if "algo" in text else "sac", "Ant-v4", {}, path)
    assert message in str(caught.value)
    assert not isinstance(caught.value, UsageError)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("")
    with pytest.raises(ConfigError, match=r"There is no file .*rnu\.toml\. Did you mean .*run\.toml"):
        resolve("sac", "A", {}, tmp_path / "rnu.toml")
    with pytest.raises(ConfigError, match="Is a directory"):
        resolve("sac", "A", {}, tmp_path)
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not UTF-8"):
        resolve("sac", "A", {}, tmp_path / "bytes.toml")


def test_algorithm_and_environment_are_needed(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Which algorithm"):
        resolve(None, "Ant-v4")
    with pytest.raises(UsageError, match="Which environment"):
        resolve("sac", None)
    with pytest.raises(UsageError, match="The algorithm comes first: rlz train sac --env Ant-v4"):
        resolve("Ant-v4", None)


@pytest.mark.parametrize(
    ("env", "section"),
    [
        ("Ant-v4", 'env."Ant-v*"'),
        ("Ant-v5", 'env."Ant-v*"'),
        ("Ant", 'env."Ant-v*"'),
        ("pkg.sub:Ant-v4", 'env."Ant-v*"'),
        ("Pendulum-v1", 'env."Pendulum-v1"'),
        ("AntMaze-v4", "defaults"),
        ("InvertedPendulum-v5", "defaults"),
    ],
)
def test_preset_of_an_environment(env: str, section: str) -> None:
    assert presets("sac", env)[-1].origin == f"preset sac.toml [{section}]"


@pytest.mark.parametrize(
    ("algo", "option"),
    [("td3", "ent_coef"), ("ddpg", "target_entropy"), ("ddpg", "policy_delay"), ("sac", "exploration_noise")],
)
def test_options_of_other_algorithms_are_refused_and_not_written(tmp_path: Path, algo: str, option: str) -> None:
    default = known_options()[option].default
    with pytest.raises(UsageError, match=f"--{option.replace('_', '-')} is an option of .*, not of {algo}"):
        resolve(algo, "Ant-v4", {option: default})
    path = tmp_path / "run.toml"
    path.write_text(f"{option} = {default!r}\n")
    with pytest.raises(ConfigError, match=f"not of {algo}"):
        resolve(algo, "Ant-v4", {}, path)
    resolved = resolve_with_origins(algo, "Ant-v4")
    assert f"{option} =" not in resolved.render()
    path.write_text(resolved.render())
    assert resolve(None, None, {}, path) == resolved.config


@pytest.mark.parametrize("algo", BUILT_IN)
def test_every_preset_is_valid(algo: str) -> None:
    import rlz.config

    text = (Path(rlz.config.__file__).parents[1] / "configs" / f"{algo}.toml").read_text()
    for env in tomllib.loads(text)["env"]:
        config = resolve(algo, env.replace("*", "4"))
        assert config.total_timesteps >= config.data().starts


def test_preset_values() -> None:
    pendulum, ant, swimmer = (resolve("sac", env) for env in ("Pendulum-v1", "Ant-v4", "Swimmer-v5"))
    assert (pendulum.total_timesteps, pendulum.learning_starts, pendulum.learning_rate) == (20_000, 100, 1e-3)
    assert (ant.total_timesteps, ant.learning_starts, ant.learning_rate) == (1_000_000, 10_000, 3e-4)
    assert swimmer.gamma == 0.999
    for algo, critics in (("td3", 2), ("ddpg", 1)):
        config = resolve(algo, "Pendulum-v1")
        assert (config.learning_starts, config.learning_rate, config.gamma) == (10_000, 1e-3, 0.98)
        assert (config.hidden, config.n_critics, config.exploration_noise) == ((400, 300), critics, 0.1)
    cart_pole = resolve("dqn", "CartPole-v1")
    assert (cart_pole.replay_ratio, cart_pole.target_every, cart_pole.hidden) == (0.5, 128, (256, 256))
