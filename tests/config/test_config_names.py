import pytest

from rlz.config.overrides import known_options
from rlz.options.names import elsewhere, hint

OWN = {"config", "print_config", "episodes", "resume"}
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
        ("--algo", "rlz train ALGO"),
        ("--env-id", "--env"),
        ("--eval-freq", "--eval-every"),
        ("--cuda", "--device"),
        ("--capture-video", "rlz eval RUN --video"),
        ("--batch_size", "Write --batch-size"),
        ("--Gamma", "Write --gamma"),
        ("--no-gamma", "--gamma takes a value"),
        ("--lerning-rate", "Did you mean --learning-rate"),
        ("--max-ep-len", "--max-episode-steps"),
        ("--time-limit", "--max-episode-steps"),
        ("--grad-clip", "--max-grad-norm"),
        ("--start-e", "--exploration-initial-eps"),
        ("--target-network-frequency", "--target-every (in updates)"),
        ("--per", "--prioritized"),
        ("--per-alpha", "--priority-alpha"),
        ("--num-steps", "--n-steps (steps of each environment in a rollout"),
        ("--norm-obs", "--normalize-obs"),
        ("--frame-stack", "gymnasium.wrappers:FrameStackObservation,stack_size=4"),
        ("--load-checkpoint", "--resume"),
        ("--amp", "--precision"),
        ("--use-sde", "gSDE"),
        ("--optimizer", "Adam"),
    ],
)
def test_answers(name: str, answer: str) -> None:
    assert answer in hint(name, KNOWN, as_option=True)


NO_HINT = """
zzzzzz num_minibatches verbose progress
eval_deterministic eval_steps use_rnn rnn_size lstm epsilon eps
num_atoms v_min v_max start_method monitor reward_threshold early_stopping patience save_model push_to_hub hf_entity
port host nodes address backend ray multi_gpu n_quantiles
"""


@pytest.mark.parametrize("name", NO_HINT.split())
def test_a_hint_is_right_or_not_given(name: str) -> None:
    assert hint(f"--{name.replace('_', '-')}", KNOWN, as_option=True) == ""


def test_one_typing_error_in_a_name_is_understood() -> None:
    for name in KNOWN:
        wrong = {name[:i] + name[i + 1 :] for i in range(len(name))} | {
            name[:i] + "x" + name[i:] for i in range(len(name))
        }
        if len(name) > 4:
            wrong |= {name[:i] + "x" + name[i + 1 :] for i in range(len(name))}
            wrong |= {name[:i] + name[i + 1] + name[i] + name[i + 2 :] for i in range(len(name) - 1)}
            for text in wrong - set(KNOWN) - set(elsewhere()):
                assert f"--{name.replace('_', '-')}" in hint(text, KNOWN, as_option=True), text


def test_keys_are_shown_with_underscores() -> None:
    assert hint("n_envs", KNOWN, as_option=False) == "rlz calls it num_envs."
    assert hint("batch-size", KNOWN, as_option=False) == "Write batch_size: keys have underscores."


def test_the_table_points_to_what_exists_and_hides_nothing() -> None:
    for name, (target, remark) in elsewhere().items():
        assert name not in KNOWN or name in OWN, name
        assert target in KNOWN or (not target and remark), name
