"""A sampler whose environments act in groups: one steps while others wait for the answers of an inference server.

Which group comes next is a matter of who is ready, so one that waits for its answer, or for the learner's leave, holds
no other up. An environment that is slow to step holds up those of its own sampler, which has one thread.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rlz._native import RUNNING
from rlz.acting import RemotePolicy, make_policy
from rlz.errors import WaitTimeoutError
from rlz.placement import split_lanes
from rlz.transport.stats import Stat, Waiting
from rlz.workers.base import WorkerSpec, waiting
from rlz.workers.sampler import Sampler

if TYPE_CHECKING:
    from rlz.answers import PolicySpec
    from rlz.transport import Streams


@dataclass
class _Group:
    """Neighbouring environments of the sampler, and its arrays for them.

    `tickets` [m]: of the step that it is about to make, -1 where an environment waits; `versions` [m]: of the
    parameters that chose its actions; `obs` [m, *obs_shape].
    """

    number: int
    rows: slice
    lanes: list[int]
    tickets: NDArray[np.int64]
    obs: NDArray[Any]
    actions: NDArray[Any]
    extras: dict[str, NDArray[Any]]
    versions: NDArray[np.uint64] = field(init=False)

    def __post_init__(self) -> None:
        self.versions = np.zeros(len(self.lanes), np.uint64)


class GroupedSampler(Sampler):
    """See `Sampler`, and the module. Asks an inference server where its node gives an inference stream."""

    def __init__(self, spec: WorkerSpec, streams: Streams) -> None:
        super().__init__(spec, streams)
        shape = spec.environment().obs_shape
        self._idle: deque[_Group] = deque()  # that need step indices, the one first that has none for longest
        self._ready: deque[_Group] = deque()  # whose actions are chosen
        self._asked: dict[int, _Group] = {}  # that wait for answers
        for number, rows in enumerate(self._groups(spec)):
            lanes = self._lanes[rows]
            self._idle.append(
                _Group(
                    number,
                    rows,
                    lanes,
                    self._tickets[rows],
                    self._obs[rows].reshape(len(lanes), *shape),
                    self._actions[rows],
                    {name: values[rows] for name, values in (self._extras or {}).items()},
                )
            )

    def step(self, timeout: float | None) -> bool:
        """Make a transition in every environment of a group that is ready (of all that are, when it may not wait)."""
        over = False
        for _ in range(len(self._idle)):
            over |= self._begin(self._idle.popleft(), timeout) is False
        if not self._ready and not self._asked:
            self._flush()
            return not over and (timeout == 0.0 or self._wait_to_begin(timeout))
        while (group := self._next(timeout)) is not None:
            for i, ticket, version in zip(
                range(group.rows.start, group.rows.stop), group.tickets.tolist(), group.versions.tolist(), strict=True
            ):
                if ticket >= 0:
                    self._transition(i, ticket, version)
            self._enter(Stat.OTHER_S)
            self._idle.append(group)
            if timeout != 0.0:
                return True
        return self._streams.limiter.state == RUNNING

    def state(self) -> dict[str, Any]:
        """See `Sampler`. The order of the groups is that in which they draw random numbers."""
        waiting = [*self._idle, *self._ready, *self._asked.values()]
        return {**super().state(), "groups": [group.number for group in waiting]}

    def restore(self, state: dict[str, Any]) -> None:
        """See `Sampler`; other groups keep their own order."""
        super().restore(state)
        order = {number: at for at, number in enumerate(state.get("groups", ()))}
        self._idle = deque(sorted(self._idle, key=lambda group: order.get(group.number, len(order))))

    def close(self) -> None:
        """See `Sampler`."""
        if isinstance(self._policy, RemotePolicy):
            self._policy.close()
        super().close()

    def _groups(self, spec: WorkerSpec) -> tuple[slice, ...]:
        found = split_lanes(len(spec.lanes), min(spec.run_config().env_groups, len(spec.lanes)))
        return tuple(slice(numbers[0], numbers[-1] + 1) for numbers in found)

    def _make_policy(self, policy: PolicySpec, seed: np.random.SeedSequence) -> Any:
        spec, streams = self._spec, self._streams
        if not streams.graph.of_kind("inference", spec.node().gives):
            return make_policy(policy, seed)
        groups = [list(spec.lanes[rows]) for rows in self._groups(spec)]
        client = streams.inference.client(groups, worker=spec.worker_id)
        return RemotePolicy(spec.environment(), client, seed.spawn(3)[2])  # a policy has the first two

    def _begin(self, group: _Group, timeout: float | None) -> bool | None:
        """Take step indices for a group and have its actions chosen. False: there will be no more; None: not now."""
        if self._segments and not self._recorder.room(0.0, group.rows):
            self._idle.append(group)
            return None
        granted = self._acquire(group.lanes, group.tickets, 0.0)
        if not granted:
            self._idle.append(group)
            return granted if granted is None else False
        return self._choose(group, timeout)

    def _choose(self, group: _Group, timeout: float | None) -> bool | None:
        self._enter(Stat.ACT_S)
        tickets, starts, remote = group.tickets, self._learning_starts, isinstance(self._policy, RemotePolicy)
        which = np.flatnonzero(tickets >= starts)
        if len(which) and not remote and not self._wait_for_parameters(timeout):
            self._idle.append(group)  # its indices come again
            return None
        for i in np.flatnonzero((tickets >= 0) & (tickets < starts)).tolist():
            self._policy.uniform(group.actions[i : i + 1])
        if len(which) and isinstance(self._policy, RemotePolicy):
            self._policy.ask(group.number, group.obs, tickets, which.tolist())
            self._asked[group.number] = group
        else:
            if len(which):
                group.versions[:] = self._policy.refresh(self._subscriber)
                self._act_for(which + group.rows.start)
            self._ready.append(group)
        self._enter(Stat.OTHER_S)
        return True

    def _wait_to_begin(self, timeout: float | None) -> bool:
        """Wait for room, or step indices, while nothing else is to be done; False at the end of the run."""
        if self._segments and not self._wait_for_room(timeout):
            return self._streams.limiter.state == RUNNING
        group = self._idle[0]
        with waiting(self._stats, Waiting.LIMITER, Stat.WAIT_LIMITER_S):
            granted = self._acquire(group.lanes, group.tickets, timeout)
        if granted:
            self._choose(self._idle.popleft(), timeout)
        return granted != 0

    def _next(self, timeout: float | None) -> _Group | None:
        """A group whose actions are chosen; waits for an answer when there is none. None: not in time."""
        if self._ready:
            return self._ready.popleft()
        if not self._asked or not isinstance(self._policy, RemotePolicy):
            return None
        try:
            number = self._policy.wait(0.0)
        except WaitTimeoutError:
            answered = None if timeout == 0.0 else self._wait_for_answer(self._policy, timeout)
            if answered is None:
                return None
            number = answered
        group = self._asked.pop(number)
        self._policy.take(number, group.actions, group.extras, group.versions)
        return group

    def _wait_for_answer(self, policy: RemotePolicy, timeout: float | None) -> int | None:
        """Until the run ends: a server that died has a successor soon."""
        left = self._slices(timeout)
        with waiting(self._stats, Waiting.ANSWER, Stat.WAIT_ANSWER_S):
            while self._streams.limiter.state == RUNNING and (seconds := left()) >= 0.0:
                try:
                    return policy.wait(seconds)
                except WaitTimeoutError:
                    self._flush()
        return None
