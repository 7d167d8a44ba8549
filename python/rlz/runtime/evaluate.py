"""`rlz eval`: score a policy of a run with the code that scores it during training; make a video."""

import ctypes.util
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlz.errors import EnvError, RlzError

if TYPE_CHECKING:
    from rlz.workers.evaluation import Evaluation

Frame = Callable[[Any], None]

NO_GL = (
    "a video needs an OpenGL library, and none works here ({reason}). On Debian or Ubuntu: install the package libegl1 "
    "and set MUJOCO_GL=egl"
)
NO_WRITER = "a video needs the package imageio with ffmpeg: pip install 'rlz[video]' (or 'imageio[ffmpeg]')"


SEEDS = {
    "held-out": "held out: no evaluation in training began so",
    "training": "those of the evaluations in training, which chose the best policy: its score here is too high",
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
    if video is not None:
        _check_video(video)
    import rlz
    from rlz.envs.limits import cut_note
    from rlz.workers.base import Report
    from rlz.workers.environment import Environment
    from rlz.workers.evaluation import evaluation_seeds, held_out_seeds, own_globals, play

    policy = rlz.load(run, checkpoint)
    options = {} if max_episode_steps is None else {"max_episode_steps": max_episode_steps}
    starts = evaluation_seeds(episodes) if seeds == "training" else held_out_seeds(episodes)
    with own_globals():
        raw = policy.make_env(**options) if video is None else _make_for_video(policy, options)
    env = Environment(raw, policy.spec, "eval")
    try:
        with _recorder(video, raw) as frame:
            result = play(env, policy.native, policy.spec, starts, frame=frame)
    except EnvError as error:
        print(Report.of(error).traceback, end="", file=sys.stderr)  # the user's code; the message follows
        raise
    finally:
        env.close()
    assert result is not None
    if result.cut:
        print(f"note: {cut_note(policy.spec, result.cut, episodes)}", file=sys.stderr)
    print(_report(policy, result, seeds))
    if video is not None:
        print(f"video: {video}")
    return 0


def _report(policy: Any, result: "Evaluation", seeds: str) -> str:
    low, high, count = min(result.returns), max(result.returns), len(result.returns)
    return (
        f"{policy.spec.env_id}: version {policy.version:,} of {policy.env_steps:,} env steps ({policy.path})\n"
        f"return  {result.mean:.2f} +- {result.std:.2f} over {count} episodes, from {low:.2f} to {high:.2f}\n"
        f"length  {result.mean_length:.1f} +- {result.std_length:.1f} env steps\n"
        f"starts  {SEEDS[seeds]}"
    )


def _check_video(path: Path) -> None:
    """Find out before anything is played whether a video can be made; choose a way to render without a screen."""
    needed = ["imageio"] if path.suffix.lower() == ".gif" else ["imageio", "imageio_ffmpeg"]
    if any(importlib.util.find_spec(name) is None for name in needed):
        raise RlzError(NO_WRITER)
    if not path.absolute().parent.is_dir():
        raise RlzError(f"--video {path}: there is no folder {path.absolute().parent}")
    # These are read when mujoco and pygame are imported, which is later.
    if not os.environ.get("DISPLAY") and not os.environ.get("WAYLAND_DISPLAY"):
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
        if "MUJOCO_GL" not in os.environ and ctypes.util.find_library("EGL") is not None:
            os.environ["MUJOCO_GL"] = "egl"


def _make_for_video(policy: Any, options: dict[str, Any]) -> Any:
    try:
        return policy.make_env(render_mode="rgb_array", **options)
    except EnvError as error:
        policy.make_env().close()  # raises, and says why, where the environment itself is the problem
        raise EnvError(NO_GL.format(reason=error)) from error


@contextmanager
def _recorder(video: Path | None, env: Any) -> Iterator[Frame | None]:
    if video is None:
        yield None
        return
    import imageio

    fps = int(env.metadata.get("render_fps") or 30)
    try:
        env.reset(seed=0)
        first = env.render()
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise EnvError(NO_GL.format(reason=reason)) from error
    if first is None:
        raise EnvError('the environment gives no frames: it does not support render_mode="rgb_array"')
    # Most codecs need an even number of pixels; the frames' own size is kept otherwise.
    options: dict[str, Any] = {"fps": fps, "macro_block_size": 2}
    if video.suffix.lower() == ".gif":
        options = {"duration": 1000 / fps}  # milliseconds per frame
    make: Any = imageio.get_writer
    with make(video, **options) as writer:
        yield writer.append_data
