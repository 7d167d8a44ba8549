"""`rlz train`: from a configuration to a finished run."""

import os
import secrets
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rlz.answers import Replay
from rlz.errors import CheckpointError
from rlz.planning.needs import check_memory
from rlz.records.run_directory import RunDirectory, create_run_directory, named_problems, runs_folder
from rlz.records.totals import start_clock
from rlz.runtime.at_once import MAIN_THREAD_S, exit_now, exit_process
from rlz.runtime.signals import StopSignals
from rlz.system.descendants import ended_afterwards, orphans_come_here
from rlz.system.files import replace_file
from rlz.system.memory import limits

if TYPE_CHECKING:
    from rlz.config import RunConfig
    from rlz.envs.spaces import EnvSpec
    from rlz.planning.plan import Plan
    from rlz.records.checkpoint import Checkpoint
    from rlz.runtime.controller import RunEnd
    from rlz.tracking import Tracker, WorkerInfo
    from rlz.tracking.callbacks import Callbacks
    from rlz.tracking.tracker import Observer
    from rlz.transport import Streams
    from rlz.workers.job import Job

Beside = Callable[[Path], None]


def train(
    config: "RunConfig",
    *,
    plan: "Plan | None" = None,
    notes: Sequence[str] = (),
    quiet: bool = False,
    workers: Mapping[str, str] | None = None,
    beside: "Beside | None" = None,
) -> int:
    """Run a training, say why where it fails, and return its exit status.

    Call it from the main thread: it takes over SIGINT, SIGTERM and SIGHUP while it runs.

    Parameters
    ----------
    config : everything about the run.
    plan : that `config` follows, for the run folder and to be verified (`runtime.planning`).
    notes : to be shown at the start.
    quiet : show no progress.
    workers : other classes for some roles of the graph, "module:Class" or "file.py:Class".
    beside : called with the run folder before the first worker starts.

    Returns
    -------
    0 when the run is complete, 1 when it failed (the reason is on stderr), 128 + number of the signal that stopped it.

    Raises
    ------
    EnvError, ConfigError, GraphError, DeviceError, SharedMemoryError
        Before any worker has been started.
    CheckpointError
        The system refuses something within the run folder.
    """
    return run(config, plan=plan, notes=notes, quiet=quiet, workers=workers, beside=beside).said()


def run(
    config: "RunConfig",
    *,
    plan: "Plan | None" = None,
    notes: Sequence[str] = (),
    quiet: bool = False,
    workers: Mapping[str, str] | None = None,
    callbacks: "Callbacks | None" = None,
    beside: "Beside | None" = None,
) -> "Ended":
    """Run a training as `train` does; what becomes of it is returned. `callbacks`: a user's functions."""
    from rlz import envs
    from rlz.envs.limits import start_notes
    from rlz.system.device import check_device

    for device in config.learner_devices():
        check_device(device)
    notes = list(notes)
    parent = runs_folder(config)  # absolute before the first line of an environment runs, which may change the folder
    env_spec = envs.inspect_env(config, on_note=notes.append)
    notes += start_notes(env_spec) + _learning_notes(config)
    job = make_job(config, env_spec, workers)
    if job.answers.policy.runner == "torch":
        where = {"central": "in the inference server", "learner": "in the learner"}.get(config.inference)
        why = f"torch runs the policy {where or 'in every sampler'}, because Rust does not know its network"
        notes.append(f"actions: {why}")
        if plan is not None:
            plan = plan.model_copy(update={"facts": {**plan.facts, "actions": why}})
    with orphans_come_here(), private_files(), closing(make_streams(job)) as streams:
        run_dir = create_run_directory(config, parent)
        with closing(run_dir), named_problems(run_dir.path):
            try:
                start = Launch(job, run_dir, notes, quiet=quiet, plan=plan, callbacks=callbacks, beside=beside)
                return launch(start, streams)
            except BaseException:
                run_dir.discard()
                raise


def _learning_notes(config: "RunConfig") -> list[str]:
    """What to say of a run that ends before its first update; nothing of any other."""
    data, total = config.data(), config.total_timesteps
    left = max(0, total - data.starts)
    ratio = data.ratio if isinstance(data, Replay) else None
    if left if ratio is None else left * ratio[0] // ratio[1]:
        return []
    return [
        f"NOTHING WILL BE LEARNED: updates begin after --learning-starts {data.starts:,} env steps, and the run has "
        f"{total:,}. Give a larger -n, or for a short try --learning-starts {total // 2}"
    ]


@contextmanager
def private_files() -> Iterator[None]:
    """Make every new file and folder readable for this user only."""
    old = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(old)


@dataclass(frozen=True)
class Launch:
    """A run that is about to start.

    Attributes
    ----------
    job, run_dir : of the run.
    notes : to be shown once there is a display.
    resume : checkpoint to go on from.
    quiet, plan, beside : as in `train`.
    wall_s : seconds that the run has trained before.
    cut : env steps at the checkpoint to go on from; None for a fresh run.
    """

    job: "Job"
    run_dir: RunDirectory
    notes: list[str]
    resume: "Checkpoint | None" = None
    quiet: bool = False
    wall_s: float = 0.0
    cut: int | None = None
    plan: "Plan | None" = None
    callbacks: "Callbacks | None" = None
    beside: "Beside | None" = None


@dataclass(frozen=True)
class Ended:
    """What has become of a run.

    Attributes
    ----------
    path : run folder.
    status : "completed", "stopped" or "failed".
    error : why it failed.
    exit_status : 0 when the run is complete, 1 when it failed, 128 + number of the signal that stopped it.
    """

    path: Path
    status: str
    error: str
    exit_status: int

    def said(self) -> int:
        """Say why the run failed, where it did; the exit status."""
        if self.error:
            print(f"error: {self.error}\nlogs: {self.path / 'logs'}", file=sys.stderr, flush=True)
        return self.exit_status


def make_job(config: "RunConfig", env_spec: "EnvSpec", workers: Mapping[str, str] | None = None) -> "Job":
    """Make graph and placement of a run, and check that its memory can be had.

    Raises
    ------
    GraphError, SharedMemoryError
        The part that cannot work, or does not fit.
    """
    from rlz.config.model import ask
    from rlz.workers.job import Job

    answers = ask(config, env_spec)
    check_memory(config, env_spec, answers)
    available = min((one.available for one in limits()), default=None)
    return Job.of(config, env_spec, answers, workers=workers, available=available)


def make_streams(job: "Job", resume: "Checkpoint | None" = None) -> "Streams":
    """Allocate the streams of a run; fill replay buffer and stats board from the checkpoint that it goes on from.

    Raises
    ------
    SharedMemoryError
        There is not enough of it.
    CheckpointError
        The rows of the checkpoint cannot be restored.
    """
    from rlz.transport.streams import CONTROLLER_ID, Origin

    origin = Origin(
        secrets.randbits(63),
        env_steps=0 if resume is None else resume.env_steps,
        updates=0 if resume is None else resume.updates,
        # The learner begins by publishing the checkpoint's actor once more, under the number that it had.
        version=0 if resume is None else max(0, resume.version - 1),
        starts=None if resume is None else learning_starts_again(job, resume),
    )
    streams = job.streams(origin)
    if resume is not None:
        try:
            open_episodes = bool(job.placement.groups) and bool(resume.workers)
            if streams.learned_from is not None:
                resume.restore_replay(streams.learned_from, worker=CONTROLLER_ID, open_episodes=open_episodes)
            resume.totals.put_back(streams)
        except BaseException:
            streams.close()
            raise
    return streams


def updates_resume_at(job: "Job", resume: "Checkpoint") -> int:
    """Env steps at which updates go on after a resume: when the buffer has the rows with which a fresh run begins.

    That is the checkpoint's own count wherever its rows are restored.
    """
    from rlz.answers import Replay

    data = job.answers.data
    if not isinstance(data, Replay):
        return resume.env_steps
    open_windows = job.config.num_envs * (data.n_step - 1)  # env steps that may not have given a row yet
    rows = 0 if resume.replay is None else sum(file.last - file.first + 1 for file in resume.replay.files())
    return resume.env_steps + max(0, min(data.starts - open_windows, data.capacity) - rows)


def learning_starts_again(job: "Job", resume: "Checkpoint") -> int:
    """Env steps at which the replay ratio's line begins in a resumed run.

    Later than before by as many env steps as updates are held, so that they are not made up afterwards.
    """
    rule = job.graph.rule
    before = int(resume.counters.get("learning_starts", rule.starts))
    held_until = updates_resume_at(job, resume)
    if held_until <= max(resume.env_steps, before):
        return before
    ratio = rule.ratio
    done = 0 if ratio is None else resume.updates * ratio[1] // ratio[0]  # env steps that the updates were for
    return max(before, held_until - done)


def launch(start: Launch, streams: "Streams") -> Ended:
    """Run. A second stop signal ends this process instead."""
    job = start.job
    start_clock(streams, start.wall_s)
    if start.plan is not None and start.plan.basis != "off":
        replace_file(start.run_dir.plan, start.plan.to_toml().encode())
        if start.plan.basis != "serial":
            start.notes.append(start.plan.headline())
    if start.beside is not None:
        start.beside(start.run_dir.path)
    if job.placement.groups:
        with ended_afterwards():
            outcome, signals = _serial(start, streams)
    else:
        outcome, signals = _processes(start, streams)
    status = _exit_status(outcome, signals)
    if signals.count >= 2:
        exit_process(status)
    return Ended(start.run_dir.path, outcome.status, outcome.error, status)


def _processes(start: Launch, streams: "Streams") -> "tuple[RunEnd, StopSignals]":
    from rlz.planning.verify import Verifier
    from rlz.runtime.controller import Controller

    tracker: Tracker | None = None

    def now() -> None:
        # The controller's loop sees the second signal too; but it may be in the middle of something else.
        if not signals.left.wait(MAIN_THREAD_S):
            exit_now(start.run_dir.path, tracker, signals.exit_status)

    with StopSignals(now) as signals:
        controller = Controller(
            start.job,
            start.run_dir,
            streams,
            generation=start.run_dir.starts,
            resume=None if start.resume is None else start.resume.path,
        )
        try:
            # The workers load while the tracker opens its files.
            controller.start()
            observers = []
            if start.plan is not None and start.plan.prediction is not None:
                observers.append(Verifier(start.plan.prediction, start.job.config).look)
            tracker = _tracker(start, streams, controller.workers, signals, observers)
            for note in start.notes:
                tracker.note(note)
            outcome = controller.run(tracker, signals)
            if signals.count < 2:
                if controller.sink_died:
                    _salvage(start, streams, tracker)
                tracker.finish(outcome.status)
        finally:
            controller.close()
            if tracker is not None:
                tracker.close()
    return outcome, signals


def _tracker(
    start: Launch,
    streams: "Streams",
    workers: "Callable[[], Sequence[WorkerInfo]]",
    signals: StopSignals,
    observers: "Sequence[Observer]" = (),
) -> "Tracker":
    from rlz.tracking import Tracker

    if start.callbacks is not None:
        start.callbacks.attach(start.run_dir.path, signals.stop)
    return Tracker(
        run_dir=start.run_dir.path,
        config=start.job.config,
        streams=streams,
        workers=workers,
        cut=start.cut,
        quiet=start.quiet,
        observers=observers,
        callbacks=start.callbacks,
    )


def _serial(start: Launch, streams: "Streams") -> "tuple[RunEnd, StopSignals]":
    from rlz.runtime.serial import SerialRun
    from rlz.system.files import remove_temporary

    def now() -> None:
        # The main thread may be deep in native code, so there is no way to unwind it within a second.
        exit_now(start.run_dir.path, tracker, signals.exit_status)

    tracker: Tracker | None = None
    with StopSignals(now) as signals:
        run = SerialRun(
            start.job,
            start.run_dir,
            streams,
            generation=start.run_dir.starts,
            resume=None if start.resume is None else start.resume.path,
        )
        tracker = _tracker(start, streams, run.workers, signals)
        try:
            for note in start.notes:
                tracker.note(note)
            outcome = run.run(tracker, signals)
            if run.sink_died:
                _salvage(start, streams, tracker)
            tracker.finish(outcome.status)
        finally:
            tracker.close()
            remove_temporary(start.run_dir.path)
    return outcome, signals


def _salvage(start: Launch, streams: "Streams", tracker: "Tracker") -> None:
    """Save the rows of a run that has lost the worker which learns from them."""
    if not start.job.config.save_replay or streams.learned_from is None:
        return
    from rlz.records.checkpoint import newest_checkpoint
    from rlz.records.salvage import save_replay

    try:
        newest_checkpoint(start.run_dir.path)
        rows = save_replay(start.run_dir.path, streams)
    except CheckpointError as error:
        tracker.note(f"the replay buffer is not saved, because the run cannot be resumed: {error}")
    except OSError as error:
        tracker.note(f"the replay buffer could not be saved: {error.strerror or error}")
    else:
        gone = start.job.graph.sink.role
        tracker.note(f"the {gone} is gone; the {rows:,} rows of the replay buffer are saved for a resumed run")


def _exit_status(outcome: "RunEnd", signals: StopSignals) -> int:
    if outcome.status == "failed":
        return 1
    return 0 if outcome.status == "completed" else signals.exit_status
