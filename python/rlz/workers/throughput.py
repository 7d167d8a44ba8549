"""Throughput mode in a learner: batch size and uses of a row follow the rates that are measured while it learns."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rlz.answers import Replay
from rlz.errors import in_one_line
from rlz.learning.adaptation import Adaptation, Operation, Seen, batch_sizes, use_counts
from rlz.learning.engine import Engine
from rlz.learning.memory import out_of_memory
from rlz.system.notices import notice
from rlz.workers.updates import Parts

if TYPE_CHECKING:
    from rlz.workers.replay_updates import ReplayUpdates

ADAPT_S = 0.02
"""Seconds between looks at the counts."""


class Throughput:
    """Has updates made with other batch sizes, to compare them, and with the one that is chosen.

    Parameters
    ----------
    updates : of the learner; may be half made.
    parts, data : as of these.
    largest : gives the rows of the largest batch that there is memory for.
    """

    def __init__(self, updates: ReplayUpdates, parts: Parts, data: Replay, largest: Callable[[], int]) -> None:
        self._updates = updates
        self._parts = parts
        uses, extra = use_counts(data.row_uses), {} if parts.saved is None else parts.saved.extra
        start = Operation(
            int(extra.get("batch_size", data.batch)), max(uses[0], float(extra.get("row_uses", uses[-1])))
        )
        self.adaptation = Adaptation(start, batches=batch_sizes(largest()), uses=uses)
        self.chosen = self.adaptation.chosen.batch_size
        self._again = 0.0

    def look(self, now: float) -> None:
        """Tell the rates, where it is time, and work with what is chosen from now on."""
        if now < self._again:
            return
        self._again = now + ADAPT_S
        adaptation, updates, limiter = self.adaptation, self._updates, self._parts.streams.limiter
        ready = adaptation.wanted is None or self._prepare(adaptation.wanted)
        counts = (limiter.env_steps, limiter.updates, updates.frames)
        seen = Seen(now, *counts, settled=updates.trainer.settled, ready=ready)
        try:
            self._follow(adaptation.look(seen))
        except (RuntimeError, MemoryError) as error:
            self.refuse(error)

    def refuse(self, error: RuntimeError | MemoryError) -> None:
        """Give up the batch size that is being tried, whose memory is not there. Any other error ends the run."""
        adaptation, updates = self.adaptation, self._updates
        if not adaptation.trying or not out_of_memory(error):
            raise error
        tried = {adaptation.wanted, adaptation.operation.batch_size}
        self._follow(adaptation.refuse(in_one_line(error)))
        for size in updates.trainers.keys() & (tried - {adaptation.chosen.batch_size, updates.batch_size}):
            updates.trainers.pop(size).close()

    def saved(self) -> dict[str, Any]:
        """What a resumed run begins with, as JSON values."""
        return {"batch_size": self.adaptation.chosen.batch_size, "row_uses": self.adaptation.chosen.row_uses}

    def _follow(self, lines: list[str]) -> None:
        for line in lines:
            notice(line)
        operation = self.adaptation.operation
        if operation.batch_size != self._updates.batch_size:
            self._updates.use(operation.batch_size)
        if self._updates.allowance is not None:
            self._updates.allowance.uses = operation.row_uses
        if self.adaptation.chosen.batch_size != self.chosen:
            self.chosen = self.adaptation.chosen.batch_size
            self._updates.announce_learning_rate()

    def _prepare(self, batch_size: int) -> bool:
        """Whether a batch size can be used now. One that never can is refused."""
        updates = self._updates
        if batch_size == updates.batch_size:
            return True
        try:
            if batch_size not in updates.trainers:
                updates.trainers[batch_size] = updates.make_trainer(batch_size)
                updates.trainers[batch_size].start()
            trainer = updates.trainers[batch_size]
            assert isinstance(trainer, Engine)
            return trainer.prepare(lambda: updates.batches.draw(batch_size))
        except (RuntimeError, MemoryError) as error:
            self.refuse(error)
            return False
