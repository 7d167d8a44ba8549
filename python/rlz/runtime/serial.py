"""Workers of one group take turns in one process, in lock step, deterministic: serial mode is one group of all.

One round: workers make a step each in the order in which rows pass them (samplers first), the one that ends the run
does every update that they allow, then come the others (the evaluator looks whether an evaluation is due). Nothing
depends on the time of day or on what is shown or logged. A stop signal ends the run between two rounds
(`serial_stop.py`), so that it can be resumed with the same bits as if it had not been stopped.
"""

import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from rlz._native import RUNNING
from rlz.errors import CheckpointError
from rlz.graph import upstream
from rlz.placement import Place
from rlz.records.checkpoint import read_checkpoint
from rlz.records.checkpointer import save_states
from rlz.records.run_directory import RunDirectory
from rlz.runtime.controller import RunEnd, RunTracker
from rlz.runtime.live import open_door
from rlz.runtime.serial_stop import StopWatch
from rlz.runtime.signals import StopSignals
from rlz.system.notices import notices_to
from rlz.tracking import Tracker, WorkerInfo
from rlz.transport.serving import Server
from rlz.transport.stats import Stat
from rlz.transport.streams import FIRST_WORKER_ID
from rlz.workers.base import Report, Stateful, Worker, worker_class
from rlz.workers.job import Job

if TYPE_CHECKING:
    from rlz.transport import Streams


class SerialRun:
    """Runs the graph of a run in this process.

    Parameters
    ----------
    job, run_dir, streams : of the run.
    generation, resume : as in `Controller`.

    Attributes
    ----------
    sink : name of the worker that ends the run and writes its checkpoints.
    sink_grace_s : seconds that it has to end after a stop.
    sink_died : it has raised, so its newest checkpoint is older than the rows in the replay buffer.
    sink_started : it can be asked for its last checkpoint.
    current : name of the worker whose turn it is, for people.
    between_rounds : held during steps and updates; whoever gets it may stop the limiter.
    sink_free : held during the steps of the sink; whoever gets it may make them instead.
    """

    def __init__(
        self,
        job: Job,
        run_dir: RunDirectory,
        streams: "Streams",
        *,
        generation: int = 0,
        resume: Path | None = None,
    ) -> None:
        self._job = job
        self._run_dir = run_dir
        self._streams = streams
        self._generation = generation
        self._resume = resume
        before = upstream(job.graph)
        self._before = [place.name for node in before for place in job.places if place.node == node]
        self.sink = next(place.name for place in job.places if place.node == job.graph.sink)
        self.sink_grace_s = job.graph.sink.grace_s
        self._after = [place.name for place in job.places if place.name not in (*self._before, self.sink)]
        self._stepping = [place.name for place in job.places if place.node == job.graph.source]
        # None is restarted here; a run that goes on may have been asynchronous before.
        self._restarts = [int(row[Stat.RESTARTS]) for row in streams.stats.read()]
        self.sink_died = False
        self.current = "serial"
        self.between_rounds = threading.Lock()
        self.sink_free = threading.Lock()
        self._workers: dict[str, Worker] = {}
        self.sink_started = False
        self._finished: set[str] = set()
        self._asked = 0
        self._door: Server | None = None

    def workers(self) -> list[WorkerInfo]:
        """Every worker; all of them are this process."""
        return [WorkerInfo.of(place, os.getpid(), self._restarts[place.slot]) for place in self._job.places]

    def run(self, tracker: Tracker, signals: StopSignals) -> RunEnd:
        """Run to the end, or to a stop signal; never raises for an error in a worker."""
        notices_to(tracker.note)
        try:
            # With a thread that answers: the main thread cannot while it is in an environment that hangs.
            self._door = Server(open_door(self._run_dir.path, self._job, self._streams, self.workers))
        except OSError as error:
            tracker.note(f"`rlz runs show` cannot look into this run while it lives: {error.strerror or error}")
        try:
            with StopWatch(self, self._run_dir, tracker, signals):
                return self._outcome(tracker, signals)
        finally:
            notices_to(None)
            save_states({})
            if self._door is not None:
                self._door.close()

    def stop(self) -> None:
        """Grant no more steps and updates."""
        if self._streams.limiter.state == RUNNING:
            self._streams.limiter.stop()

    def save(self, timeout: float = -1.0) -> bool:
        """Let the sink write its last checkpoint, without the states of environments: they may be anywhere.

        From any thread; raises what the sink raises.

        Parameters
        ----------
        timeout : seconds to wait while it is the sink's turn already; below 0: no limit. False when they are over.
        """
        if not self.sink_free.acquire(timeout=timeout):
            return False
        try:
            self.stop()
            save_states({})
            while self.sink_started and self._go_on(self.sink):
                pass
        finally:
            self.sink_free.release()
        return True

    def describe(self, name: str, error: Exception) -> str:
        """What a worker has raised, for people."""
        report = Report.of(error)
        return "\n".join(line for line in (f"{name}: {report.error}", report.traceback.rstrip()) if line)

    def _outcome(self, tracker: RunTracker, signals: StopSignals) -> RunEnd:
        try:
            self._run(tracker, signals)
        except Exception as error:
            name = self.current
            text = self.describe(name, error)
            try:
                if name != self.sink:
                    self.save()
            except Exception as another:
                name = self.sink
                text += "\n" + self.describe(name, another)
            self.sink_died = name == self.sink
            for worker in self._workers.values():
                with suppress(Exception):
                    worker.close()
            return RunEnd("failed", text)
        limiter = self._streams.limiter
        return RunEnd("completed" if limiter.env_steps >= limiter.total_timesteps else "stopped")

    def _run(self, tracker: RunTracker, signals: StopSignals) -> None:
        workers = self._workers
        for place in self._job.places:
            workers[place.name] = self._make(place)
        # First those whose states belong to the checkpoint that the sink begins with.
        self._start(*self._before)
        if self._resume is not None:
            self._restore(self._resume)
        states = {name: worker for name in self._before if isinstance(worker := workers[name], Stateful)}
        save_states({name: worker.state for name, worker in states.items()})
        self._start(*(name for name in workers if name not in self._before))
        limiter, go_on, still = self._streams.limiter, True, 0
        while go_on:
            with self.between_rounds:
                # First, because a checkpoint may have been taken with updates still to do.
                self._update()
                before = limiter.env_steps
                working = {name for name in self._before if self._step(name)}
                go_on = self._update()
            for name in self._after:
                self._step(name)
            self._look(tracker, signals)
            if self._stepping:
                go_on = not working.isdisjoint(self._stepping)
                still = still + 1 if limiter.env_steps == before else 0
                # One round for those that ask for their actions and are answered in the next. Then the slack allows no
                # step, so it allows an update that is not due yet: 0.3 a step, and 1 of them after the third.
                if go_on and still > 1:
                    updates, still = limiter.updates, 0
                    self._step(self.sink)
                    if limiter.updates == updates:
                        raise RuntimeError("serial mode stands still: the replay ratio allows no step and no update")
        while self._step(self.sink):
            self._look(tracker, signals)
        for name in self._after:
            while self._step(name):
                self._look(tracker, signals)
        for name, worker in workers.items():
            self.current = name
            worker.close()

    def _start(self, *names: str) -> None:
        for name in names:
            self.current = name
            self._workers[name].start()
            self.sink_started |= name == self.sink

    def _restore(self, path: Path) -> None:
        for name, state in read_checkpoint(path).workers.items():
            self.current = name
            try:
                worker = self._workers[name]
                if not isinstance(worker, Stateful):
                    raise TypeError(f"{type(worker).__name__} keeps no state")
                worker.restore(state)
            except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
                problem = f"{type(error).__name__}: {error}"
                raise CheckpointError(f"the state of {name} in {path} cannot be restored: {problem}") from error

    def _update(self) -> bool:
        """Let the sink do all that the others' steps so far allow; False once it has finished."""
        if self._job.graph.rule.ratio is None:
            return self._exhaust()
        limiter = self._streams.limiter
        due = self._job.graph.rule.due(limiter.env_steps, limiter.learning_starts)
        while limiter.updates < due:
            before = limiter.updates
            if not self._step(self.sink):
                return False  # stopped
            if limiter.updates == before:
                raise RuntimeError(f"serial mode stands still: {due - before} updates are due, none was made")
        return True

    def _exhaust(self) -> bool:
        """Let the sink, which no ratio holds, step as long as that counts anywhere: as updates, or on its row."""
        slot = next(place.slot for place in self._job.places if place.name == self.sink)
        counter = Stat[self._job.graph.sink.progress.upper()]

        def done() -> tuple[int, float]:
            return self._streams.limiter.updates, float(self._streams.stats.read()[slot][counter])

        while True:
            before = done()
            if not self._step(self.sink):
                return False
            if done() == before:
                return True

    def _look(self, tracker: RunTracker, signals: StopSignals) -> None:
        if signals.count:
            self.stop()
        if signals.asked != self._asked:
            self._asked = signals.asked
            self._streams.ask_for_checkpoint()
            tracker.note("a checkpoint was asked for")
        tracker.tick(time.monotonic())

    def _make(self, place: Place) -> Worker:
        spec = self._job.spec(
            place,
            worker_id=FIRST_WORKER_ID + place.slot,
            run_dir=str(self._run_dir.path),
            incarnation=self._generation << 32,
            resume=None if self._resume is None else str(self._resume),
        )
        self.current = place.name
        return worker_class(place.node.worker)(spec, self._streams.of(place.node))

    def _step(self, name: str) -> bool:
        """One step of a worker; False once it has finished, however often it is asked."""
        self.current = name
        if name != self.sink:
            return self._go_on(name)
        with self.sink_free:
            return self._go_on(name)

    def _go_on(self, name: str) -> bool:
        if name in self._finished:
            return False
        try:
            more = self._workers[name].step(0.0)
        except BaseException:
            self._finished.add(name)
            raise
        if not more:
            self._finished.add(name)
        return more
