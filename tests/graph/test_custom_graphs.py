"""Graphs of a user's own: two nodes that know nothing of learning, and a worker between samplers and learner."""

import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlz.config import RunConfig, run_config
from rlz.errors import ConfigError, GraphError
from rlz.records.checkpoint import newest_checkpoint
from rlz.records.replay_files import open_rows
from rlz.runtime.resume import resume
from rlz.runtime.train import train
from support import two_nodes
from support.training import Training, wait_for

HERE = Path(__file__).parent
SHAPER = f"{HERE.parents[1] / 'examples' / 'reward_shaper.py'}:graph"
FAKE = {"learner": "support.fake_learner:Learner"}
EXPECTED = {"count": 400, "sum": 400 * 399 / 2}


def config(folder: Path, **values: Any) -> RunConfig:
    defaults: dict[str, Any] = {
        **{"env": "Pendulum-v1", "mode": "serial", "total_timesteps": 300, "learning_starts": 250, "hidden": (8,)},
        **{"eval_every": 0, "runs_dir": str(folder), "name": "run", "buffer_size": 1000, "graph": SHAPER},
    }
    return run_config(**{**defaults, **values})


def rows(run: Path) -> dict[str, Any]:
    """What the learner could draw at the end, in order, of each environment."""
    checkpoint = newest_checkpoint(run)
    assert checkpoint.replay is not None
    parts = [part for lane in checkpoint.replay.lanes for part in open_rows(run, lane)]
    return {name: np.concatenate([part[name] for part in parts]) for name in ("obs", "action", "reward")}


def pendulum(found: dict[str, Any]) -> Any:
    """The environment's own reward for rows."""
    angle = np.arctan2(found["obs"][:, 1], found["obs"][:, 0])
    torque = 2.0 * found["action"][:, 0]
    return -(angle**2 + 0.1 * found["obs"][:, 2] ** 2 + 0.001 * torque**2)


@pytest.mark.parametrize("mode", ["serial", "async"])
def test_a_graph_of_two_nodes_runs(tmp_path: Path, mode: str) -> None:
    run = config(tmp_path, mode=mode, total_timesteps=400, num_envs=5, graph=f"{two_nodes.__file__}:graph")
    assert train(run, quiet=True) == 0
    assert json.loads((tmp_path / "run" / "sum.json").read_text()) == EXPECTED
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["status"], summary["env_steps"], summary["updates"]) == ("completed", 400, 0)


def test_the_learner_sees_the_shaped_reward_and_without_the_shaper_it_does_not(tmp_path: Path) -> None:
    shaped = config(tmp_path, name="shaped")
    plain = config(tmp_path, name="plain", graph=None)
    for run in (shaped, plain):
        assert train(run, quiet=True, workers=FAKE) == 0
    with_shaper, without = rows(tmp_path / "shaped"), rows(tmp_path / "plain")
    assert len(with_shaper["reward"]) == len(without["reward"]) == 300
    np.testing.assert_allclose(without["reward"], pendulum(without), atol=1e-5)  # negative control
    torque = 2.0 * with_shaper["action"][:, 0]
    np.testing.assert_allclose(with_shaper["reward"], pendulum(with_shaper) + 0.001 * torque**2, atol=1e-5)
    assert np.abs(with_shaper["reward"] - pendulum(with_shaper)).max() > 1e-3
    warm = slice(0, 250)  # uniform actions of the same random stream: the same transitions
    assert (with_shaper["obs"][warm] == without["obs"][warm]).all()


def test_a_run_with_a_shaper_goes_on_as_if_it_had_not_been_stopped(tmp_path: Path) -> None:
    assert train(config(tmp_path, name="whole"), quiet=True, workers=FAKE) == 0
    assert train(config(tmp_path, total_timesteps=270), quiet=True, workers=FAKE) == 0
    assert resume(tmp_path / "run", {"total_timesteps": 300}, quiet=True, workers=FAKE) == 0
    whole, parts = rows(tmp_path / "whole"), rows(tmp_path / "run")
    assert all((whole[name] == parts[name]).all() for name in whole)
    with pytest.raises(ConfigError, match="--graph"):
        resume(tmp_path / "run", {"total_timesteps": 400, "graph": None}, quiet=True, workers=FAKE)


def test_no_row_is_lost_or_doubled_when_the_shaper_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLZ_FAKE_LEARNER", "slow")  # the run is still there when the successor is
    run = Training(
        tmp_path, env="Pendulum-v1", env_kwargs={}, total_timesteps=900, learning_starts=50, graph=SHAPER, num_envs=2,
    )  # fmt: skip
    try:
        for steps in (80, 400):
            run.wait_for_steps(steps)
            old = run.worker("shaper")
            old.send_signal(signal.SIGKILL)
            wait_for(lambda pid=old.pid: run.process.poll() is not None or run.worker("shaper").pid != pid)
        assert run.wait() == 0, run.text()
    finally:
        run.process.kill()
        run.process.wait()
    found = rows(run.run_dir)
    torque = 2.0 * found["action"][:, 0]
    np.testing.assert_allclose(found["reward"], pendulum(found) + 0.001 * torque**2, atol=1e-4)
    assert len(found["reward"]) == 900
    assert len(np.unique(np.column_stack([found["obs"], found["action"]]), axis=0)) == len(found["reward"])
    assert run.summary()["restarts"] == 2
    run.assert_nothing_is_left()


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        ("no_such_file.py:graph", "--graph .*no_such_file.py: there is no such file"),
        ("no_such_module:graph", "--graph no_such_module:graph: there is no module 'no_such_module'"),
        (f"{two_nodes.__file__}:nothing", "has no 'nothing'"),
    ],
)
def test_a_graph_that_is_not_there_is_refused(tmp_path: Path, graph: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        train(config(tmp_path, graph=graph), quiet=True)
    assert not (tmp_path / "run").exists()


def test_a_function_that_gives_no_graph_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def graph(standard, answers):\n    return 3\n")
    with pytest.raises(GraphError, match="gave a int; expected"):
        train(config(tmp_path, graph=f"{tmp_path / 'mine.py'}:graph"), quiet=True)
