"""Where a sampler's steps go: single transitions into a replay buffer, or segments into a trajectory queue.

A sampler writes observation, action and extras of a step into the arrays of `Steps`; the recorder takes them from
there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rlz._native import FLAG_FIRST, FLAG_TERMINATED, FLAG_TRUNCATED
from rlz.answers import Answers, Field, Replay
from rlz.dtypes import numpy_dtype
from rlz.errors import ConfigError, WaitTimeoutError

if TYPE_CHECKING:
    from rlz._native import QueueProducer, ReplayWriter, Subscriber, WriteSegment
    from rlz.envs.spaces import EnvSpec
    from rlz.transport import Streams


ALL = slice(None)


class Steps:
    """The present step of each environment of a sampler, [environments, ...].

    Attributes
    ----------
    obs, next_obs : flat, in the storage dtype.
    actions : as rlz holds them.
    extras : what the policy gives beside the action, by name.
    """

    def __init__(self, count: int, env_spec: EnvSpec, extras: Sequence[Field] = ()) -> None:
        self.count = count
        self.env_spec = env_spec
        self.obs: NDArray[Any] = np.zeros((count, env_spec.obs_dim), env_spec.obs_dtype)
        self.next_obs: NDArray[Any] = np.zeros_like(self.obs)
        self.actions: NDArray[Any] = np.zeros((count, env_spec.action_dim), env_spec.row_action_dtype)
        self.extras: dict[str, NDArray[Any]] = {
            name: np.zeros((count, *shape), numpy_dtype(dtype)) for name, dtype, shape in extras
        }


class Recorder(Protocol):
    """Takes every step of a sampler's environments, in the order of each environment."""

    @property
    def open(self) -> int:
        """Steps that were recorded and are not handed on yet."""

    def room(self, timeout: float | None, rows: slice = ALL) -> bool:
        """Whether a step of every environment (of some) can be recorded now; waits for it."""

    def record(self, i: int, reward: float, terminated: bool, truncated: bool, version: int) -> None:
        """Take the step of environment `i`. `version`: of the parameters that acted, 0 for a uniform action."""

    def cut(self, i: int) -> None:
        """The environment was lost: its next step begins an episode, and what is open of it ends as truncated."""

    def flush(self) -> None:
        """Hand on what can be; for the end of the run."""

    def close(self) -> None:
        """Give the stream back."""

    def state(self) -> dict[str, Any]:
        """What is open, as JSON values by name: a list with an entry for each environment."""

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a state of the same environments, or of the first of them."""


class TransitionRecorder:
    """Writes each step as a row of a replay buffer: obs, action, true next_obs, reward, discount (n-step: folded).

    Parameters
    ----------
    writer : of the replay buffer.
    lanes : of the environments.
    steps : arrays that the sampler writes.
    gamma : discount of a step that does not terminate.
    """

    def __init__(self, writer: ReplayWriter, lanes: Sequence[int], steps: Steps, gamma: float) -> None:
        self._writer = writer
        self._append = writer.append
        self._lanes = list(lanes)
        self._gamma = gamma
        self._flags = [FLAG_FIRST] * len(self._lanes)
        shape = steps.env_spec.obs_shape
        self._views = [
            (steps.obs[i].reshape(shape), steps.actions[i], steps.next_obs[i].reshape(shape))
            for i in range(len(self._lanes))
        ]

    @property
    def open(self) -> int:
        """Steps in open n-step windows."""
        return self._writer.pending

    def room(self, timeout: float | None, rows: slice = ALL) -> bool:
        """Always: the oldest rows are overwritten."""
        return True

    def record(self, i: int, reward: float, terminated: bool, truncated: bool, version: int) -> None:
        """See `Recorder`."""
        obs, action, next_obs = self._views[i]
        flags = self._flags[i]
        if terminated:
            flags |= FLAG_TERMINATED
        if truncated:
            flags |= FLAG_TRUNCATED
        row = (obs, action, next_obs, reward, 0.0 if terminated else self._gamma)
        self._append(self._lanes[i], row, version=version, flags=flags)
        self._flags[i] = FLAG_FIRST if terminated or truncated else 0

    def cut(self, i: int) -> None:
        """See `Recorder`."""
        self._writer.flush(self._lanes[i])
        self._flags[i] = FLAG_FIRST

    def flush(self) -> None:
        """Write the rows of open windows as truncated."""
        self._writer.flush()

    def close(self) -> None:
        """Give the lanes back."""
        self._writer.close()

    def state(self) -> dict[str, Any]:
        """See `Recorder`."""
        return {
            "flags": list(self._flags),
            "windows": [self._writer.open_windows(lane).hex() for lane in self._lanes],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """See `Recorder`."""
        self._flags[: len(state["flags"])] = state["flags"]
        for lane, window in zip(self._lanes, state["windows"], strict=False):
            self._writer.restore_open_windows(lane, bytes.fromhex(window))


@dataclass
class _Segment:
    """One that is being filled, the version of its first step, and the slot of the queue that it will go to."""

    fields: dict[str, NDArray[Any]]
    length: int = 0
    version: int = 0
    slot: WriteSegment | None = None

    def state(self) -> dict[str, Any]:
        steps = {name: values[: self.length].tobytes().hex() for name, values in self.fields.items()}
        return {"length": self.length, "version": self.version, "fields": steps}

    def restore(self, state: dict[str, Any]) -> None:
        self.length, self.version = state["length"], state["version"]
        for name, values in self.fields.items():
            flat = np.frombuffer(bytes.fromhex(state["fields"][name]), values.dtype)
            values[: self.length] = flat.reshape(self.length, *values.shape[1:])


LANE_BITS = 32
"""Of a segment's note, below its version."""


class SegmentRecorder:
    """Puts `length` consecutive steps of an environment at a time into a trajectory queue, episode ends included.

    The note of a segment is `version << 32 | lane`; the version is that of its first step, the oldest in it. Segments
    of a lane arrive in their order. Steps that are open at the end of the run are dropped.

    A segment has its slot of the queue from its first step on. So the queue's size, in rollouts, is how far acting is
    ahead of learning: steps are not made with a policy only to wait for their turn until it is old.

    In synchronous learning an environment begins a segment only when there is a version with which it has begun none.
    The next version comes when a segment of every environment has been learned from, so all steps of a segment are of
    one version, and nobody waits for ever: whatever is dropped or lost, with the newest version every environment may
    begin one.

    Parameters
    ----------
    producer : of the queue, whose fields are `EnvSpec.segment_fields` and the extras with `length` before each shape.
    lanes : of the environments.
    steps : arrays that the sampler writes.
    length : steps of a segment.
    parameters : for versions, in synchronous learning; None: nobody waits for them.
    groups : of environments that step together.
    """

    def __init__(
        self,
        producer: QueueProducer,
        lanes: Sequence[int],
        steps: Steps,
        length: int,
        parameters: Subscriber | None = None,
        groups: Sequence[slice] = (ALL,),
    ) -> None:
        self._producer = producer
        self._lanes = list(lanes)
        self._length = length
        self._parameters = parameters
        self._groups = groups
        self._between = True  # some environment may be between two segments
        spec, extras = steps.env_spec, steps.extras
        shape = spec.obs_shape
        kept = {name: (values.shape[1:], values.dtype) for name, values in extras.items()}
        own = {name: (shape, numpy_dtype(dtype)) for name, dtype, shape in spec.segment_fields()}
        arrays = {**own, **kept}.items()
        self._segments = [
            _Segment({name: np.zeros((length, *shape), dtype) for name, (shape, dtype) in arrays}) for _ in self._lanes
        ]
        sources = [
            {
                "obs": steps.obs[i].reshape(shape),
                "action": steps.actions[i],
                "next_obs": steps.next_obs[i].reshape(shape),
                **{name: values[i : i + 1].reshape(values.shape[1:]) for name, values in extras.items()},
            }
            for i in range(len(self._lanes))
        ]
        self._copies = [
            [(segment.fields[name], value) for name, value in source.items()]
            for segment, source in zip(self._segments, sources, strict=True)
        ]
        self._ends = [
            tuple(segment.fields[name] for name in ("reward", "terminated", "truncated")) for segment in self._segments
        ]
        self._open = 0

    @property
    def open(self) -> int:
        """Steps of segments that are not in the queue."""
        return self._open

    def room(self, timeout: float | None, rows: slice = ALL) -> bool:
        """Wait for a version to begin segments with, and take their slots."""
        if not self._between:
            return True
        segments = self._segments[rows]
        try:
            used = [segment.version for segment in segments if segment.length == 0]
            if used and self._parameters is not None:
                self._parameters.wait_newer(max(used), timeout=timeout)
            for segment in segments:
                # An environment holds one slot, and there are as many as environments: nobody waits for ever.
                segment.slot = segment.slot or self._producer.acquire(timeout=timeout)
        except WaitTimeoutError:
            return False
        self._between = rows != ALL  # nothing is known of the others
        return True

    def record(self, i: int, reward: float, terminated: bool, truncated: bool, version: int) -> None:
        """See `Recorder`. A segment that becomes full goes to the queue at once."""
        segment = self._segments[i]
        at = segment.length
        if at == 0:
            segment.version = version
        for into, value in self._copies[i]:
            into[at] = value
        rewards, terminations, truncations = self._ends[i]
        rewards[at], terminations[at], truncations[at] = reward, terminated, truncated
        segment.length = at + 1
        self._open += 1
        if segment.length == self._length:
            self._between = True
            self._put(self._lanes[i], segment)

    def cut(self, i: int) -> None:
        """The last step that is open ends as truncated; one that is in the queue already stays as it is."""
        segment = self._segments[i]
        if segment.length and not segment.fields["terminated"][segment.length - 1]:
            segment.fields["truncated"][segment.length - 1] = True

    def flush(self) -> None:
        """Nothing: segments have a fixed length."""

    def close(self) -> None:
        """Give the queue back; what is open is dropped."""
        for segment in self._segments:
            if segment.slot is not None:
                segment.slot.abort()
        self._producer.close()

    def state(self) -> dict[str, Any]:
        """See `Recorder`."""
        return {"segments": [segment.state() for segment in self._segments]}

    def restore(self, state: dict[str, Any]) -> None:
        """See `Recorder`."""
        for segment, saved in zip(self._segments, state["segments"], strict=False):
            segment.restore(saved)
        self._between = True
        for rows in self._groups if self._parameters is not None else ():
            group = self._segments[rows]
            if len({segment.length for segment in group}) > 1:
                # They would wait for each other: one for the next version, which comes when the others are as far.
                for segment in group:
                    segment.length, segment.version = 0, 0
        self._open = sum(segment.length for segment in self._segments)

    def _put(self, lane: int, segment: _Segment) -> None:
        slot = segment.slot
        assert slot is not None, "a step without room"
        for name, values in segment.fields.items():
            slot[name] = values
        slot.note = segment.version << LANE_BITS | lane
        slot.commit()
        self._open -= segment.length
        segment.slot, segment.length = None, 0


def make_recorder(
    answers: Answers,
    streams: Streams,
    env_spec: EnvSpec,
    lanes: Sequence[int],
    worker: int,
    parameters: Subscriber,
    groups: Sequence[slice] = (ALL,),
) -> tuple[Recorder, Steps]:
    """The recorder of what an algorithm learns from, and the arrays that it takes steps from.

    Parameters
    ----------
    answers : of the algorithm.
    streams : with the one replay buffer, or trajectory queue, that the sampler writes.
    env_spec : of the environments.
    lanes, worker : of the sampler.
    parameters : that it acts with.
    groups : of its environments, those that step together.

    Raises
    ------
    ConfigError
        Segments keep what a policy gives beside its actions, and the first actions are to be uniform ones.
    """
    data = answers.data
    if isinstance(data, Replay):
        steps = Steps(len(lanes), env_spec)
        writer = streams.replay.writer(list(lanes), worker=worker, n_step=data.n_step)
        return TransitionRecorder(writer, lanes, steps, data.gamma), steps
    extras = answers.policy.extras
    if data.starts and extras:
        names = ", ".join(name for name, _, _ in extras)
        raise ConfigError(f"segments keep {names}, which uniform actions have not: starts is {data.starts}, expected 0")
    steps = Steps(len(lanes), env_spec, extras)
    waits_for = parameters if data.max_lag == 0 else None
    producer = streams.queue.producer(worker=worker)
    return SegmentRecorder(producer, lanes, steps, data.length, waits_for, groups), steps
