"""A learner that answers the samplers' requests itself (SEED RL, Espeholt et al. 2020, arXiv 1910.06591).

Learner and inference server are those of every other graph; they share a process, so the server has a thread and the
learner's core, and both one interpreter.
"""

from __future__ import annotations

from dataclasses import replace
from threading import Event, Thread
from typing import TYPE_CHECKING

from rlz._native import StatsBoard
from rlz.transport.stats import EVENT_WIDTH, STAT_NAMES, make_trace
from rlz.workers.base import POLL_S, WorkerSpec
from rlz.workers.inference import InferenceServer
from rlz.workers.learner import Learner

if TYPE_CHECKING:
    from rlz.transport import Streams


class ServingLearner:
    """See the module's text, `Learner` and `InferenceServer`.

    Parameters
    ----------
    spec, streams : of the learner; the streams have those of the server as well.
    """

    def __init__(self, spec: WorkerSpec, streams: Streams) -> None:
        self._learner = Learner(spec, streams)
        # The row of the board is the learner's: two threads cannot tell one account where their time goes.
        rows = spec.slot + 1
        board = StatsBoard.create(slots=rows, names=STAT_NAMES, event_width=EVENT_WIDTH, event_capacity=1, run_id=0)
        self._server = InferenceServer(spec, replace(streams, stats=board, trace=make_trace(rows)))
        self._over = Event()
        self._error: BaseException | None = None
        self._thread = Thread(target=self._serve, name="inference", daemon=True)

    def start(self) -> None:
        """See `Learner`; from now on requests are answered."""
        self._learner.start()
        self._thread.start()

    def step(self, timeout: float | None) -> bool:
        """See `Learner`."""
        if self._error is not None:
            raise self._error
        return self._learner.step(timeout)

    def close(self) -> None:
        """End the thread, then the learner."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()
        self._server.close()
        self._learner.close()

    def _serve(self) -> None:
        try:
            while not self._over.is_set() and self._server.step(POLL_S):
                pass
        except BaseException as error:
            self._error = error
