"""Videos of `rlz eval`: made where frames can be had, refused with the fix where not."""

from pathlib import Path

import numpy as np
import pytest

from rlz.errors import CheckpointError, EnvError, RlzError
from rlz.records.policy_files import PolicyFiles, write_scored
from rlz.runtime import video as module
from rlz.runtime.evaluate import evaluate
from support.harness import Run, config


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    run = Run(config(env_kwargs={"truncate_after": 4}), tmp_path)
    parameters = np.zeros(run.streams.parameters.nbytes, np.uint8)
    files = PolicyFiles.of(run.config, run.env_spec, parameters, version=1, env_steps=10, updates=0)
    write_scored(tmp_path / "checkpoints", files, best=True)
    return tmp_path


def test_a_video_has_every_frame(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    imageio = pytest.importorskip("imageio")
    video = trained / "run.gif"
    assert evaluate(trained, episodes=2, video=video) == 0
    assert f"video: {video}" in capsys.readouterr().out
    assert len(imageio.mimread(video)) == 10


def test_without_a_gl_library_the_package_is_named(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from support import fake_envs

    def no_gl(self: object) -> None:
        raise ImportError("libEGL.so.1: cannot open shared object file")

    monkeypatch.setattr(fake_envs.Counting, "render", no_gl)
    with pytest.raises(EnvError, match=r"libEGL.so.1.*package libegl1 and set MUJOCO_GL=egl"):
        evaluate(trained, video=trained / "run.gif")


def test_an_environment_that_cannot_even_be_made_without_gl_names_the_package() -> None:
    def make(**_: object) -> None:
        raise EnvError("its constructor raised AttributeError: 'NoneType' object has no attribute 'eglQueryString'")

    with pytest.raises(EnvError, match=r"eglQueryString.*package libegl1 and set MUJOCO_GL=egl"):
        module.make_for_video(make)


def test_without_a_writer_the_package_is_named(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RlzError, match=r"uv sync --extra video"):
        evaluate(trained, video=trained / "run.mp4")
    with pytest.raises(RlzError, match=r"run.xyz: expected a name that ends in .mp4"):
        evaluate(trained, video=trained / "run.xyz")


def test_a_run_without_that_checkpoint_is_an_error(trained: Path) -> None:
    with pytest.raises(CheckpointError, match="latest"):
        evaluate(trained, checkpoint="latest")
