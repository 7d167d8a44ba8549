import pytest

from rlz.config.names import _FOREIGN, hint
from rlz.config.overrides import known_options

OWN = {"config", "print_config", "episodes"}
KNOWN = [*(name for name in known_options() if name != "algo"), *OWN]  # algo is a key, but no option


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("--n-envs", "--num-envs"),
        ("--gradient-steps", "--replay-ratio"),
        ("--train-freq", "--replay-ratio"),
        ("--n-timesteps", "--total-timesteps"),
        ("--policy-frequency", "--policy-delay"),
        ("--noise-std", "--exploration-noise"),
        ("--policy-noise", "--target-policy-noise"),
        ("--noise-clip", "--target-noise-clip"),
        ("--total-steps", "--total-timesteps"),
        ("--lr", "--learning-rate"),
        ("--net-arch", "--hidden"),
        ("--ent-coef-init", "--ent-coef"),
        ("--num-workers", "--samplers"),
        ("--use-wandb", "--track"),
        ("--algo", "rlz train sac"),
        ("--env-id", "--env"),
        ("--eval-freq", "--eval-every"),
        ("--cuda", "--device"),
        ("--capture-video", "rlz eval RUN --video"),
        ("--batch_size", "Write --batch-size"),
        ("--Gamma", "Write --gamma"),
        ("--no-gamma", "--gamma takes a value"),
        ("--lerning-rate", "Did you mean --learning-rate"),
    ],
)
def test_answers(name: str, answer: str) -> None:
    assert answer in hint(name, KNOWN, as_option=True)


def test_nothing_near_gives_nothing() -> None:
    assert hint("--zzzzzz", KNOWN, as_option=True) == ""


def test_keys_are_shown_with_underscores() -> None:
    assert hint("n_envs", KNOWN, as_option=False) == "rlz calls it num_envs."
    assert hint("batch-size", KNOWN, as_option=False) == "Write batch_size: keys have underscores."


def test_the_table_points_to_what_exists_and_hides_nothing() -> None:
    for name, (target, remark) in _FOREIGN.items():
        assert name not in KNOWN or name in OWN, name
        assert target in KNOWN or (not target and remark), name
