"""The controller: starts the workers of a run, watches them, restarts or stops them, and leaves nothing behind.

It owns everything that is shared. It never touches data: it sleeps until a worker ends, a signal arrives, a worker has
something to say, or the tracker is due.
"""

import contextlib
import gc
import os
import select
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from rlz._native import FINISHED
from rlz.graph import ENDS_THE_RUN, PROGRESS
from rlz.learning.threads import learner_environment
from rlz.placement import Place
from rlz.records.run_directory import RunDirectory
from rlz.runtime.live import open_door
from rlz.runtime.signals import StopSignals
from rlz.system.descendants import children, collect, kill_orphans_of
from rlz.system.files import TEMPORARY, remove_temporary
from rlz.tracking import WorkerInfo
from rlz.transport.stats import Stat
from rlz.transport.streams import FIRST_WORKER_ID, LAST_WORKER_ID
from rlz.workers.job import Job
from rlz.workers.process import Ending, WorkerProcess, single_threaded, wait_until_dead

if TYPE_CHECKING:
    from rlz.transport import Streams
    from rlz.transport.serving import Door

TICK_S = 0.25
"""Longest sleep of the loop."""

FATAL_DEATHS = 3
"""Deaths of one worker in a row, without progress between, that end the run."""

CHECKPOINT_GRACE_S = 60.0
"""Time for the worker that ends the run when it is in the middle of writing a checkpoint."""

LEFTOVER_GRACE_S = 10.0
"""Time for the others to end after it has done its last update."""

QUIET_S = 300.0
"""Time for workers that may stay (the evaluator) without a sign of life, such as an env step, after that."""


COLLECT_S = 60.0
"""Time between full garbage collections. Left alone, so quiet a process has none for hours, and only they empty the
interpreter's pools of freed tuples."""


class RunTracker(Protocol):
    """What the controller needs of `rlz.tracking.Tracker`."""

    def tick(self, now: float) -> None:
        """Read, write and show what is due."""

    def note(self, text: str) -> None:
        """Record an event."""


@dataclass
class Slot:
    """One place of the run, and the process that fills it now."""

    place: Place
    process: WorkerProcess | None = None
    pid: int = 0
    restarts: int = 0
    deaths_in_a_row: int = 0
    progress: float = 0.0

    def info(self) -> WorkerInfo:
        """Describe it for the tracker."""
        return WorkerInfo.of(self.place, self.pid, self.restarts)


@dataclass
class RunEnd:
    """How a run ended: "completed", "stopped" or "failed", and why it failed."""

    status: str
    error: str = ""


class Controller:
    """Runs the worker processes of one run.

    Parameters
    ----------
    job, run_dir, streams : of the run.
    generation : how often this run was started before (0: fresh); part of every incarnation.
    resume : checkpoint that the workers go on from.

    Attributes
    ----------
    sink_died : the worker that ends the run has died, so its newest checkpoint is older than the rows.
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
        self.job = job
        self.run_dir = run_dir
        self.streams = streams
        self.generation = generation
        self.resume = resume
        board = streams.stats.read()
        self.slots = [Slot(place, restarts=int(board[place.slot][Stat.RESTARTS])) for place in job.places]
        self._ids = deque(range(FIRST_WORKER_ID, LAST_WORKER_ID + 1))
        self._poll = select.poll()
        self._by_pidfd: dict[int, Slot] = {}
        self._notices = b""
        self._error = ""
        self._stopping_at: float | None = None
        self._sink_done_at: float | None = None
        self._said_waiting = False
        self._collected_at = time.monotonic()
        self._killed: dict[str, str] = {}
        self._orphans: set[int] = set()
        self.sink_died = False
        self._reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._poll.register(self._reader, select.POLLIN)
        self._door: Door | None = None

    def workers(self) -> list[WorkerInfo]:
        """Every worker that has been started."""
        return [slot.info() for slot in self.slots if slot.process is not None]

    def start(self) -> None:
        """Start every worker, from the main thread (the kernel ties "my parent died" to the thread that starts)."""
        try:
            for slot in self.slots:
                self._start(slot)
        except BaseException:
            self.kill()
            raise

    def run(self, tracker: RunTracker, signals: StopSignals) -> RunEnd:
        """Supervise the workers until the run has ended, one way or another; none is left afterwards."""
        self._poll.register(signals.fd, select.POLLIN)
        self._open_door(tracker)
        asked = 0
        try:
            while self._by_pidfd:
                for fd, _ in self._poll.poll(TICK_S * 1000):
                    if fd == signals.fd:
                        signals.drain()
                    elif fd == self._reader:
                        self._read_notices(tracker)
                    elif self._door is not None and fd == self._door.fd:
                        if not self._door.answer():
                            self._close_door()
                    else:
                        self._ended(self._by_pidfd[fd], tracker)
                now = time.monotonic()
                if signals.count >= 2:
                    break
                if signals.count == 1 and self._stopping_at is None:
                    tracker.note(signals.announcement)
                    self._stop(now)
                if signals.asked != asked:
                    asked = signals.asked
                    self.streams.ask_for_checkpoint()
                    tracker.note("a checkpoint was asked for")
                self._enforce(now, tracker)
                tracker.tick(now)
                self._collect_garbage(now)
        finally:
            self._poll.unregister(signals.fd)
            self._close_door()
            self.kill()
        self._read_notices(tracker)
        return self._outcome(signals)

    def kill(self) -> None:
        """Kill every worker with all that it started, and collect them. Idempotent."""
        left = [slot for slot in self.slots if slot.process is not None and not slot.process.ended]
        processes = [slot.process for slot in left if slot.process is not None]
        for process in processes:
            process.kill()
        wait_until_dead(processes, timeout=5.0)
        for slot in left:
            self._reap(slot)

    def close(self) -> None:
        """Release what the controller holds and delete unfinished files; call after `run`."""
        self.kill()
        self._close_door()
        os.close(self._reader)
        os.close(self._writer)
        remove_temporary(self.run_dir.path)

    def _open_door(self, tracker: RunTracker) -> None:
        try:
            self._door = open_door(self.run_dir.path, self.job, self.streams, self.workers)
        except OSError as error:
            tracker.note(f"`rlz runs show` cannot look into this run while it lives: {error.strerror or error}")
        else:
            self._poll.register(self._door.fd, select.POLLIN)

    def _close_door(self) -> None:
        if self._door is not None:
            self._poll.unregister(self._door.fd)
            self._door.close()
            self._door = None

    def _start(self, slot: Slot) -> None:
        place = slot.place
        spec = self.job.spec(
            place,
            worker_id=self._ids.popleft(),
            run_dir=str(self.run_dir.path),
            incarnation=(self.generation << 32) + slot.restarts,
            fds=self.streams.fds(place.node),
            notice_fd=self._writer,
            resume=None if self.resume is None else str(self.resume),
        )
        spin_count = self.job.config.spin_count
        environment = learner_environment(spin_count) if place.node.torch else single_threaded()
        process = WorkerProcess(place, spec, self.run_dir.logs / f"{place.name}.log", environment)
        slot.process, slot.pid = process, process.pid
        self._by_pidfd[process.pidfd] = slot
        self._poll.register(process.pidfd, select.POLLIN)

    def _reap(self, slot: Slot) -> Ending:
        """Reap a dead worker and give back everything that it held on the streams."""
        process = slot.process
        assert process is not None
        self._poll.unregister(process.pidfd)
        del self._by_pidfd[process.pidfd]
        ending = process.reap()
        slot.pid = 0
        kill_orphans_of(slot.place.name, but={other.pid for other in self.slots})
        worker = process.spec.worker_id
        self.streams.reap(worker)
        for stat in (Stat.WAITING_FOR, Stat.HEARTBEAT):  # they were the dead one's, not its successor's
            self.streams.stats.set(slot.place.slot, stat, 0.0)
        self.streams.trace.set(slot.place.slot, 1, 0.0)
        self._ids.append(worker)  # only now: no stream knows the id any more
        return ending

    def _ended(self, slot: Slot, tracker: RunTracker) -> None:
        ending = self._reap(slot)
        self._read_notices(tracker)
        node, name = slot.place.node, slot.place.name
        ends_the_run = node.death == ENDS_THE_RUN
        if ending.done:
            if ends_the_run:
                self._sink_done_at = time.monotonic()
        elif ending.killed and name in self._killed:
            tracker.note(f"{name} {self._killed[name]}")
        elif ends_the_run:
            self.sink_died = True
            self._fail(ending.describe(), tracker, quick=True)
        elif not ending.killed:
            self._fail((self._where(slot.place) if ending.report is None else "") + ending.describe(), tracker)
        elif self._stopping_at is not None:
            tracker.note(ending.describe())
        elif node.steps_environments and self._all_steps_done():
            tracker.note(f"{ending.describe()}. All env steps were done: it is not restarted")
        else:
            self._restart(slot, ending, tracker)

    def _where(self, place: Place) -> str:
        """Name environment and step of a worker that left no word: most likely its environment ended the process."""
        if not place.node.has_environments:
            return ""
        text = f"environment {self.job.env_spec.env_id} in worker {place.name}"
        if place.lanes:
            steps = self.streams.limiter.lane_steps()
            text += f" (after {sum(steps[lane] for lane in place.lanes)} env steps of its lanes)"
        return f"{text}: "

    def _all_steps_done(self) -> bool:
        limiter = self.streams.limiter
        return limiter.state == FINISHED or limiter.env_steps >= limiter.total_timesteps

    def _restart(self, slot: Slot, ending: Ending, tracker: RunTracker) -> None:
        progress = self._progress(slot)
        enough, words = PROGRESS[slot.place.node.progress]
        slot.deaths_in_a_row = 1 if progress - slot.progress >= enough else slot.deaths_in_a_row + 1
        slot.progress = progress
        if slot.deaths_in_a_row >= FATAL_DEATHS:
            self._fail(
                f"{ending.describe()}. That was its death number {slot.deaths_in_a_row} in a row without {words} "
                "between: the run is given up",
                tracker,
            )
            return
        slot.restarts += 1
        self.streams.stats.add(slot.place.slot, Stat.RESTARTS, 1.0)
        tracker.note(f"{ending.describe()}. It is restarted (death {slot.deaths_in_a_row} of {FATAL_DEATHS} in a row)")
        self._start(slot)

    def _progress(self, slot: Slot) -> float:
        place = slot.place
        if place.lanes:
            steps = self.streams.limiter.lane_steps()
            return float(sum(steps[lane] for lane in place.lanes))
        return float(self.streams.stats.read()[place.slot][Stat[place.node.progress.upper()]])

    def _fail(self, error: str, tracker: RunTracker, *, quick: bool = False) -> None:
        """End the run because of an error; unless `quick`, the last checkpoint may still be written."""
        if not self._error:
            self._error = error
            tracker.note(f"stopping: {error.splitlines()[0]}")
        else:
            tracker.note(error)
        if quick:
            self._kill(f"was ended: nothing goes on without the {self.job.graph.sink.role}", self.slots)
        elif self.streams.limiter.env_steps < self.job.graph.rule.starts:
            # Nothing has been learned, so there is nothing to save and no reason to wait for imports.
            board = self.streams.stats.read()
            starting = [slot for slot in self.slots if not board[slot.place.slot][Stat.HEARTBEAT]]
            self._kill("was still starting and was ended", starting)
        self._stop(time.monotonic())

    def _stop(self, now: float) -> None:
        if self._stopping_at is None:
            self._stopping_at = now
            self.streams.limiter.stop()

    def _enforce(self, now: float, tracker: RunTracker) -> None:
        """Kill workers that do not end in time."""
        if self._stopping_at is not None:
            stopping = now - self._stopping_at
            writing = any(self.run_dir.checkpoints.glob(f"{TEMPORARY}*"))
            sink = self.job.graph.sink
            for slot in self.slots:
                node = slot.place.node
                grace = max(CHECKPOINT_GRACE_S, node.grace_s) if writing and node == sink else node.grace_s
                self._kill_after(stopping, grace, [slot])
            if writing and stopping > sink.grace_s and not self._said_waiting:
                self._said_waiting = True
                tracker.note(
                    f"the {sink.role} is still writing its checkpoint; waiting up to {CHECKPOINT_GRACE_S:.0f} s"
                )
        elif self._sink_done_at is not None:
            left = [slot for slot in self.slots if not slot.place.node.stays]
            self._kill_after(now - self._sink_done_at, LEFTOVER_GRACE_S, left)
            for slot in self.slots:
                if slot.place.node.stays:
                    heartbeat = float(self.streams.stats.read()[slot.place.slot][Stat.HEARTBEAT])
                    if now - max(self._sink_done_at, heartbeat) >= QUIET_S:
                        reason = f"made no env step for {QUIET_S:.0f} s: the run ends without its last evaluation"
                        self._kill(reason, [slot])

    def _kill_after(self, elapsed: float, grace: float, slots: Sequence[Slot]) -> None:
        if elapsed >= grace:
            self._kill("did not end in time and was killed", slots)

    def _kill(self, reason: str, slots: Sequence[Slot]) -> None:
        """Kill those workers that live; their deaths are then no riddle."""
        for slot in slots:
            if slot.process is not None and not slot.process.ended:
                self._killed.setdefault(slot.place.name, reason)
                slot.process.kill()

    def _collect_garbage(self, now: float) -> None:
        if now - self._collected_at >= COLLECT_S:
            self._collected_at = now
            gc.collect()
            # Orphans that have come here and ended. Who starts a child of this process itself collects it at once.
            orphans = set(children()) - {slot.pid for slot in self.slots}
            collect(orphans & self._orphans)
            self._orphans = orphans

    def _read_notices(self, tracker: RunTracker) -> None:
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._reader, 65536):
                self._notices += data
        *lines, self._notices = self._notices.split(b"\n")
        for line in lines:
            tracker.note(line.decode(errors="replace"))

    def _outcome(self, signals: StopSignals) -> RunEnd:
        if self._error:
            return RunEnd("failed", self._error)
        limiter = self.streams.limiter
        if limiter.env_steps >= limiter.total_timesteps and limiter.state == FINISHED:
            return RunEnd("completed")
        if signals.count:
            return RunEnd("stopped")
        return RunEnd("failed", f"the {self.job.graph.sink.role} ended before the run was complete")
