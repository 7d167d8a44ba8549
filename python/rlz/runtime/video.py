"""Videos of `rlz eval`: found out before anything is played whether one can be made, and why not."""

import ctypes.util
import importlib.util
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rlz.errors import EnvError, RlzError
from rlz.options.names import either

if TYPE_CHECKING:
    from rlz.workers.environment import Environment

Frame = Callable[[Any], None]

NO_GL = (
    "a video needs an OpenGL library, and none works here ({reason}). On Debian or Ubuntu: install the package libegl1 "
    "and set MUJOCO_GL=egl"
)
NO_WRITER = "a video needs the package imageio with ffmpeg. To install it: uv sync --extra video"
SUFFIXES = (".mp4", ".mkv", ".mov", ".avi", ".webm", ".gif")
MODE = "rgb_array"

_OF_GL = re.compile(r"\b(lib)?(EGL|OpenGL|GLX?|OSMesa|GLEW|MUJOCO_GL|GLFW)\b|libE?GL|eglQuery|PYOPENGL", re.IGNORECASE)


def check_video(path: Path) -> None:
    """Find out before anything is played whether a video can be made; choose a way to render without a screen.

    Raises
    ------
    RlzError
        The name has another ending than those of videos, or a package or the folder is missing.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise RlzError(f"--video {path}: expected a name that ends in {either(list(SUFFIXES))}, such as run.mp4.")
    needed = ["imageio"] if path.suffix.lower() == ".gif" else ["imageio", "imageio_ffmpeg"]
    if any(importlib.util.find_spec(name) is None for name in needed):
        raise RlzError(NO_WRITER)
    if not path.absolute().parent.is_dir():
        raise RlzError(f"--video {path}: there is no folder {path.absolute().parent}")
    without_screen()


def without_screen() -> None:
    """Choose a way to render where there is no screen, before mujoco and pygame are imported, which read it."""
    if not os.environ.get("DISPLAY") and not os.environ.get("WAYLAND_DISPLAY"):
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
        if "MUJOCO_GL" not in os.environ and ctypes.util.find_library("EGL") is not None:
            os.environ["MUJOCO_GL"] = "egl"


def make_for_video(make: Callable[..., Any]) -> Any:
    """Make an environment that renders frames.

    Parameters
    ----------
    make : makes it; takes `render_mode`.

    Raises
    ------
    EnvError
        It cannot be made, or cannot render; says which.
    """
    try:
        return make(render_mode=MODE)
    except EnvError as error:
        if _OF_GL.search(str(error)):  # MuJoCo cannot even be imported then, so the environment cannot be made plainly
            raise EnvError(_problem(str(error))) from error
        plain = make()  # raises, and says why, where the environment itself is the problem
        modes = plain.metadata.get("render_modes", [])
        plain.close()
        if MODE not in modes:
            raise EnvError(_cannot_render(modes)) from error
        raise EnvError(_problem(str(error))) from error


def _cannot_render(modes: Any) -> str:
    has = f"only {', '.join(map(str, modes))}" if modes else "none"
    return (
        f'the environment cannot give frames for a video: that takes render_mode="{MODE}", and of render modes it has '
        f"{has}"
    )


def _problem(reason: str) -> str:
    return NO_GL.format(reason=reason) if _OF_GL.search(reason) else f"no frame for the video: {reason}"


@contextmanager
def recorder(video: Path | None, env: "Environment", metadata: Any) -> Iterator[Frame | None]:
    """Give the function that takes each frame; None without a video.

    Parameters
    ----------
    video : file, absolute.
    env : the environment; it is reset, and gives one frame.
    metadata : its own, for frames per second.

    Raises
    ------
    EnvError
        It gives no frames.
    RlzError
        The file cannot be written.
    """
    if video is None:
        yield None
        return
    import imageio

    fps = int(metadata.get("render_fps") or 30)
    env.reset(env.room(), seed=0)
    rendered(env, metadata)
    # Most codecs need an even number of pixels; the frames' own size is kept otherwise.
    options: dict[str, Any] = {"fps": fps, "macro_block_size": 2}
    if video.suffix.lower() == ".gif":
        options = {"duration": 1000 / fps}  # milliseconds per frame
    make: Any = imageio.get_writer
    try:
        writer = make(video, **options)
    except (OSError, ValueError, RuntimeError) as error:
        raise RlzError(f"--video {video}: {error}. Use a name such as run.mp4 or run.gif") from error
    with writer:
        yield lambda frame: writer.append_data(checked(frame))


def rendered(env: Any, metadata: Any) -> Any:
    """A frame of an environment; EnvError, with what to do, where it gives none.

    Parameters
    ----------
    env : has `render`.
    metadata : its own.
    """
    try:
        frame = env.render()
    except Exception as error:
        raise EnvError(_problem(f"{type(error).__name__}: {error}")) from error
    if frame is None:
        raise EnvError(_cannot_render(metadata.get("render_modes", [])))
    return frame


def checked(frame: Any) -> Any:
    """The frame, if it is one; else EnvError."""
    array = np.asarray(frame)
    if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] not in (3, 4):
        raise EnvError(
            f"render() of the environment gave a {array.dtype} array of shape {array.shape}; a frame is uint8 "
            "[height, width, 3]"
        )
    return array
