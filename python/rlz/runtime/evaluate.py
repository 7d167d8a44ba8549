"""`rlz eval`: score a policy of a run with the code that scores it during training; make a video."""

import math
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlz.errors import EnvError, UsageError
from rlz.runtime.video import check_video, make_for_video, recorder
from rlz.system.descendants import ended_afterwards

if TYPE_CHECKING:
    from rlz.loaded_policy import Policy
    from rlz.workers.evaluation import Episodes


SEEDS = {
    "held-out": "held out: reset seeds that no evaluation in training used",
    "training": "the reset seeds of the evaluations in training, which chose the best policy: its score is too high",
}
"""Lists of reset seeds by name, and what a report says of them."""


def evaluate(
    run: str | Path,
    *,
    episodes: int = 10,
    checkpoint: str | None = None,
    seeds: str = "held-out",
    max_episode_steps: int | None = None,
    video: Path | None = None,
) -> int:
    """Play whole episodes with the deterministic policy of a run and print how it did; returns the exit status.

    Parameters
    ----------
    run : run folder.
    episodes : how many.
    seeds : "held-out" starts as no evaluation in training did; "training" as those did, which chose the best policy.
    checkpoint : "best", "latest" or the name of a folder in `checkpoints/`; default: best, else latest.
    max_episode_steps : env steps after which an episode is truncated; default: as in training.
    video : file to write a video of all episodes to.

    Raises
    ------
    CheckpointError
        No such run or checkpoint, or broken files.
    EnvError
        The environment cannot be made or rendered.
    """
    from rlz.envs.limits import cut_note
    from rlz.workers.base import Report

    try:
        policy, result = score(
            run,
            episodes,
            checkpoint=checkpoint,
            seeds=seeds,
            max_episode_steps=max_episode_steps,
            video=video,
        )
    except EnvError as error:
        print(Report.of(error).traceback, end="", file=sys.stderr)  # the user's code; the message follows
        raise
    if result.cut:
        print(f"note: {cut_note(policy.spec, result.cut, episodes)}", file=sys.stderr)
    print(_report(policy, result, seeds))
    if video is not None:
        print(f"video: {video}")
    return 0


@ended_afterwards()
def score(
    run: str | Path,
    episodes: int,
    *,
    checkpoint: str | None = None,
    seeds: str = "held-out",
    max_episode_steps: int | None = None,
    video: Path | None = None,
) -> "tuple[Policy, Episodes]":
    """Play whole episodes as `evaluate` does, and print nothing; the policy and how it did."""
    if seeds not in SEEDS:
        raise UsageError(f"seeds {seeds!r}: expected {' or '.join(SEEDS)}")
    if video is not None:
        check_video(video)
        video = video.absolute()  # before the environment can change the folder
    import rlz
    from rlz.workers.environment import Environment
    from rlz.workers.evaluation import evaluation_seeds, held_out_seeds, own_globals, play

    policy = rlz.load(run, checkpoint)
    options = {} if max_episode_steps is None else {"max_episode_steps": max_episode_steps}
    starts = evaluation_seeds(episodes) if seeds == "training" else held_out_seeds(episodes)
    make = partial(policy.make_env, **options)
    with own_globals():
        raw = make() if video is None else make_for_video(make)
    env = Environment(raw, policy.spec, "eval")
    try:
        with recorder(video, env, raw.metadata) as frame:
            result = play(env, policy.acting, policy.spec, starts, frame=frame)
    finally:
        env.close()
    assert result is not None
    return policy, result


def _report(policy: Any, result: "Episodes", seeds: str) -> str:
    (rate,) = result.means_at_end
    success = "" if math.isnan(rate) else f"success {100 * rate:.0f} % of the episodes\n"
    low, high, count = min(result.returns), max(result.returns), len(result.returns)
    return (
        f"{policy.spec.env_id}: version {policy.version:,} of {policy.env_steps:,} env steps ({policy.path})\n"
        f"return  {result.return_mean:.2f} +- {result.return_std:.2f} over {count} episodes, "
        f"from {low:.2f} to {high:.2f}\n"
        f"length  {result.length_mean:.1f} +- {result.length_std:.1f} env steps\n"
        f"{success}"
        f"starts  {SEEDS[seeds]}"
    )
