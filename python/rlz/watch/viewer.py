"""A process of its own that plays episodes and gives pictures of them: no sampler draws anything.

Started by the server when somebody asks for it. It writes messages to its standard output: a letter, a length, and as
many bytes. `F`: a JPEG. `T`: what is playing, in words. `P`: why nothing can be played. `D`: a recording is whole.
After `P` and `D` it ends. What it reads are single letters: `PAUSE` and `GO`.
"""

import math
import os
import select
import struct
import sys
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from rlz._native import bind_to_parent
from rlz.errors import CheckpointError, RlzError, TransportError
from rlz.runtime.live import Live
from rlz.runtime.video import check_video, make_for_video, recorder, rendered, without_screen
from rlz.system.cores import cores
from rlz.system.priority import give_way
from rlz.watch.pictures import FRAMES_PER_S, LIVE_FRAMES_PER_S, SHARE, Pace, jpeg, lighten

if TYPE_CHECKING:
    from rlz.loaded_policy import Policy

HEADER = struct.Struct("!cI")
PAUSE, GO = b"p", b"g"
TOLD_S = 0.5
"""Seconds between two words on how far a recording is."""

Send = Callable[[bytes, bytes], None]


def newest_policy(run: Path) -> "tuple[Policy, bool]":
    """The newest policy, and whether the run lives: that of its parameters, else of its newest checkpoint."""
    from rlz.loaded_policy import load

    try:
        with Live(run) as live:
            return live.policy(), True
    except TransportError:
        return load(run, "latest"), False


def hold(asked: int = 0) -> None:
    """Wait while the server has asked for a pause. (A process that a signal has stopped would outlive the server.)

    Raises
    ------
    BrokenPipeError
        The server is gone.
    """
    paused = False
    while paused or select.select([asked], [], [], 0)[0]:
        words = os.read(asked, 4096)
        if not words:
            raise BrokenPipeError
        paused = words.endswith(PAUSE)


def play(run: Path, send: Send, hold: Callable[[], None] = hold) -> None:
    """Play episodes for ever, each with the newest policy, in the environment's own time.

    Parameters
    ----------
    run : run folder.
    send : takes messages.
    hold : called before each step; returns when it may be made.

    Raises
    ------
    RlzError
        There is no policy, or the environment cannot be made or drawn.
    """
    policy, lives = newest_policy(run)
    env = make_for_video(policy.make_env)
    lighten(env, small=True)
    pace = Pace(float(env.metadata.get("render_fps") or 30))
    for episode in count():
        if lives:
            pace.frames_per_s, pace.share = LIVE_FRAMES_PER_S, SHARE * cores()
        else:
            pace.frames_per_s, pace.share = FRAMES_PER_S, math.inf
        send(b"T", f"episode {episode + 1}: version {policy.version}, after {policy.env_steps:,} env steps".encode())
        obs, _ = env.reset(seed=episode)
        done = False
        while not done:
            if pace.draw():
                send(b"F", jpeg(rendered(env, env.metadata)))
            pace.wait()
            hold()
            obs, _, terminated, truncated, _ = env.step(policy.predict(obs))
            done = terminated or truncated
        send(b"F", jpeg(rendered(env, env.metadata)))
        policy, lives = newest_policy(run)


def record(run: Path, file: Path, send: Send) -> None:
    """Write the first episode of the last evaluation to a video: the same policy, from the same start.

    Raises
    ------
    RlzError
        There is no policy, a package is missing, or the environment cannot be made or drawn.
    """
    from rlz.loaded_policy import load
    from rlz.workers.environment import Environment
    from rlz.workers.evaluation import evaluation_seeds, own_globals
    from rlz.workers.evaluation import play as play_whole

    check_video(file)
    try:
        policy = load(run, "evaluated")
    except CheckpointError:  # without evaluations, or of an older version of rlz
        policy = load(run)
    with own_globals():
        raw = make_for_video(policy.make_env)
    lighten(raw, small=False)
    env = Environment(raw, policy.spec, "video")
    which = f"version {policy.version}, after {policy.env_steps:,} env steps"
    told, frames = time.monotonic(), 0
    with recorder(file, env, raw.metadata) as write:
        assert write is not None

        def take(frame: object) -> None:
            nonlocal told, frames
            write(frame)
            frames += 1
            if time.monotonic() - told >= TOLD_S:
                told = time.monotonic()
                send(b"T", f"recording {which}: {frames:,} frames".encode())

        found = play_whole(env, policy.acting, policy.spec, evaluation_seeds(1), frame=take)
    assert found is not None
    send(b"T", f"{which}: return {found.returns[0]:,.2f} in {found.lengths[0]:,} env steps".encode())
    send(b"D", b"")


def main(run: str, file: str | None = None) -> None:
    """Run this process as a viewer until nobody reads its output any more; `file`: record there instead."""
    bind_to_parent(os.getppid())
    give_way()
    os.environ.setdefault("LP_NUM_THREADS", "1")  # Mesa draws on the CPU with every core otherwise
    without_screen()
    output = os.dup(1)
    os.dup2(2, 1)  # what an environment prints must not come in between

    def send(kind: bytes, data: bytes) -> None:
        with memoryview(HEADER.pack(kind, len(data)) + data) as left:
            at = 0
            while at < len(left):
                at += os.write(output, left[at:])

    try:
        if file is None:
            play(Path(run), send)
        else:
            record(Path(run), Path(file), send)
    except (BrokenPipeError, KeyboardInterrupt):
        pass
    except Exception as error:
        what = str(error) if isinstance(error, RlzError) else f"{type(error).__name__}: {error}"
        send(b"P", what.encode())
    os._exit(0)  # an environment's threads may not end


if __name__ == "__main__":
    main(*sys.argv[1:])
