"""The plan of runs that learn from rollouts."""

import pytest

from rlz.config import RunConfig, resolve
from rlz.errors import ConfigError
from rlz.planning.planned import planned
from rlz.planning.rollouts import of_rollouts


def config(algo: str = "ppo", **options: object) -> RunConfig:
    return resolve(algo, "Pendulum-v1", {"num_envs": 4, "n_steps": 64, "batch_size": 64, **options}, None)


@pytest.mark.parametrize(
    ("algo", "cores", "envs", "samplers", "why"),
    [
        ("ppo", 2, 4, 2, "the learner waits while they step"),
        ("appo", 2, 4, 2, "the learner uses"),
        ("ppo", 8, 4, 4, "there are 4 environments"),
        ("ppo", 1, 4, 1, "one for each of 1 core"),
    ],
)
def test_there_is_a_sampler_for_each_core(algo: str, cores: int, envs: int, samplers: int, why: str) -> None:
    found = of_rollouts(config(algo, num_envs=envs), (), cores=cores)
    assert found.choices == {"samplers": samplers}
    assert why in found.reasons["samplers"]
    assert found.apply(config(algo, num_envs=envs)).num_envs == envs, "what is learned stays as it is"


def test_options_that_are_given_win_and_files_are_refused() -> None:
    found = planned(config(samplers=1), {"samplers"})
    assert (found.config.samplers, found.plan.choices, found.plan.given) == (1, {}, ("samplers",))
    assert planned(config(plan="off")).plan.basis == "off"
    assert planned(config(mode="serial")).plan.basis == "serial"
    with pytest.raises(ConfigError, match=r"--plan some.toml: .* Give auto or off"):
        planned(config(plan="some.toml"))
    made = planned(config())
    assert made.config.samplers == made.plan.choices["samplers"]
    assert "plan by the number of cores: samplers" in made.plan.headline()
