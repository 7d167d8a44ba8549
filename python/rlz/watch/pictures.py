"""Frames of an environment that cost little, and the moments at which they are drawn."""

import io
import math
import time
from collections.abc import Callable
from typing import Any

from rlz.runtime.video import checked

FRAMES_PER_S, LIVE_FRAMES_PER_S = 10.0, 5.0
"""Most frames a second: of a run that has ended, and beside one that lives."""

SHARE = 0.025
"""Part of the machine's CPU time that playing may take beside a live run: of four cores, a tenth of one."""

DEBT_S, MOST_DEBT_S = 0.05, 0.1
"""CPU time by which steps alone may be ahead of that; frames wait for all of it. Beyond the most it is forgotten."""

SIDE = 480
"""Pixels that a frame has at least where it has more: it is halved above twice as many."""

MUJOCO_SIDE = 320
"""Most pixels of MuJoCo's frames."""

QUALITY = 80


def lighten(env: Any, *, small: bool) -> None:
    """Have a MuJoCo environment draw without shadow maps and multisampling, before its first frame.

    On a CPU that is a seventh of the time for HalfCheetah-v5, and a twelfth when it is `small`. Nothing but the picture
    changes.
    """
    renderer = getattr(env.unwrapped, "mujoco_renderer", None)
    # Zero where there is no renderer of MuJoCo, or where it states no size.
    width, height = (int(getattr(renderer, side, None) or 0) for side in ("width", "height"))
    if small and renderer is not None and min(width, height) > 0 and (largest := max(width, height)) > MUJOCO_SIDE:
        renderer.width, renderer.height = (MUJOCO_SIDE * side // largest for side in (width, height))
    quality = getattr(getattr(getattr(env.unwrapped, "model", None), "vis", None), "quality", None)
    if quality is not None:
        quality.offsamples = quality.shadowsize = 0


def jpeg(frame: Any) -> bytes:
    """A frame [height, width, 3] as a JPEG."""
    from PIL import Image

    picture = Image.fromarray(checked(frame)[..., :3])
    if (times := max(picture.size) // SIDE) > 1:
        picture = picture.reduce(times)  # the mean of whole pixels: a tenth of the time of a finer filter
    data = io.BytesIO()
    picture.save(data, "JPEG", quality=QUALITY)
    return data.getvalue()


class Pace:
    """When to step and when to draw: in the environment's own time, and within a share of the machine.

    Parameters
    ----------
    fps : env steps a second of the environment's own time.
    frames_per_s : most frames a second.
    share : seconds of CPU time a second; infinity: as many as it takes.
    """

    def __init__(
        self,
        fps: float,
        frames_per_s: float = FRAMES_PER_S,
        share: float = math.inf,
        *,
        now: Callable[[], float] = time.monotonic,
        spent: Callable[[], float] = time.process_time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.frames_per_s, self.share = frames_per_s, share
        self._fps = fps
        self._now, self._spent, self._sleep = now, spent, sleep
        self._at, self._used = now(), spent()
        self._debt = 0.0
        self._step_due = self._frame_due = self._at

    def draw(self) -> bool:
        """Whether a frame is to be drawn of the present state."""
        now = self._look()
        # The next step may be nearer to the moment at which a frame is due than this one.
        if self._debt > 0.0 or now < self._frame_due - 0.5 / self._fps:
            return False
        self._frame_due = max(self._frame_due + 1.0 / self.frames_per_s, now)
        return True

    def wait(self) -> None:
        """Wait until the next step is due."""
        now = self._look()
        # Late steps are not made up for: the picture goes on at its own speed.
        self._step_due = max(self._step_due + 1.0 / self._fps, now)
        over = (self._debt - DEBT_S) / self.share
        if (left := max(self._step_due - now, over)) > 0.0:
            self._sleep(left)

    def _look(self) -> float:
        now, used = self._now(), self._spent()
        earned = (now - self._at) * self.share if now > self._at else 0.0
        self._debt = min(MOST_DEBT_S, max(0.0, self._debt + used - self._used - earned))
        self._at, self._used = now, used
        return now
