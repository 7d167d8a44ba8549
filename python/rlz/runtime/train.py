"""`rlz train`: from a configuration to a finished run."""

import os
import secrets
import sys
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from rlz.runtime.graph import MODULES, stats_slots
from rlz.runtime.memory import check_memory
from rlz.runtime.run_directory import RunDirectory, create_run_directory
from rlz.runtime.signals import StopSignals

if TYPE_CHECKING:
    from rlz.config import RunConfig
    from rlz.envs.spaces import EnvSpec
    from rlz.runtime.controller import Outcome
    from rlz.transport import Streams

AT_ONCE_S = 0.4
"""Longest time that giving the terminal back may take when everything has to end now."""


def train(config: "RunConfig", *, quiet: bool = False, modules: Mapping[str, str] = MODULES) -> int:
    """Run a training and return its exit status.

    Call it from the main thread: it takes over SIGINT, SIGTERM and SIGHUP while it runs.

    Parameters
    ----------
    config : everything about the run.
    quiet : show no progress.
    modules : program of each worker role (tests put theirs here).

    Returns
    -------
    0 when the run is complete, 1 when it failed (the reason is on stderr), 128 + number of the signal that stopped it.

    Raises
    ------
    EnvError, ConfigError, SharedMemoryError
        Before any worker has been started.
    """
    from rlz import envs

    notes: list[str] = []
    env_spec = envs.inspect_env(config, on_note=notes.append)
    check_memory(config, env_spec)
    old_umask = os.umask(0o077)
    try:
        run_dir = create_run_directory(config)
        try:
            return _train(config, env_spec, run_dir, notes, quiet=quiet, modules=modules)
        finally:
            run_dir.close()
    finally:
        os.umask(old_umask)


def _train(
    config: "RunConfig",
    env_spec: "EnvSpec",
    run_dir: RunDirectory,
    notes: list[str],
    *,
    quiet: bool,
    modules: Mapping[str, str],
) -> int:
    from rlz.transport import Streams

    streams = Streams.create(config, env_spec, slots=stats_slots(config), run_id=secrets.randbits(63))
    try:
        job = _serial if config.mode == "serial" else _processes
        outcome, status = job(config, env_spec, run_dir, streams, notes, quiet, modules)
    finally:
        streams.close()
    if outcome.error:
        print(f"error: {outcome.error}\nlogs: {run_dir.logs}", file=sys.stderr, flush=True)
    return status


def _processes(
    config: "RunConfig",
    env_spec: "EnvSpec",
    run_dir: RunDirectory,
    streams: "Streams",
    notes: list[str],
    quiet: bool,
    modules: Mapping[str, str],
) -> "tuple[Outcome, int]":
    from rlz.runtime.controller import Controller
    from rlz.tracking import Tracker

    with StopSignals() as signals:
        controller = Controller(config, env_spec, run_dir, streams, modules=modules)
        tracker: Tracker | None = None
        try:
            # The workers load while the tracker opens its files.
            controller.start()
            tracker = Tracker(run_dir.path, config, streams, controller.workers, quiet=quiet)
            for note in notes:
                tracker.note(note)
            outcome = controller.run(tracker, signals)
            if signals.count < 2:
                tracker.finish(outcome.status)
        finally:
            controller.close()
            if tracker is not None:
                _at_once(tracker.close, signals) if signals.count >= 2 else tracker.close()
        return outcome, _exit_status(outcome, signals)


def _serial(
    config: "RunConfig",
    env_spec: "EnvSpec",
    run_dir: RunDirectory,
    streams: "Streams",
    notes: list[str],
    quiet: bool,
    modules: Mapping[str, str],
) -> "tuple[Outcome, int]":
    from rlz.runtime.files import remove_temporary
    from rlz.runtime.serial import SerialRun
    from rlz.tracking import Tracker

    def now() -> None:
        # The main thread may be deep in native code, so there is no way to unwind it within a second.
        _at_once(tracker.close, signals)
        os._exit(signals.exit_status)

    with StopSignals(now) as signals:
        run = SerialRun(config, env_spec, run_dir, streams, modules=modules)
        tracker = Tracker(run_dir.path, config, streams, run.workers, quiet=quiet)
        try:
            for note in notes:
                tracker.note(note)
            outcome = run.run(tracker, signals)
            tracker.finish(outcome.status)
        finally:
            tracker.close()
            remove_temporary(run_dir.checkpoints)
        return outcome, _exit_status(outcome, signals)


def _exit_status(outcome: "Outcome", signals: StopSignals) -> int:
    if outcome.status == "failed":
        return 1
    return 0 if outcome.status == "completed" else signals.exit_status


def _at_once(close: Callable[[], None], signals: StopSignals) -> None:
    """Close the tracker, but wait for it only for a moment."""
    thread = threading.Thread(target=close, daemon=True)
    thread.start()
    thread.join(AT_ONCE_S)
    if thread.is_alive() and signals.count >= 2:
        os._exit(signals.exit_status)
