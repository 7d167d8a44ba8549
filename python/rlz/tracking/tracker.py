"""The tracker: reads the stats board, feeds the sinks, sums the run up."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rlz.config import RunConfig
from rlz.tracking.snapshot import WorkerInfo
from rlz.transport import Streams


class Tracker:
    """Observes one run from the controller.

    Parameters
    ----------
    run_dir : run folder, exists already.
    config : the resolved configuration.
    streams : read only; rows lost and rates count from the moment of construction, so rows of a resumed run are
        restored before.
    workers : called at every reading; gives every worker that has ever been started (a dead one keeps its entry).
    quiet : show nothing on stdout (tests, benches).
    """

    def __init__(
        self,
        run_dir: Path,
        config: RunConfig,
        streams: Streams,
        workers: Callable[[], Sequence[WorkerInfo]],
        *,
        quiet: bool = False,
    ) -> None:
        raise NotImplementedError

    def tick(self, now: float) -> None:
        """Read, write and show what is due at `now` (`time.monotonic()`); call it at least every 0.5 s. Never waits."""
        raise NotImplementedError

    def note(self, text: str) -> None:
        """Record an event (restart, fallback, signal): one line on the display and in logs/events.log."""
        raise NotImplementedError

    def finish(self, status: str) -> dict[str, Any]:
        """Take the last reading, write summary.json, close the sinks.

        `status` is "completed", "stopped" or "failed". The streams are still open; the workers may be gone. Returns
        the summary. Calling it again returns the first summary.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Give the terminal back without a summary (second Ctrl-C, crash of the controller). Idempotent."""
        raise NotImplementedError
