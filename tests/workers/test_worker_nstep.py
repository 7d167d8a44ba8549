"""n-step rows from the sampler against the definition, for every kind of end and number of environments."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlz._native import FLAG_FIRST, FLAG_TERMINATED, FLAG_TRUNCATED
from rlz.tracking import WorkerInfo
from rlz.tracking.reading import Reader
from rlz.transport.stats import Stat
from rlz.workers.sampler import Sampler
from support.harness import Run, config

GAMMA = 0.9


def expected(steps: int, n: int, length: int, ending: str) -> list[tuple[float, float, int, int]]:
    """(reward, discount, step and episode of next_obs) of every row, each from its own window."""
    rows = []
    for t in range(steps):
        reward, discount, last = 0.0, 1.0, t
        for later in range(t, min(t + n, steps)):
            in_episode = later % length + 1
            reward += discount * in_episode  # the environment's reward is the step in the episode
            discount *= 0.0 if in_episode == length and ending == "terminate_after" else GAMMA
            last = later
            if in_episode == length:
                break
        rows.append((reward, discount, last % length + 1, last // length + 1))
    return rows


@pytest.mark.parametrize("ending", ["terminate_after", "truncate_after"])
@pytest.mark.parametrize(("n", "envs"), [(2, 1), (3, 2), (9, 1)])
def test_rows_are_those_of_the_definition(tmp_path: Path, ending: str, n: int, envs: int) -> None:
    length, steps = 5, 23
    run = Run(
        config(
            total_timesteps=steps * envs, learning_starts=20, num_envs=envs, n_step_return=n, gamma=GAMMA,
            env_kwargs={ending: length},
        ),
        tmp_path,
    )  # fmt: skip
    run.publish()
    sampler = Sampler(run.spec("sampler"), run.streams)
    reader = Reader(run.streams, lambda: [WorkerInfo.of(run.place("sampler"), 0)])
    sampler.start()
    while sampler.step(0.0):
        open_rows = run.limiter.env_steps - sum(run.replay.committed())
        assert run.stat("sampler", Stat.ROWS_PENDING) == open_rows <= envs * (n - 1)
        assert reader.read(1.0).rows_lost == 0
    sampler.close()
    assert run.stat("sampler", Stat.ROWS_PENDING) == 0
    assert run.stat("sampler", Stat.ROWS_WRITTEN) == run.limiter.env_steps == steps * envs
    for lane in range(envs):
        rows, meta = run.rows(lane)
        found = zip(
            rows["reward"].tolist(), rows["discount"].tolist(), rows["next_obs"][:, 1].tolist(),
            rows["next_obs"][:, 0].tolist(), strict=True,
        )  # fmt: skip
        for row, definition in zip(found, expected(steps, n, length, ending), strict=True):
            assert row == pytest.approx(definition, rel=1e-6)
        assert rows["obs"][:, 1].tolist() == [t % length for t in range(steps)]
        at_end = FLAG_TERMINATED if ending == "terminate_after" else FLAG_TRUNCATED
        own = [
            (FLAG_FIRST if t % length == 0 else 0) | (at_end if t % length == length - 1 else 0) for t in range(steps)
        ]
        own[-1] |= FLAG_TRUNCATED  # the window was open at the stop
        assert [int(word) & 0xFFFF for word in meta] == own
    run.streams.close()


def test_open_windows_go_on_in_another_sampler(tmp_path: Path) -> None:
    values: dict[str, Any] = {"env": "Pendulum-v1", "learning_starts": 100, "n_step_return": 4}
    rows = []
    for parts in ([30], [13, 17]):
        run = Run(config(**{**values, "total_timesteps": 100}), tmp_path)
        state = None
        for steps in parts:
            sampler = Sampler(run.spec("sampler"), run.streams)
            sampler.start()
            if state is not None:
                sampler.restore(state)
            for _ in range(steps):
                assert sampler.step(0.0)
            state = sampler.state()
            sampler._recorder.restore({"flags": [0], "windows": [""]})  # so that closing writes nothing
            sampler.close()
        found, meta = run.rows()
        rows.append((found, meta & np.uint64(0xFFFF)))
        run.streams.close()
    (whole, flags), (parted, parted_flags) = rows
    assert len(flags) == len(parted_flags) == 27
    assert all(whole[name].tobytes() == parted[name].tobytes() for name in whole)


def test_windows_of_another_n_are_refused(tmp_path: Path) -> None:
    run = Run(config(n_step_return=5, total_timesteps=100, learning_starts=50), tmp_path)
    sampler = Sampler(run.spec("sampler"), run.streams)
    sampler.start()
    for _ in range(10):
        sampler.step(0.0)
    state = bytes.fromhex(sampler._recorder.state()["windows"][0])
    sampler.close()
    short = run.replay.writer([0], worker=9, n_step=3)
    with pytest.raises(ValueError, match="n-step state"):
        short.restore_open_windows(0, state)
    with pytest.raises(ValueError, match="whole 64-bit words"):
        short.restore_open_windows(0, state[:-1])
    short.close()
    plain = run.replay.writer([0], worker=9)
    with pytest.raises(ValueError, match="folds no steps"):
        plain.restore_open_windows(0, state)
    plain.restore_open_windows(0, b"")
    run.streams.close()
