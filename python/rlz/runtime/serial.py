"""Serial mode: the same workers in one process, in lock step, deterministic. For debugging and exact tests.

One round: every sampler makes its transitions, the learner does every update that they allow, the evaluator looks
whether an evaluation is due. Nothing depends on the time of day or on what is shown or logged. A stop signal ends the
run between two rounds (`serial_stop.py`), so that it can be resumed with the same bits as if it had not been stopped.
"""

import os
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, cast

from rlz._native import RUNNING
from rlz.errors import CheckpointError
from rlz.records.checkpoint import read_checkpoint, save_states
from rlz.records.run_directory import RunDirectory
from rlz.runtime.controller import Outcome, RunTracker
from rlz.runtime.graph import FIRST_WORKER_ID, MODULES, Node, plan
from rlz.runtime.live import open_door
from rlz.runtime.serial_stop import StopWatch
from rlz.runtime.signals import StopSignals
from rlz.tracking import Tracker, WorkerInfo
from rlz.transport.attaching import Server
from rlz.transport.stats import Stat
from rlz.workers.base import Report, Worker, WorkerSpec, notices_to, role_class

if TYPE_CHECKING:
    from rlz.config import RunConfig
    from rlz.envs.spaces import EnvSpec
    from rlz.transport import Streams
    from rlz.workers.sampler import Sampler


class SerialRun:
    """Runs the graph of a run in this process.

    Parameters
    ----------
    config, env_spec, run_dir, streams : of the run.
    generation, resume, modules : as in `Controller`.

    Attributes
    ----------
    learner_died : the learner has raised, so its newest checkpoint is older than the rows in the replay buffer.
    learner_started : the learner can be asked for its last checkpoint.
    current : name of the worker whose turn it is, for people.
    between_rounds : held during samplers' steps and updates; whoever gets it may stop the limiter.
    learner_free : held during the learner's steps; whoever gets it may make them instead.
    """

    def __init__(
        self,
        config: "RunConfig",
        env_spec: "EnvSpec",
        run_dir: RunDirectory,
        streams: "Streams",
        *,
        generation: int = 0,
        resume: Path | None = None,
        modules: Mapping[str, str] = MODULES,
    ) -> None:
        self._config = config
        self._env_spec = env_spec
        self._run_dir = run_dir
        self._streams = streams
        self._generation = generation
        self._resume = resume
        self._modules = modules
        self._nodes = plan(config)
        # None is restarted here; a run that goes on may have been asynchronous before.
        self._restarts = [int(row[Stat.RESTARTS]) for row in streams.stats.read()]
        self.learner_died = False
        self.current = "serial"
        self.between_rounds = threading.Lock()
        self.learner_free = threading.Lock()
        self._workers: dict[str, Worker] = {}
        self.learner_started = False
        self._finished: set[str] = set()
        self._door: Server | None = None

    def workers(self) -> list[WorkerInfo]:
        """Every worker; all of them are this process."""
        return [
            WorkerInfo(node.name, node.role, node.slot, os.getpid(), self._restarts[node.slot], node.lanes)
            for node in self._nodes
        ]

    def run(self, tracker: Tracker, signals: StopSignals) -> Outcome:
        """Run to the end, or to a stop signal; never raises for an error in a worker."""
        notices_to(tracker.note)
        try:
            # With a thread that answers: the main thread cannot while it is in an environment that hangs.
            self._door = Server(
                open_door(self._run_dir.path, self._config, self._env_spec, self._streams, self.workers)
            )
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
        """Let the learner write its last checkpoint, without the states of environments: they may be anywhere.

        From any thread; raises what the learner raises.

        Parameters
        ----------
        timeout : seconds to wait while it is the learner's turn already; below 0: no limit. False when they are over.
        """
        if not self.learner_free.acquire(timeout=timeout):
            return False
        try:
            self.stop()
            save_states({})
            while self.learner_started and self._go_on("learner"):
                pass
        finally:
            self.learner_free.release()
        return True

    def describe(self, name: str, error: Exception) -> str:
        """What a worker has raised, for people."""
        report = Report.of(error)
        return "\n".join(line for line in (f"{name}: {report.error}", report.traceback.rstrip()) if line)

    def _outcome(self, tracker: RunTracker, signals: StopSignals) -> Outcome:
        try:
            self._run(tracker, signals)
        except Exception as error:
            name = self.current
            text = self.describe(name, error)
            try:
                if name != "learner":
                    self.save()
            except Exception as another:
                name = "learner"
                text += "\n" + self.describe(name, another)
            self.learner_died = name == "learner"
            for worker in self._workers.values():
                with suppress(Exception):
                    worker.close()
            return Outcome("failed", text)
        limiter = self._streams.limiter
        return Outcome("completed" if limiter.env_steps >= limiter.total_timesteps else "stopped")

    def _run(self, tracker: RunTracker, signals: StopSignals) -> None:
        workers = self._workers
        for node in self._nodes:
            workers[node.name] = self._make(node)
        evaluator = "evaluator" if "evaluator" in workers else None
        samplers = [node.name for node in self._nodes if node.role == "sampler"]
        # The samplers first: the learner begins with a checkpoint, and their states belong to it.
        self._start(*samplers)
        if self._resume is not None:
            self._restore(self._resume, workers)
        save_states({name: cast("Sampler", workers[name]).state for name in samplers})
        self._start(*(name for name in workers if name not in samplers))
        while samplers:
            with self.between_rounds:
                # First, because a checkpoint may have been taken with updates still to do.
                self._learn()
                before = self._streams.limiter.env_steps
                samplers = [name for name in samplers if self._step(name)]
                self._learn()
            if evaluator is not None:
                self._step(evaluator)
            self._look(tracker, signals)
            if samplers and self._streams.limiter.env_steps == before:
                raise RuntimeError("serial mode stands still: the replay ratio allows neither a step nor an update")
        while self._step("learner"):
            self._look(tracker, signals)
        while evaluator is not None and self._step(evaluator):
            self._look(tracker, signals)
        for name, worker in workers.items():
            self.current = name
            worker.close()

    def _start(self, *names: str) -> None:
        for name in names:
            self.current = name
            self._workers[name].start()
            self.learner_started |= name == "learner"

    def _restore(self, path: Path, workers: Mapping[str, Worker]) -> None:
        for name, state in read_checkpoint(path).workers.items():
            self.current = name
            try:
                cast("Sampler", workers[name]).restore(state)
            except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
                problem = f"{type(error).__name__}: {error}"
                raise CheckpointError(f"the state of {name} in {path} cannot be restored: {problem}") from error

    def _learn(self) -> None:
        """Do every update that the env steps so far allow."""
        limiter = self._streams.limiter
        data = self._config.replay()
        ratio = data.ratio
        assert ratio is not None, "free-running needs two processes"
        due = ratio[0] * max(0, limiter.env_steps - data.starts) // ratio[1]
        while limiter.updates < due:
            before = limiter.updates
            if not self._step("learner"):
                return  # stopped
            if limiter.updates == before:
                raise RuntimeError(f"serial mode stands still: {due - before} updates are due, none was made")

    def _look(self, tracker: RunTracker, signals: StopSignals) -> None:
        if signals.count:
            self.stop()
        tracker.tick(time.monotonic())

    def _make(self, node: Node) -> Worker:
        spec = WorkerSpec(
            role=node.role,
            name=node.name,
            index=node.index,
            worker_id=FIRST_WORKER_ID + node.slot,
            slot=node.slot,
            incarnation=self._generation << 32,
            parent_pid=os.getpid(),
            run_dir=str(self._run_dir.path),
            config=self._config.model_dump(mode="json"),
            env_spec=self._env_spec.to_json(),
            lanes=node.lanes,
            sys_path=tuple(sys.path),
            resume=None if self._resume is None else str(self._resume),
        )
        self.current = node.name
        return role_class(self._modules[node.role], node.role)(spec, self._streams)

    def _step(self, name: str) -> bool:
        """One step of a worker; False once it has finished, however often it is asked."""
        self.current = name
        if name != "learner":
            return self._go_on(name)
        with self.learner_free:
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
