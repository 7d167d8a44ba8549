"""The newest actor on its way from the learner's device to the parameter store."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rlz._native import Publisher
from rlz.learning.streams import recorded

MOST_PER_S = 750.0
"""Publications a second by themselves: a sampler's policy is then 1.3 ms old at most, which is less than a step of most
environments takes. Each costs the learner's thread about 30 us (estimate)."""

AT_ONCE = 2
"""Copies that may be under way."""


class Interval:
    """When to publish.

    Parameters
    ----------
    every : updates from one publication to the next; None: after each launch, `MOST_PER_S` times a second at most where
        there is a clock.
    timed : False, where the course of a run may not depend on a clock: then after each launch.
    """

    def __init__(self, every: int | None, *, timed: bool) -> None:
        self._every = every or 1
        self._least_s = 1.0 / MOST_PER_S if timed and every is None else 0.0
        self._again = 0.0
        self.since = 0
        """Updates since the last one."""

    def due(self, now: float) -> bool:
        """Whether it is time, `now` in seconds."""
        return self.since >= self._every and now >= self._again

    def begin(self, now: float) -> None:
        """Take note of a publication."""
        self.since = 0
        self._again = now + self._least_s


@dataclass(frozen=True)
class _Copy:
    place: int
    copied: torch.cuda.Event | None
    env_steps: int
    updates: int


class Publication:
    """Publishes actors; from a card by way of pinned memory, so that neither updates nor the host wait for the copy.

    Parameters
    ----------
    publisher : of the parameter store.
    actor : the flat actor, for its size and device.
    """

    def __init__(self, publisher: Publisher, actor: Tensor) -> None:
        self._publisher = publisher
        self._device = actor.device
        self._stream: Any = torch.cuda.Stream(actor.device) if actor.is_cuda else None  # type: ignore[no-untyped-call]
        count = 0 if self._stream is None else AT_ONCE
        self._staged = [torch.empty_like(actor) for _ in range(count)]
        self._pinned = [torch.empty_like(actor, device="cpu", pin_memory=True) for _ in range(count)]
        self._free = deque(range(count))
        self._under_way: deque[_Copy] = deque()

    def take(self, actor: Tensor, *, env_steps: int, updates: int) -> int | None:
        """Publish the actor as it is now, or begin to; version of the newest that was published by this call."""
        if self._stream is None:
            return self._publish(actor, env_steps, updates)
        version = None if self._free else self.finish(wait=True)
        place = self._free.popleft()
        staged, pinned = self._staged[place], self._pinned[place]
        staged.copy_(actor)  # the next update changes the actor
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            pinned.copy_(staged, non_blocking=True)
            copied = recorded(self._device)
        self._under_way.append(_Copy(place, copied, env_steps, updates))
        return version

    def finish(self, *, wait: bool = False) -> int | None:
        """Publish what has arrived, or `wait` for everything; version of the newest, None: nothing was."""
        version = None
        while self._under_way:
            copy = self._under_way[0]
            if copy.copied is not None and not copy.copied.query():  # type: ignore[no-untyped-call]
                if not wait:
                    break
                copy.copied.synchronize()
            self._under_way.popleft()
            version = self._publish(self._pinned[copy.place], copy.env_steps, copy.updates)
            self._free.append(copy.place)
        return version

    def _publish(self, actor: Tensor, env_steps: int, updates: int) -> int:
        return self._publisher.publish(actor.numpy().view("uint8"), env_steps=env_steps, updates=updates)
