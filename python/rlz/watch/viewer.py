"""A process of its own that plays episodes of the newest policy and gives pictures of them: no sampler draws anything.

Started by the server while somebody watches. It writes messages to its standard output: a letter, a length, and as many
bytes. `F`: a JPEG. `T`: what is playing, in words. `P`: why nothing can be played; the last message.
"""

import io
import os
import struct
import sys
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlz._native import bind_to_parent
from rlz.errors import RlzError, TransportError
from rlz.runtime.live import Live
from rlz.runtime.video import checked, make_for_video, without_screen

if TYPE_CHECKING:
    from rlz.loaded_policy import Policy

HEADER = struct.Struct("!cI")
FRAMES_PER_S = 10.0
"""Most pictures a second, of the environment's own time; it does not run faster than that."""

SIZE = 480
QUALITY = 80
NICE = 19

Send = Callable[[bytes, bytes], None]


def newest_policy(run: Path) -> "Policy":
    """The newest policy: that of a live run's parameters, else of its newest checkpoint."""
    from rlz.loaded_policy import load

    try:
        with Live(run) as live:
            return live.policy()
    except TransportError:
        return load(run, "latest")


def play(run: Path, send: Send) -> None:
    """Play episodes for ever, each with the newest policy, in the environment's own time.

    Raises
    ------
    RlzError
        There is no policy, or the environment cannot be made or drawn.
    """
    policy = newest_policy(run)
    env = make_for_video(policy.make_env)
    fps = float(env.metadata.get("render_fps") or 30)
    every = max(1, round(fps / FRAMES_PER_S))
    for episode in count():
        send(b"T", f"episode {episode + 1}: version {policy.version}, after {policy.env_steps:,} env steps".encode())
        obs, _ = env.reset(seed=episode)
        due = time.monotonic()
        for step in count():
            if step % every == 0:
                send(b"F", jpeg(env.render()))
                time.sleep(max(0.0, due - time.monotonic()))
                due = max(due + every / fps, time.monotonic())
            obs, _, terminated, truncated, _ = env.step(policy.predict(obs))
            if terminated or truncated:
                break
        policy = newest_policy(run)


def jpeg(frame: Any) -> bytes:
    """A frame [height, width, 3] as a JPEG of at most `SIZE` pixels a side."""
    from PIL import Image

    picture = Image.fromarray(checked(frame)[..., :3])
    picture.thumbnail((SIZE, SIZE))
    data = io.BytesIO()
    picture.save(data, "JPEG", quality=QUALITY)
    return data.getvalue()


def main(run: str) -> None:
    """Run this process as a viewer until nobody reads its output any more."""
    bind_to_parent(os.getppid())
    os.nice(NICE)
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
        play(Path(run), send)
    except (BrokenPipeError, KeyboardInterrupt):
        pass
    except Exception as error:
        what = str(error) if isinstance(error, RlzError) else f"{type(error).__name__}: {error}"
        send(b"P", what.encode())
    os._exit(0)  # an environment's threads may not end


if __name__ == "__main__":
    main(sys.argv[1])
