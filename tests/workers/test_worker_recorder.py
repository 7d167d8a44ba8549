"""What a recorder hands on, step by step, for steps whose every number is known."""

from typing import Any

import numpy as np
import pytest

from rlz._native import ParameterStore, TrajectoryQueue
from rlz.answers import Field
from rlz.envs.spaces import EnvSpec
from rlz.errors import WaitTimeoutError
from rlz.workers.recorder import ALL, SegmentRecorder, Steps

EXTRAS: tuple[Field, ...] = (("log_prob", "f32", ()), ("state", "f32", (2,)))
SPACES = EnvSpec(
    env_id="Fake-v0",
    obs_shape=(2, 1),
    obs_dtype="uint8",
    action_shape=(),
    action_dtype="int64",
    action_low=(0.0,),
    action_high=(9.0,),
    max_episode_steps=None,
)
LENGTH = 4
EACH = slice(0, 1), slice(1, 2)


class Run:
    """A queue, a recorder of two environments, and steps numbered 1, 2, ... in each."""

    def __init__(self, slots: int = 8, *, synchronous: bool = False, groups: tuple[slice, ...] = EACH) -> None:
        fields = [*SPACES.segment_fields(), *EXTRAS]
        queue = [(name, dtype, (LENGTH, *shape)) for name, dtype, shape in fields]
        self.queue = TrajectoryQueue.create(queue, slots=slots, run_id=1)
        self.consumer = self.queue.consumer(worker=5)
        self.at = [0, 0]
        self.parameters = ParameterStore.create([("weight", "f32", (1,))], run_id=1)
        self.publisher = self.parameters.publisher(worker=1)
        self.synchronous, self.groups = synchronous, groups
        self.begin(worker=3)

    def begin(self, worker: int) -> None:
        self.steps = Steps(2, SPACES, EXTRAS)
        self.recorder = SegmentRecorder(
            *(self.queue.producer(worker=worker), [7, 9], self.steps, LENGTH),
            self.parameters.subscriber(worker=worker) if self.synchronous else None,
            self.groups,
        )

    def publish(self) -> None:
        self.publisher.publish(np.zeros(4, np.uint8), env_steps=0, updates=0)

    def step(self, i: int, *, terminated: bool = False, truncated: bool = False, version: int = 1) -> None:
        assert self.recorder.room(0.0, EACH[i])
        steps, n = self.steps, self.at[i] + 1
        steps.obs[i], steps.next_obs[i], steps.actions[i] = n, n + 100, n % 10
        steps.extras["log_prob"][i], steps.extras["state"][i] = -n, (n, i)
        self.recorder.record(i, n / 2, terminated, truncated, version)
        self.at[i] = n

    def pop(self) -> tuple[dict[str, Any], int, int]:
        """The oldest segment, its version and lane."""
        with self.consumer.pop(timeout=0.0) as segment:
            names = segment.keys()
            return {name: segment[name].copy() for name in names}, segment.note >> 32, segment.note & 0xFFFF


def check(fields: dict[str, Any], first: int, i: int) -> None:
    numbers = np.arange(first, first + LENGTH)
    assert (fields["obs"] == numbers[:, None, None]).all()
    assert (fields["next_obs"] == numbers[:, None, None] + 100).all()
    assert fields["obs"].dtype == np.uint8
    assert fields["obs"].shape == (LENGTH, 2, 1)
    assert fields["action"].tolist() == [[n % 10] for n in numbers]
    assert fields["reward"].tolist() == [n / 2 for n in numbers]
    assert fields["log_prob"].tolist() == [-n for n in numbers]
    assert fields["state"].tolist() == [[n, i] for n in numbers]


def test_segments_hold_consecutive_steps_of_one_environment_with_all_of_each() -> None:
    run = Run()
    for n in range(1, 9):
        run.step(0, terminated=n == 2, truncated=n in (3, 8), version=n)
        if n % 2:
            run.step(1, version=50)
    (first, version, lane), (other, other_version, other_lane), (second, later, _) = (run.pop() for _ in range(3))
    check(first, 1, 0)
    check(other, 1, 1)
    check(second, 5, 0)
    assert (version, lane, other_version, other_lane, later) == (1, 7, 50, 9, 5)  # of the first step: the oldest
    assert first["terminated"].tolist() == [False, True, False, False]
    assert first["truncated"].tolist() == [False, False, True, False]
    assert second["truncated"].tolist() == [False, False, False, True]
    # The true final observation of the truncation inside, from which it bootstraps.
    assert (first["next_obs"][2] == 103).all()
    with pytest.raises(WaitTimeoutError):
        run.pop()
    assert run.recorder.open == 0


def test_a_segment_has_its_place_from_its_first_step_on() -> None:
    """So nothing waits for a place when it is done, and is older by then; and one that is slow holds no other up."""
    run = Run(slots=2)
    run.step(0)
    for _ in range(LENGTH):
        run.step(1)
    assert run.recorder.open == 1
    assert not run.recorder.room(0.0, EACH[1]), "one is full, one is being filled"
    check(run.pop()[0], 1, 1)
    for _ in range(LENGTH):
        run.step(1)
    check(run.pop()[0], 1 + LENGTH, 1)
    for _ in range(LENGTH - 1):
        run.step(0)
    check(run.pop()[0], 1, 0)
    run.step(0)
    run.recorder.close()
    assert run.queue.occupancy()["free"] == 2, "it gives its places back"


def test_a_state_goes_on_in_the_middle_of_a_segment() -> None:
    run = Run()
    for _ in range(3):
        run.step(0, version=4)
    run.step(1)
    state = run.recorder.state()
    run.recorder.close()
    run.begin(worker=4)
    run.recorder.restore(state)
    assert run.recorder.open == 4
    run.step(0, version=9)
    fields, version, _ = run.pop()
    check(fields, 1, 0)
    assert version == 4


def test_an_environment_that_was_lost_ends_its_episode_as_truncated() -> None:
    run = Run()
    for _ in range(2):
        run.step(0)
    run.step(1, terminated=True)
    run.recorder.cut(0)
    run.recorder.cut(1)
    for _ in range(3):
        run.step(0)
        run.step(1)
    fields, other = run.pop()[0], run.pop()[0]
    assert fields["truncated"].tolist() == [False, True, False, False]
    assert (other["terminated"][0], other["truncated"].any()) == (True, False)


def test_a_version_that_is_older_than_the_newest_is_followed_by_another_segment() -> None:
    """A server acts with it still. Its segment is dropped, so nobody else would make the next version come."""
    run = Run(synchronous=True)
    run.publish()
    for _ in range(LENGTH):
        run.step(0, version=1)
        run.step(1, version=1)
    assert not run.recorder.room(0.0)
    run.publish()
    for version in (1, 2):
        assert run.recorder.room(0.0)
        for _ in range(LENGTH):
            run.step(0, version=version)
            run.step(1, version=version)
    assert not run.recorder.room(0.0)


@pytest.mark.parametrize(("groups", "kept"), [(EACH, 4), ((ALL,), 0)])
def test_open_segments_are_dropped_where_environments_would_wait_for_each_other(
    groups: tuple[slice, ...], kept: int
) -> None:
    run = Run(synchronous=True, groups=groups)
    run.publish()
    for _ in range(3):
        run.step(0)
    run.step(1)
    state = run.recorder.state()
    run.recorder.close()
    run.begin(worker=4)
    run.recorder.restore(state)
    assert run.recorder.open == kept
    assert all(run.recorder.room(0.0, rows) for rows in groups)
