"""The tracker: reads the stats board, feeds the sinks, sums the run up."""

import contextlib
import csv
import errno
import importlib.util
import json
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rlz.config import RunConfig
from rlz.records.runs import best_return
from rlz.references import label
from rlz.system.files import replace_file
from rlz.tracking.console import Display, NoDisplay, TerminalDisplay
from rlz.tracking.growing_file import NotWrittenError
from rlz.tracking.process import started_at
from rlz.tracking.reading import WAITS, Reader, Reading, WorkerInfo
from rlz.tracking.sinks import (
    Evaluation,
    EvaluationsFile,
    EventsFile,
    MetricsFile,
    Sink,
    TensorBoardFile,
)
from rlz.tracking.snapshot import Snapshot, between
from rlz.tracking.trackers import InThread, TrackerSink, missing
from rlz.transport import Streams
from rlz.transport.stats import Stat

REFRESH_S = 1.0
"""Seconds between readings for the live view."""

RATE_WINDOW = 10
"""The live view's rates are means over this many readings."""


Observer = Callable[[Snapshot], str | None]
"""Sees every snapshot of the log; what it returns is recorded as an event."""


class Tracker:
    """Observes one run from the controller. Its methods may be called from any thread.

    Parameters
    ----------
    run_dir : run folder, exists already.
    config : the resolved configuration.
    streams : read only.
    workers : called at every reading; gives every worker that has ever been started (a dead one keeps its entry).
    cut : env steps at the checkpoint that the run goes on from; None for a fresh run.
    quiet : show nothing on stdout (tests, benches).
    observers : see every snapshot of the log.
    callbacks : a user's functions.
    """

    def __init__(
        self,
        run_dir: Path,
        config: RunConfig,
        streams: Streams,
        workers: Callable[[], Sequence[WorkerInfo]],
        *,
        cut: int | None = None,
        quiet: bool = False,
        observers: Sequence[Observer] = (),
        callbacks: Sink | None = None,
    ) -> None:
        self._lock = threading.RLock()
        self._run_dir = run_dir
        self._observers = observers
        self._config = config
        self._streams = streams
        (run_dir / "summary.json").unlink(missing_ok=True)  # of the run that this one resumes
        self._reader = Reader(streams, workers, config.log_info)
        self._started = float(streams.stats.read()[:, Stat.RUN_BEGAN].max()) or time.monotonic()
        self._cut = cut
        self._process_started = started_at()
        self._scored = -1
        self._evaluations = 0
        self._last_return: float | None = None
        self._best_return: float | None = None
        self._memory: dict[str, dict[str, int]] = {}
        self._ready: dict[str, float] = {}
        self._summary: dict[str, Any] | None = None
        self._display: Display = NoDisplay() if quiet else TerminalDisplay(f"rlz  {run_dir.name}")
        self._sinks: dict[str, Sink] = {}
        self._held_up: set[str] = set()
        self._open("logs/events.log", lambda: EventsFile(run_dir / "logs" / "events.log"))
        self._open("metrics.jsonl", lambda: MetricsFile(run_dir / "metrics.jsonl"))
        self._open("evaluations.csv", lambda: EvaluationsFile(run_dir / "evaluations.csv", config.log_info))
        self._read_history()
        self._tensorboard_due = True
        if config.track:
            if importlib.util.find_spec(config.tracker) is None:
                self.note(missing(config.tracker))
            else:
                self._open(config.tracker, lambda: InThread(lambda: TrackerSink(run_dir, config)))
        if callbacks is not None:
            self._sinks["callbacks"] = callbacks
        first = self._read(time.monotonic())
        self._logged = first
        self._shown = self._between(first, first)
        self._recent: deque[Reading] = deque([first], maxlen=RATE_WINDOW)

    def tick(self, now: float) -> None:
        """Read, write and show what is due at `now` (`time.monotonic()`); call it at least every 0.5 s. Never waits."""
        with self._lock:
            if self._summary is None:
                self._tick(now)

    def _tick(self, now: float) -> None:
        log_due = now - self._logged.at >= self._config.log_every
        if not log_due and now - self._recent[-1].at < REFRESH_S:
            return
        self._open_tensorboard()
        reading = self._read(now)
        if log_due:
            self._log(reading)
        else:
            self._shown = self._between(self._recent[0], reading)
            self._display.show(self._shown, logged=False)
        self._recent.append(reading)

    def note(self, text: str) -> None:
        """Record an event (restart, fallback, signal): one line on the display and in logs/events.log."""
        self._display.note(text)
        with self._lock:
            self._each(lambda sink: sink.note(text))

    def finish(self, status: str) -> dict[str, Any]:
        """Take the last reading, write summary.json, close the sinks.

        `status` is "completed", "stopped" or "failed". The streams are still open; the workers may be gone. Returns
        the summary. Calling it again returns the first summary.
        """
        with self._lock:
            if self._summary is None:
                self._open_tensorboard()
                reading = self._read(time.monotonic())
                self._log(reading)
                self._summary = self._sum_up(status, reading)
                self._guard("summary.json", self._write_summary)
                text = self._summary_text()
                self._each(lambda sink: sink.note(text))
                self._close(text)
            return self._summary

    def close(self) -> None:
        """Give the terminal back without a summary (second Ctrl-C, crash of the controller). Idempotent."""
        self._close("")

    def _close(self, last: str) -> None:
        display, self._display = self._display, NoDisplay()
        display.close(last)  # first, and without the lock: the terminal is given back whatever a sink waits for
        with self._lock:
            self._each(lambda sink: sink.close())
            self._sinks.clear()

    def _read(self, now: float) -> Reading:
        reading = self._reader.read(now)
        for worker in reading.workers:
            if worker.usage is not None:
                seen = self._memory.setdefault(worker.info.name, {"private_peak": 0, "shared_peak": 0})
                seen["private"], seen["shared"] = worker.usage.private, worker.usage.shared
                seen["private_peak"] = max(seen["private_peak"], worker.usage.private)
                seen["shared_peak"] = max(seen["shared_peak"], worker.usage.shared)
            # Kept from the first time on: a restarted worker writes its own.
            does = worker.info.progress
            if does not in self._ready and (ready := reading.ready_at(does)) is not None:
                self._ready[does] = ready
            if does == "episodes":
                for event in self._reader.events(worker.info.slot):
                    self._evaluation(Evaluation.from_event(event, self._config.log_info))
        return reading

    def _evaluation(self, evaluation: Evaluation) -> None:
        if evaluation.version <= self._scored:
            return  # of the run that this one resumes, and written down already
        self._evaluations += 1
        self._last_return = evaluation.return_mean
        if self._best_return is None or evaluation.return_mean > self._best_return:
            self._best_return = evaluation.return_mean
        self._display.evaluation(evaluation)
        self._each(lambda sink: sink.evaluation(evaluation))

    def _read_history(self) -> None:
        """Go on after the evaluations of the run that this one resumes, if there is one."""
        try:
            with (self._run_dir / "evaluations.csv").open(encoding="utf-8", newline="") as file:
                for row in csv.DictReader(file):
                    self._scored, self._last_return = int(row["version"]), float(row["return_mean"])
                    self._best_return = _larger(self._last_return, self._best_return)
                    self._evaluations += 1
        except (OSError, ValueError, KeyError, TypeError):
            pass
        if (best := best_return(self._run_dir)) is not None:
            # It may be of env steps beyond the checkpoint: then it is in no line any more, and still the best.
            self._best_return = _larger(best, self._best_return)

    def _log(self, reading: Reading) -> None:
        snapshot = self._between(self._logged, reading)
        scalars = snapshot.scalars()
        self._each(lambda sink: sink.log(snapshot.env_steps, snapshot.wall_s, snapshot.updates, scalars))
        self._display.show(snapshot.with_usage_of(self._shown), logged=True)
        self._logged, self._shown = reading, snapshot
        for look in self._observers:
            if (text := look(snapshot)) is not None:
                self.note(text)

    def _between(self, old: Reading, new: Reading) -> Snapshot:
        return between(old, new, config=self._config, started=self._started)

    def _open(self, name: str, make: Callable[[], Sink]) -> None:
        def add() -> None:
            self._sinks[name] = make()

        self._guard(name, add)

    def _open_tensorboard(self) -> None:
        # Not in the constructor: importing tensorboard takes 0.7 s, and the workers should be loading meanwhile.
        if self._tensorboard_due:
            self._tensorboard_due = False
            config_text = self._config.to_toml()
            self._open("TensorBoard", lambda: TensorBoardFile(self._run_dir, config_text, cut=self._cut))

    def _each(self, call: Callable[[Sink], None]) -> None:
        for name, sink in list(self._sinks.items()):
            self._guard(name, lambda sink=sink: call(sink))  # type: ignore[misc]

    def _guard(self, name: str, call: Callable[[], None]) -> None:
        # Whatever goes wrong while writing numbers down (disk full, no network) must not end hours of training.
        try:
            call()
        except NotWrittenError as error:
            if name not in self._held_up:
                self._held_up.add(name)
                self.note(
                    f"{name} CANNOT BE WRITTEN: {error}. The run goes on, and it is tried again{self._fix(error)}"
                )
        except Exception as error:
            failed = self._sinks.pop(name, None)
            if failed is not None:
                with contextlib.suppress(Exception):
                    failed.close()
            what = "is not written" if failed is None else "is not written any more"
            self.note(f"{name} {what}: {type(error).__name__}: {error}")
        else:
            if name in self._held_up:
                self._held_up.discard(name)
                self.note(f"{name} is written again")

    def _fix(self, error: NotWrittenError) -> str:
        full = error.reason.errno in (errno.ENOSPC, errno.EDQUOT)
        return f". Make room on the disk of {self._run_dir}" if full else ""

    def _sum_up(self, status: str, reading: Reading) -> dict[str, Any]:
        config = self._config
        wall_s = max(reading.at - self._started, 1e-9)
        whole = self._between(self._logged, reading)
        return {
            "status": status,
            "algo": label(config.algo),
            "env": label(config.env),
            "seed": config.seed,
            "total_timesteps": config.total_timesteps,
            "env_steps": reading.env_steps,
            "updates": reading.updates,
            "episodes": whole.episodes,
            "wall_s": round(wall_s, 3),
            "env_steps_per_s": round(reading.env_steps / wall_s, 3),
            "updates_per_s": round(reading.updates / wall_s, 3),
            "frames_per_s": round(reading.total(Stat.FRAMES) / wall_s, 1),
            "replay_ratio": whole.replay_ratio,
            "policy_lag_mean": whole.policy_lag_mean,
            "return_mean": whole.return_mean,
            "last_evaluation_return": self._last_return,
            "best_evaluation_return": self._best_return,
            "best_held_out_return": best_return(self._run_dir, "held_out"),
            "evaluations": self._evaluations,
            "evaluations_skipped": whole.evaluations_skipped,
            "checkpoints": whole.checkpoints,
            "rows_lost": reading.rows_lost,
            "restarts": whole.restarts,
            "first_env_step_s": self._ready_after("env_steps"),
            "first_update_s": self._ready_after("updates"),
            "waits_s": {
                worker.info.name: {
                    reason: round(worker.waited(reason, reading.at), 3)
                    for reason in WAITS
                    if worker.waited(reason, reading.at) > 0
                }
                for worker in reading.workers
            },
            "memory_bytes": self._memory,
            "shared_memory_bytes": self._streams.nbytes(),
            "threads": self._learner_value(reading, Stat.THREADS),
            "compiled": self._learner_value(reading, Stat.COMPILED),
        }

    def _ready_after(self, progress: str) -> float | None:
        """Seconds from the start of this process to the first step or update."""
        return round(self._ready[progress] - self._process_started, 3) if progress in self._ready else None

    @staticmethod
    def _learner_value(reading: Reading, stat: Stat) -> int | None:
        learner = reading.learner()
        return None if learner is None or learner.stats[Stat.UPDATES] <= 0 else int(learner.stats[stat])

    def _write_summary(self) -> None:
        replace_file(self._run_dir / "summary.json", (json.dumps(self._summary, indent=2) + "\n").encode())

    def _summary_text(self) -> str:
        summary = self._summary or {}
        text = (
            f"{summary['status']}: {summary['env_steps']:,} env steps, {summary['updates']:,} updates in"
            f" {summary['wall_s']:,.1f} s ({summary['env_steps_per_s']:,.1f} env steps/s)"
        )
        if not summary["updates"]:
            text += "; NOTHING WAS LEARNED: no update was made"
        if summary["last_evaluation_return"] is not None:
            text += f"; evaluation return {summary['last_evaluation_return']:,.2f}"
            text += f", best {summary['best_evaluation_return']:,.2f}"
            if (held_out := summary["best_held_out_return"]) is not None:
                text += f" (on held-out starts {held_out:,.2f})"
        for name in sorted(self._held_up):
            text += f"\n{name} is INCOMPLETE: its disk refused the last records"
        return f"{text}\nrun folder: {self._run_dir}"


def _larger(new: float, old: float | None) -> float:
    return new if old is None else max(new, old)
