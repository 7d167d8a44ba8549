"""Episodes without an end: what is said about them, and where an evaluation stops waiting."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlz.envs.spaces import EnvSpec

UNLIMITED_EVALUATION = 10_000
"""Env steps after which an evaluation cuts an episode, where no longer limit is known."""


def longest_evaluation(env_spec: "EnvSpec") -> int:
    """Env steps after which an evaluation cuts an episode that has not ended: never before the environment's limit."""
    return max(env_spec.max_episode_steps or 0, UNLIMITED_EVALUATION)


def start_notes(env_spec: "EnvSpec") -> list[str]:
    """What to say at the start of a run; nothing where the environment states a limit."""
    if env_spec.max_episode_steps is not None:
        return []
    return [
        f"{env_spec.env_id} states no time limit. An episode that does not end by itself goes on for ever in "
        f"training, and is cut after {UNLIMITED_EVALUATION:,} env steps in an evaluation. To set a limit: "
        "--max-episode-steps 1000"
    ]


def cut_note(env_spec: "EnvSpec", cut: int, episodes: int) -> str:
    """What to say after an evaluation with episodes that were cut."""
    return (
        f"{cut} of {episodes} evaluation episodes of {env_spec.env_id} did not end and were cut after "
        f"{longest_evaluation(env_spec):,} env steps. To set a limit: --max-episode-steps 1000"
    )
