"""A user's functions that are told what happens in a run, and may end it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rlz.tracking.sinks import Evaluation

Callback = Callable[[Any], bool | None]
"""Is given what has happened. False stops the run, after a checkpoint; anything else lets it go on."""


class Callbacks:
    """A sink that calls functions. An exception in one stops the run; `raise_late` raises it when the run has ended.

    Parameters
    ----------
    on_metrics : called with each line of the log: numbers by tag, "env_steps", "updates" and "wall_s" among them.
    on_evaluation : called with each evaluation, `rlz.tracking.sinks.Evaluation`.
    on_checkpoint : called with the folder of each new checkpoint.
    """

    def __init__(
        self,
        on_metrics: Callback | None = None,
        on_evaluation: Callback | None = None,
        on_checkpoint: Callback | None = None,
    ) -> None:
        self._on_metrics, self._on_evaluation, self._on_checkpoint = on_metrics, on_evaluation, on_checkpoint
        self._run_dir = Path()
        self._stop: Callable[[], None] = lambda: None
        self._seen: Path | None = None
        self._late: BaseException | None = None

    def attach(self, run_dir: Path, stop: Callable[[], None]) -> None:
        """The run has its folder; `stop` ends it as a first Ctrl-C does."""
        self._run_dir, self._stop = run_dir, stop

    def log(self, step: int, wall_s: float, updates: int, scalars: Mapping[str, float]) -> None:
        """See `Sink`."""
        self._call(self._on_metrics, {**scalars, "env_steps": step, "updates": updates, "wall_s": wall_s})
        self._look_for_checkpoint()

    def evaluation(self, evaluation: Evaluation) -> None:
        """See `Sink`."""
        self._call(self._on_evaluation, evaluation)

    def note(self, text: str) -> None:
        """See `Sink`; nobody is told."""

    def close(self) -> None:
        """See `Sink`."""
        self._look_for_checkpoint()

    def raise_late(self) -> None:
        """Raise what a function raised."""
        if self._late is not None:
            raise self._late

    def _look_for_checkpoint(self) -> None:
        latest = self._run_dir / "checkpoints" / "latest"
        if self._on_checkpoint is None or not latest.exists():
            return
        newest = latest.resolve()
        if newest != self._seen:
            self._seen = newest
            self._call(self._on_checkpoint, newest)

    def _call(self, function: Callback | None, given: Any) -> None:
        if function is None or self._late is not None:
            return
        try:
            if function(given) is False:
                self._stop()
        except BaseException as error:  # the run ends in order first
            self._late = error
            self._stop()
