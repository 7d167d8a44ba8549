"""Critics and actor updated side by side, each by an engine of its own on a device of its own (Spreeze, section 3.3).

Only parameters cross, at every `exchange_every`-th update: the critics' side hands its newest critics over *after* that
update, and takes the actor that the other side had `lag` updates ago *before* it. Which versions meet is a matter of
counting, never of timing, so a run repeats itself. With `exchange_every` 1 and no lag the halves take turns and are
together exactly the one-device update.

This process drives both devices: the critics' side in the caller's thread, the actor's in one of its own.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rlz.algorithms.base import Algorithm, Batch, Side
from rlz.learning.compiled import Layout, layouts
from rlz.learning.engine import Engine, EnginePlan
from rlz.learning.streams import Meeting, own_stream

Given = dict[str, Tensor]
"""Fields of a state that one side gives to the other, copied."""


@dataclass(frozen=True)
class Exchange:
    """When parameters cross.

    Attributes
    ----------
    every : updates from one exchange to the next.
    max_staleness
        Most updates by which the actor that the critics see may be behind them. At least `every - 1`; from
        `2 * every - 1` on neither side waits for the other, as long as they are equally fast.
    """

    every: int = 1
    max_staleness: int = 1

    @property
    def lag(self) -> int:
        """Updates by which the actor is behind at an exchange: a multiple of `every`."""
        return (self.max_staleness - (self.every - 1)) // self.every * self.every


class Turn(NamedTuple):
    """What the actor's side needs for one update."""

    obs: Tensor
    learning_rate: float
    given: Given | None  # by the critics' side, at an exchange
    left: list[torch.cuda.Event]  # when they are there


class Actor(NamedTuple):
    """What the actor's side has given after an update."""

    newest: Tensor
    given: Given | None  # at an exchange
    left: list[torch.cuda.Event]


class Answer(NamedTuple):
    """What a question's work has returned."""

    value: Any


@dataclass(frozen=True)
class Question:
    """Something to be done by the actor's thread, on its stream, and the place for the answer."""

    work: Callable[[], Any]
    answer: queue.Queue[Answer] = field(default_factory=queue.Queue)


class TwoDevices:
    """An `Engine` that is two.

    Parameters
    ----------
    algorithm, state, layout, seed, plan, log
        As of `Engine`; the state is the critics' side's, on `devices[0]`.
    devices
        Of the critics' and of the actor's side; may be the same one.
    exchange
        When parameters cross.
    """

    def __init__(
        self,
        algorithm: Algorithm[Any],
        state: Any,
        *,
        layout: tuple[Layout, ...],
        devices: tuple[torch.device, torch.device],
        seed: int,
        plan: EnginePlan,
        log: Callable[[str], None],
        exchange: Exchange,
    ) -> None:
        self._algorithm = algorithm
        self._exchange = exchange
        self._sides = algorithm.sides
        self._state = state
        self._actor_state = type(state)(*(tensor.to(devices[1], copy=True) for tensor in state))
        # Observations are all that the actor's half reads of a batch.
        self._blank = Batch(*(torch.zeros(shape, dtype=dtype, device=devices[1]) for shape, _, dtype, _ in layout))
        self._fixed = plan.fixed
        # Two engines that measure threads would measure each other.
        plan = replace(plan, threads=1)

        def engine(side: Side, of: Any, device: torch.device, fields: tuple[Layout, ...], name: str) -> Engine:
            return Engine(
                algorithm,
                of,
                layout=fields,
                device=device,
                seed=seed,  # the halves of an update see the same noise
                plan=plan,
                log=lambda line: log(f"{name}: {line}"),
                cycle=side.cycle,
            )

        self._critic = engine(self._sides[0], state, devices[0], layout, "critics")
        self._actor = engine(self._sides[1], self._actor_state, devices[1], layouts(self._blank.tensors()), "actor")
        self._done = self._first = int(state.updates)
        self._meeting = Meeting(devices)
        self._turns: queue.Queue[Turn | Question | None] = queue.Queue()
        self._moved = threading.Condition()
        self._actor_done = self._first
        self._given: dict[int, Actor] = {}  # by its updates until then
        newest = algorithm.published(self._actor_state).clone()
        self._newest = Actor(newest, None, self._meeting.leave())
        self._error: BaseException | None = None
        self._seen = self._first
        self._thread = threading.Thread(target=self._run_actor, name="actor", daemon=True)

    @property
    def executor(self) -> str:
        """Name of the executor in use: the slower kind of the two."""
        return "compiled" if self._critic.executor == self._actor.executor == "compiled" else "eager"

    @property
    def threads(self) -> int:
        """CPU threads of each side."""
        return self._critic.threads

    @property
    def settled(self) -> bool:
        """Executors and threads will stay as they are for a while."""
        return self._critic.settled and self._actor.settled

    @property
    def staleness(self) -> int:
        """Updates by which the actor that the newest update of the critics saw was behind."""
        return self._done - 1 - self._seen if self._done > self._first else 0

    @property
    def noise_state(self) -> bytes:
        """State of the noise's random stream; can be set before the first update."""
        return self._critic.noise_state

    @noise_state.setter
    def noise_state(self, state: bytes) -> None:
        self._critic.noise_state = state
        self._actor.noise_state = state

    def start(self) -> None:
        """Begin to compile, beside everything else."""
        self._critic.start()
        self._actor.start()

    def update(self, batch: Batch, learning_rate: float) -> Tensor | None:
        """The critics' half of an update; the actor's follows beside the next ones. See `Engine.update`.

        Waits where the actor's side is too far behind.
        """
        if self._thread.ident is None:
            self._thread.start()
        crossing = self._done % self._exchange.every == 0
        if crossing:
            self._take_actor(self._done - self._exchange.lag)
        td_errors = self._critic.update(batch, learning_rate)
        given = _copies(self._state, self._sides[0].gives) if crossing else None
        obs = torch.empty_like(self._blank.obs).copy_(batch.obs, non_blocking=True)
        self._turns.put(Turn(obs, learning_rate, given, self._meeting.leave()))
        self._done += 1
        with self._moved:
            self._raise_error()
        return td_errors

    def take_metrics(self) -> Tensor:
        """As of `Engine`; of the actor's half as far as it has come when it is asked."""
        metrics = self._critic.take_metrics()
        late = self._ask(self._actor.take_metrics)
        return torch.where(metrics.isnan(), late, metrics)

    def settle(self) -> Any:
        """Wait until both sides have done every update; the whole state, each field from its owner.

        The tensors are valid until the next update.
        """
        self._critic.check()
        self._ask(self._actor.check)
        self._meeting.take(self._newest.left)
        return self._state._replace(**{name: getattr(self._actor_state, name) for name in self._sides[1].fields})

    def actor_parameters(self) -> Tensor:
        """Newest flat actor, a copy; in a fixed plan the one after all updates so far, which may take a wait."""
        if self._fixed:
            self._wait_for_actor(self._done)
        with self._moved:
            newest = self._newest
        self._meeting.take(newest.left, [newest.newest])
        return newest.newest

    def state_dict(self) -> dict[str, Tensor]:
        """The whole state by name."""
        return self._algorithm.state_dict(self.settle())

    @property
    def done(self) -> int:
        """Updates of the critics so far."""
        return self._critic.done

    def failure(self, batch: Batch | None) -> dict[str, Tensor]:
        """Everything that the last update was made from, by name."""
        return self._critic.failure(batch) | {
            f"actor.{name}": tensor for name, tensor in self._algorithm.state_dict(self._actor_state).items()
        }

    def close(self) -> None:
        """End the thread, and the helpers when they are still compiling."""
        if self._thread.ident is not None:
            self._turns.put(None)
            self._thread.join()
        self._critic.close()
        self._actor.close()

    def _take_actor(self, version: int) -> None:
        """Give the critics' side the actor of so many updates; before the first ones it has it."""
        if version <= self._first:
            return
        self._wait_for_actor(version)
        with self._moved:
            given = self._given[version]
            for old in [old for old in self._given if old <= version]:
                del self._given[old]
        assert given.given is not None
        self._meeting.take(given.left, given.given.values())
        for name, tensor in given.given.items():
            getattr(self._state, name).copy_(tensor)
        self._seen = version

    def _ask(self, work: Callable[[], Any]) -> Any:
        """Have the actor's thread do something after every update so far."""
        question, answer = Question(work), None
        if self._thread.is_alive():
            self._turns.put(question)
            while answer is None and self._thread.is_alive():
                with suppress(queue.Empty):
                    answer = question.answer.get(timeout=1.0)
        with self._moved:
            self._raise_error()
        return work() if answer is None else answer.value

    def _wait_for_actor(self, updates: int) -> None:
        with self._moved:
            self._moved.wait_for(lambda: self._error is not None or self._actor_done >= updates)
            self._raise_error()

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _run_actor(self) -> None:
        turn: Turn | Question | None = None
        try:
            torch.set_num_threads(1)  # a setting of each thread
            own_stream(self._blank.obs.device)
            while (turn := self._turns.get()) is not None:
                if isinstance(turn, Question):
                    turn.answer.put(Answer(turn.work()))
                else:
                    self._update_actor(turn)
        except BaseException as error:
            with self._moved:
                self._error = error
                self._moved.notify_all()
            if isinstance(turn, Question):
                turn.answer.put(Answer(None))

    def _update_actor(self, turn: Turn) -> None:
        self._meeting.take(turn.left, [turn.obs, *(turn.given or {}).values()])
        for name, tensor in (turn.given or {}).items():
            getattr(self._actor_state, name).copy_(tensor)
        self._actor.update(self._blank._replace(obs=turn.obs), turn.learning_rate)
        done = self._actor_done + 1
        given = _copies(self._actor_state, self._sides[1].gives) if done % self._exchange.every == 0 else None
        newest = Actor(self._algorithm.published(self._actor_state).clone(), given, self._meeting.leave())
        with self._moved:
            if given is not None:
                self._given[done] = newest
            self._newest = newest
            self._actor_done = done
            self._moved.notify_all()


def _copies(state: Any, names: tuple[str, ...]) -> Given:
    return {name: getattr(state, name).clone() for name in names}
