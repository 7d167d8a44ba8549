"""Frames that cost little, and when they are drawn."""

import io
import math
import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from rlz.errors import EnvError
from rlz.watch import viewer
from rlz.watch.pictures import DEBT_S, FRAMES_PER_S, SIDE, Pace, jpeg, lighten


class Machine:
    """Clocks that move by what is done."""

    def __init__(self) -> None:
        self.now = self.spent = 100.0

    def work(self, seconds: float) -> None:
        self.now += seconds
        self.spent += seconds

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def play(self, seconds: float, *, fps: float, share: float, step: float, draw: float) -> tuple[float, float, float]:
        """Frames and env steps a second, and the share of the time that was spent."""
        pace = Pace(fps, share=share, now=lambda: self.now, spent=lambda: self.spent, sleep=self.sleep)
        frames, steps, begin, before = 0, 0, self.now, self.spent
        while self.now < begin + seconds:
            if pace.draw():
                self.work(draw)
                frames += 1
            pace.wait()
            self.work(step)
            steps += 1
        past = self.now - begin
        return frames / past, steps / past, (self.spent - before) / past


def test_where_there_is_room_an_episode_is_shown_in_its_own_time() -> None:
    frames, steps, _ = Machine().play(60, fps=30, share=math.inf, step=1e-4, draw=3e-3)
    assert frames == pytest.approx(FRAMES_PER_S, rel=0.05)
    assert steps == pytest.approx(30, rel=0.01)


@pytest.mark.parametrize("draw", [0.003, 0.01, 0.04])
def test_beside_a_run_frames_come_as_often_as_their_share_lets_them(draw: float) -> None:
    frames, steps, spent = Machine().play(60, fps=20, share=0.05, step=2e-4, draw=draw)
    assert steps == pytest.approx(20, rel=0.02), "the episode keeps its own time"
    assert spent <= 0.05 + DEBT_S / 60 + 0.001
    assert frames == pytest.approx(min(FRAMES_PER_S, (0.05 - 20 * 2e-4) / draw), rel=0.2)


def test_an_environment_that_is_slow_itself_goes_on_more_slowly() -> None:
    _, steps, spent = Machine().play(60, fps=20, share=0.05, step=0.02, draw=0.01)
    assert spent == pytest.approx(0.05, rel=0.05)
    assert 1 < steps < 2.6


def test_a_slow_start_is_forgotten() -> None:
    machine = Machine()
    pace = Pace(20, share=0.05, now=lambda: machine.now, spent=lambda: machine.spent, sleep=machine.sleep)
    assert pace.draw()
    machine.work(3.0)  # the first frame makes the OpenGL context
    began = machine.now
    while not pace.draw():
        pace.wait()
    assert machine.now - began < 2.5


def test_a_large_frame_is_halved_until_it_is_small() -> None:
    for side, shown in ((SIDE - 1, SIDE - 1), (2 * SIDE - 1, 2 * SIDE - 1), (2 * SIDE, SIDE), (3 * SIDE, SIDE)):
        picture = Image.open(io.BytesIO(jpeg(np.zeros((side, side, 3), np.uint8))))
        assert picture.size == (shown, shown)


def test_mujoco_draws_without_what_costs_most_and_others_are_left_alone() -> None:
    quality = SimpleNamespace(offsamples=4, shadowsize=4096)
    renderer = SimpleNamespace(width=640, height=480)
    env = SimpleNamespace(model=SimpleNamespace(vis=SimpleNamespace(quality=quality)), mujoco_renderer=renderer)
    lighten(SimpleNamespace(unwrapped=env), small=False)
    assert (quality.offsamples, quality.shadowsize, renderer.width) == (0, 0, 640)
    lighten(SimpleNamespace(unwrapped=env), small=True)
    assert (renderer.width, renderer.height) == (320, 240)
    lighten(SimpleNamespace(unwrapped=SimpleNamespace(model=None)), small=True)


def test_a_frame_that_cannot_be_drawn_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def render() -> None:
        raise RuntimeError("an OpenGL platform library has not been loaded into this process")

    def make(render_mode: str) -> SimpleNamespace:
        env = SimpleNamespace(metadata={}, render=render, reset=lambda seed: (0, {}), unwrapped=None)
        assert render_mode == "rgb_array"
        return env

    policy = SimpleNamespace(make_env=make, version=1, env_steps=2)
    newest: Callable[[Path], object] = lambda _: (policy, False)  # noqa: E731
    monkeypatch.setattr(viewer, "newest_policy", newest)
    sent: list[bytes] = []
    with pytest.raises(EnvError, match="package libegl1 and set MUJOCO_GL=egl"):
        viewer.play(tmp_path, lambda kind, _: sent.append(kind), lambda: None)
    assert sent == [b"T"]


def test_a_viewer_waits_when_it_is_asked_to_and_ends_with_the_server() -> None:
    asked, server = os.pipe()
    try:
        viewer.hold(asked)
        os.write(server, viewer.PAUSE)
        waiting = threading.Thread(target=viewer.hold, args=(asked,))
        waiting.start()
        waiting.join(0.1)
        assert waiting.is_alive()
        os.write(server, viewer.GO)
        waiting.join(10)
        assert not waiting.is_alive()
        os.write(server, viewer.PAUSE + viewer.GO)
        viewer.hold(asked)
        os.close(server)
        with pytest.raises(BrokenPipeError):
            viewer.hold(asked)
    finally:
        os.close(asked)
