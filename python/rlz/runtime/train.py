"""`rlz train`: from a configuration to a finished run."""

import os
import secrets
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rlz.algorithms.answers import Replay
from rlz.errors import CheckpointError
from rlz.planning.needs import check_memory
from rlz.records.run_directory import RunDirectory, create_run_directory, named_problems, runs_folder
from rlz.records.totals import start_clock
from rlz.runtime.at_once import MAIN_THREAD_S, exit_now, leave
from rlz.runtime.graph import CONTROLLER_ID, MODULES, stats_slots
from rlz.runtime.signals import StopSignals
from rlz.system.descendants import ended_afterwards, orphans_come_here
from rlz.system.files import replace_file

if TYPE_CHECKING:
    from rlz.config import RunConfig
    from rlz.envs.spaces import EnvSpec
    from rlz.planning.plan import Plan, Prediction
    from rlz.records.checkpoint import Checkpoint
    from rlz.runtime.controller import Outcome
    from rlz.tracking import Tracker
    from rlz.tracking.tracker import Observer
    from rlz.transport import Streams


def train(
    config: "RunConfig",
    *,
    plan: "Plan | None" = None,
    notes: Sequence[str] = (),
    quiet: bool = False,
    modules: Mapping[str, str] = MODULES,
) -> int:
    """Run a training and return its exit status.

    Call it from the main thread: it takes over SIGINT, SIGTERM and SIGHUP while it runs.

    Parameters
    ----------
    config : everything about the run.
    plan : that `config` follows, for the run folder and to be verified (`runtime.planning`).
    notes : to be shown at the start.
    quiet : show no progress.
    modules : program of each worker role (tests put theirs here).

    Returns
    -------
    0 when the run is complete, 1 when it failed (the reason is on stderr), 128 + number of the signal that stopped it.

    Raises
    ------
    EnvError, ConfigError, DeviceError, SharedMemoryError
        Before any worker has been started.
    CheckpointError
        The system refuses something within the run folder.
    """
    from rlz import envs
    from rlz.envs.limits import start_notes
    from rlz.system.device import check_device

    for device in config.learner_devices():
        check_device(device)
    notes = list(notes)
    parent = runs_folder(config)  # absolute before the first line of an environment runs, which may change the folder
    env_spec = envs.inspect_env(config, on_note=notes.append)
    notes += start_notes(env_spec) + _learning_notes(config)
    check_memory(config, env_spec)
    with orphans_come_here(), private_files(), closing(make_streams(config, env_spec)) as streams:
        run_dir = create_run_directory(config, parent)
        with closing(run_dir), named_problems(run_dir.path):
            try:
                job = Launch(config, env_spec, run_dir, notes, quiet=quiet, modules=modules, plan=plan)
                return launch(job, streams)
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
    config, env_spec, run_dir : of the run.
    notes : to be shown once there is a display.
    resume : checkpoint to go on from.
    quiet, modules, plan : as in `train`.
    wall_s : seconds that the run has trained before.
    cut : env steps at the checkpoint to go on from; None for a fresh run.
    """

    config: "RunConfig"
    env_spec: "EnvSpec"
    run_dir: RunDirectory
    notes: list[str]
    resume: "Checkpoint | None" = None
    quiet: bool = False
    modules: Mapping[str, str] = field(default_factory=lambda: MODULES)
    wall_s: float = 0.0
    cut: int | None = None
    plan: "Plan | None" = None


def make_streams(config: "RunConfig", env_spec: "EnvSpec", resume: "Checkpoint | None" = None) -> "Streams":
    """Allocate the streams of a run; fill replay buffer and stats board from the checkpoint that it goes on from.

    Raises
    ------
    SharedMemoryError
        There is not enough of it.
    CheckpointError
        The rows of the checkpoint cannot be restored.
    """
    from rlz.transport import Streams

    streams = Streams.create(
        config,
        env_spec,
        slots=stats_slots(config),
        run_id=secrets.randbits(63),
        env_steps=0 if resume is None else resume.env_steps,
        updates=0 if resume is None else resume.updates,
        # The learner begins by publishing the checkpoint's actor once more, under the number that it had.
        version=0 if resume is None else max(0, resume.version - 1),
    )
    if resume is not None:
        try:
            open_episodes = config.mode == "serial" and bool(resume.workers)
            resume.restore_replay(streams.replay, worker=CONTROLLER_ID, open_episodes=open_episodes)
            resume.totals.put_back(streams, config)
        except BaseException:
            streams.close()
            raise
    return streams


def launch(job: Launch, streams: "Streams") -> int:
    """Run, and return the exit status. A second stop signal ends this process instead."""
    start_clock(streams, job.config, job.wall_s)
    if job.plan is not None and job.plan.basis != "off":
        replace_file(job.run_dir.plan, job.plan.to_toml().encode())
        if job.plan.basis != "serial":
            job.notes.append(job.plan.headline())
    if job.config.mode == "serial":
        with ended_afterwards():
            outcome, signals = _serial(job, streams)
    else:
        outcome, signals = _processes(job, streams)
    if outcome.error:
        print(f"error: {outcome.error}\nlogs: {job.run_dir.logs}", file=sys.stderr, flush=True)
    status = _exit_status(outcome, signals)
    if signals.count >= 2:
        leave(status)
    return status


def _processes(job: Launch, streams: "Streams") -> "tuple[Outcome, StopSignals]":
    from rlz.runtime.controller import Controller
    from rlz.tracking import Tracker

    tracker: Tracker | None = None

    def now() -> None:
        # The controller's loop sees the second signal too; but it may be in the middle of something else.
        if not signals.left.wait(MAIN_THREAD_S):
            exit_now(job.run_dir.path, tracker, signals.exit_status)

    with StopSignals(now) as signals:
        controller = Controller(
            job.config,
            job.env_spec,
            job.run_dir,
            streams,
            generation=job.run_dir.starts,
            resume=None if job.resume is None else job.resume.path,
            modules=job.modules,
        )
        try:
            # The workers load while the tracker opens its files.
            controller.start()
            observers = [] if job.plan is None or job.plan.prediction is None else [_verifier(job, job.plan.prediction)]
            tracker = Tracker(
                *(job.run_dir.path, job.config, streams, controller.workers),
                cut=job.cut,
                quiet=job.quiet,
                observers=observers,
            )
            for note in job.notes:
                tracker.note(note)
            outcome = controller.run(tracker, signals)
            if signals.count < 2:
                if controller.learner_died:
                    _salvage(job, streams, tracker)
                tracker.finish(outcome.status)
        finally:
            controller.close()
            if tracker is not None:
                tracker.close()
    return outcome, signals


def _verifier(job: Launch, prediction: "Prediction") -> "Observer":
    from rlz.planning import cache
    from rlz.planning.verify import Verifier

    profile = cache.load(job.config).profile
    return Verifier(prediction, job.config, sampling=None if profile is None else profile.sampling).look


def _serial(job: Launch, streams: "Streams") -> "tuple[Outcome, StopSignals]":
    from rlz.runtime.serial import SerialRun
    from rlz.system.files import remove_temporary
    from rlz.tracking import Tracker

    def now() -> None:
        # The main thread may be deep in native code, so there is no way to unwind it within a second.
        exit_now(job.run_dir.path, tracker, signals.exit_status)

    tracker: Tracker | None = None
    with StopSignals(now) as signals:
        run = SerialRun(
            job.config,
            job.env_spec,
            job.run_dir,
            streams,
            generation=job.run_dir.starts,
            resume=None if job.resume is None else job.resume.path,
            modules=job.modules,
        )
        tracker = Tracker(job.run_dir.path, job.config, streams, run.workers, cut=job.cut, quiet=job.quiet)
        try:
            for note in job.notes:
                tracker.note(note)
            outcome = run.run(tracker, signals)
            if run.learner_died:
                _salvage(job, streams, tracker)
            tracker.finish(outcome.status)
        finally:
            tracker.close()
            remove_temporary(job.run_dir.path)
    return outcome, signals


def _salvage(job: Launch, streams: "Streams", tracker: "Tracker") -> None:
    """Save the rows of a run whose learner is gone."""
    if not job.config.save_replay:
        return
    from rlz.records.checkpoint import newest_checkpoint
    from rlz.records.salvage import save_replay

    try:
        newest_checkpoint(job.run_dir.path)
        rows = save_replay(job.run_dir.path, streams, job.config)
    except CheckpointError as error:
        tracker.note(f"the replay buffer is not saved, because the run cannot be resumed: {error}")
    except OSError as error:
        tracker.note(f"the replay buffer could not be saved: {error.strerror or error}")
    else:
        tracker.note(f"the learner is gone; the {rows:,} rows of the replay buffer are saved for a resumed run")


def _exit_status(outcome: "Outcome", signals: StopSignals) -> int:
    if outcome.status == "failed":
        return 1
    return 0 if outcome.status == "completed" else signals.exit_status
