"""Looking into a live run from outside; `rlz.transport.serving`, on which it stands, has its own tests."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlz.errors import NotServedError, TransportError
from rlz.loaded_policy import Policy
from rlz.runtime.live import SOCKET, Live, open_door
from rlz.tracking import WorkerInfo
from rlz.tracking.reading import Reader
from rlz.transport.serving import Door
from rlz.transport.stats import Stat
from support.harness import Run, config

DOCS = (Path(__file__).parents[2] / "docs" / "transport.md").read_text()
WORKERS = [
    WorkerInfo("learner", "learner", 0, 12, progress="updates"),
    WorkerInfo("sampler-0", "sampler", 2, 34, 1, (0,), progress="env_steps"),
]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    made = Run(config(), tmp_path)
    yield made
    made.streams.close()


@contextmanager
def served(run: Run, folder: Path) -> Iterator[Door]:
    """Serve a run from a thread, as the controller's loop does."""
    door = open_door(folder, run.job, run.streams, lambda: WORKERS)
    closing = threading.Event()

    def work() -> None:
        while not closing.wait(0.01):
            assert door.answer()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield door
    finally:
        closing.set()
        thread.join()
        door.close()


def test_it_shows_board_counts_and_workers_and_changes_nothing(run: Run, tmp_path: Path) -> None:
    with served(run, tmp_path), Live(tmp_path) as seen:
        assert seen.workers() == WORKERS
        assert (seen.pid, seen.limiter.env_steps, seen.limiter.lane_steps()) == (os.getpid(), 0, [0])
        run.streams.stats.set(2, Stat.LEARNING_RATE, 0.5)
        assert seen.stats.read()[2][Stat.LEARNING_RATE] == 0.5
        with pytest.raises(TransportError, match="read-only"):
            seen.stats.set(2, Stat.LEARNING_RATE, 1.0)
        before = seen.state
        run.limiter.stop()
        assert seen.state != before


def test_a_reading_from_outside_loses_no_row(run: Run, tmp_path: Path) -> None:
    with served(run, tmp_path), Live(tmp_path) as seen:
        reader = Reader(seen, seen.workers)
        writer = run.replay.writer([0], worker=3)
        for _ in range(3):
            run.limiter.acquire_steps([0], np.zeros(1, np.int64), worker=3, timeout=0)
            writer.append_packed(0, np.zeros(run.replay.stride, np.uint8), version=0)
            run.limiter.complete_step(0)
        reading = reader.read()
        assert (reading.env_steps, reading.rows, reading.rows_lost) == (3, 3, 0)


def test_the_newest_actor_of_a_live_run(run: Run, tmp_path: Path) -> None:
    with served(run, tmp_path), Live(tmp_path) as seen:
        with pytest.raises(TransportError, match="nothing has been published"):
            seen.policy()
        for seed in (1, 2):
            run.publish(env_steps=10 * seed, scale=1.0, seed=seed)
            policy = seen.policy()
            assert isinstance(policy, Policy)
            assert (policy.version, policy.env_steps, policy.algo) == (seed, 10 * seed, "sac")
            env = policy.make_env()
            obs, _ = env.reset(seed=0)
            action = policy.predict(obs)
            assert env.action_space.contains(action)
            # The same numbers, by way of the run's own store.
            parameters = np.empty(run.streams.parameters.nbytes, np.uint8)
            run.streams.parameters.subscriber().read(parameters)
            policy.acting.load(parameters)
            np.testing.assert_array_equal(policy.predict(obs), action)


def test_the_example_of_the_document_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run(config(env_kwargs={"truncate_after": 20}), tmp_path)
    text = DOCS.split("## Looking at a running job")[1].split("\n## ")[0].split("A training run of rlz")[1]
    example = "\n".join(line[4:] for line in text.splitlines() if line.startswith("    "))
    folder = tmp_path / "runs" / "my-run"
    folder.mkdir(parents=True)
    run.publish(env_steps=7)
    monkeypatch.chdir(tmp_path)
    with served(run, folder):
        exec(example, {})
    assert capsys.readouterr().out.startswith("version 1, after 7 of 0 env steps: ")


def test_a_run_that_is_not_alive(run: Run, tmp_path: Path) -> None:
    with pytest.raises(NotServedError, match="is not alive"):
        Live(tmp_path)
    (tmp_path / SOCKET).touch(0o666)
    with pytest.raises(NotServedError, match="is not alive"):
        Live(tmp_path)
    with served(run, tmp_path):
        Live(tmp_path).close()
    assert not (tmp_path / SOCKET).exists()


@pytest.mark.parametrize("change", [{"started": "x"}, {"workers": [{}]}, {"policy": None}, {"rows": None}])
def test_another_version_is_named(
    run: Run, tmp_path: Path, change: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(run, tmp_path) as door:
        info = door._describe()
        assert isinstance(info, dict)
        monkeypatch.setattr(door, "_describe", lambda: {**info, **change})
        with pytest.raises(TransportError, match="another version of rlz"):
            Live(tmp_path)
        monkeypatch.setattr(door, "_describe", dict)
        with pytest.raises(TransportError, match="another version of rlz"):
            Live(tmp_path)
