"""A run as it is looked at: live through its socket, and by what it has written down."""

import csv
import threading
import time
import tomllib
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlz.config import RunConfig, read_config
from rlz.errors import ConfigError, NoAnswerError, TransportError
from rlz.records.runs import RunInfo, best_return, read_run
from rlz.references import label
from rlz.runtime.live import Live
from rlz.runtime.show import Process, doing
from rlz.system.usage import MachineReader
from rlz.tracking.history import History, Tail
from rlz.tracking.reading import Reader, Reading
from rlz.tracking.sinks import Evaluation
from rlz.tracking.snapshot import Snapshot, between
from rlz.tracking.view import View

REFRESH_S = 0.9
"""Seconds between two looks at a run, however many ask."""

WINDOW = 6
"""Rates are means over so many looks."""

MOST_EVENTS = 500


@dataclass(frozen=True)
class Cursor:
    """How much somebody has been told already. `generation`: of the files; another one tells all anew."""

    generation: int = -1
    lines: int = 0
    evaluations: int = 0
    events: int = 0


@dataclass
class Source:
    """One run, from any thread. `close` it.

    Parameters
    ----------
    run : run folder.

    Attributes
    ----------
    config : its configuration as written down, by name.
    pid : the controller of a run that lives, else None.
    """

    run: Path
    config: dict[str, Any] = field(init=False)
    pid: int | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        path = self.run / "config.toml"
        try:
            self.config = tomllib.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ConfigError(
                f"{path} is not TOML: {error}. It was written by the run: put it back, or remove the run."
            ) from error
        self._lock = threading.Lock()
        self._history, self._evaluations, self._events = History(), list[Evaluation](), deque[str](maxlen=MOST_EVENTS)
        self._generation = self._event_count = 0
        self._line: dict[str, Any] = {}
        self._columns: list[str] = []
        self._tails = {name: Tail(self.run / name) for name in ("metrics.jsonl", "evaluations.csv", "logs/events.log")}
        self._live: Live | None = None
        self._reader: Reader | None = None
        self._readings: deque[Reading] = deque(maxlen=WINDOW)
        self._resolved: RunConfig | None = None
        self._machine = MachineReader()
        self._averages: dict[str, float] = {}
        self._averaged_at = -1
        self._looked_at = -REFRESH_S
        self._view: View | None = None

    @property
    def title(self) -> str:
        """The run for people."""
        return f"{label(str(self.config.get('algo', '?')))} on {label(str(self.config.get('env', '?')))}"

    def look(self) -> View:
        """What the run looks like now; at most `REFRESH_S` old."""
        with self._lock:
            now = time.monotonic()
            if self._view is None or now - self._looked_at >= REFRESH_S:
                self._looked_at = now
                self._read_files()
                info = read_run(self.run)
                self._view = self._look_live(info) or self._look_back(info)
            return self._view

    def news(self, cursor: Cursor) -> tuple[Cursor, dict[str, Any]]:
        """What has been written down since; `reset` says that it is all there is."""
        with self._lock:
            generation = self._generation + (self._history.thinned << 32)
            reset = cursor.generation != generation
            if reset:
                cursor = Cursor()
            left = min(self._event_count - cursor.events, len(self._events))
            told = {
                "reset": reset,
                "history": self._history.since(cursor.lines) if len(self._history) > cursor.lines else {},
                "evaluations": [one.row() for one in self._evaluations[cursor.evaluations :]],
                "events": list(self._events)[len(self._events) - left :],
            }
            return Cursor(generation, len(self._history), len(self._evaluations), self._event_count), told

    def close(self) -> None:
        """Let go of the run."""
        with self._lock:
            self._detach()

    def _read_files(self) -> None:
        (metrics, lines), (scores, rows), (diary, events) = (tail.read() for tail in self._tails.values())
        if metrics or scores or diary:
            # A resumed run has cut them: what was told is not true any more.
            self._generation += 1
            self._history.clear()
            self._evaluations.clear()
            self._events.clear()
            self._columns, self._event_count = [], 0
            self._tails = {name: Tail(self.run / name) for name in self._tails}
            return self._read_files()
        for text in lines:
            self._line = dict(self._history.add(text) or self._line)
        for row in csv.reader(rows):
            if not self._columns:
                self._columns = row
                continue
            try:
                self._evaluations.append(Evaluation.from_row(dict(zip(self._columns, row, strict=False))))
            except (KeyError, ValueError):
                continue
        self._events.extend(events)
        self._event_count += len(events)
        return None

    def _look_live(self, info: RunInfo) -> View | None:
        if info.status != "running":
            self._detach()
            return None
        try:
            if self._live is None:
                self._live = Live(self.run, timeout=0.5)
                log_info = self.config.get("log_info", ())
                self._reader = Reader(self._live, self._live.workers, log_info)
                self._resolved = read_config(self.run / "config.toml")
            assert self._reader is not None
            self._readings.append(self._reader.read())
        except NoAnswerError:
            return None  # busy; it is asked again
        except (TransportError, ConfigError):
            self._detach()
            return None
        self.pid = self._live.pid
        assert self._resolved is not None
        old, new = self._readings[0], self._readings[-1]
        snapshot = between(old, new, config=self._resolved, started=self._live.started)
        processes = {worker.name: Process.of(worker.pid) for worker in snapshot.workers if worker.pid}
        return self._made(
            info,
            snapshot,
            doing={one.name: doing(one, processes.get(one.name, Process(""))) for one in snapshot.workers},
            machine=self._machine.read(),
        )

    def _look_back(self, info: RunInfo) -> View:
        self.pid = None
        # The last line is of the moments of the end; what the workers did is shown over the whole run.
        if self._averaged_at != len(self._history):
            self._averaged_at, self._averages = len(self._history), self._history.over_the_run("workers/")
        line = {**self._line, **self._averages}
        return self._made(info, Snapshot.of_line(line, int(self.config.get("total_timesteps", 0))))

    def _made(self, info: RunInfo, snapshot: Snapshot, **more: Any) -> View:
        ratio = self.config.get("replay_ratio")
        last = self._evaluations[-1] if self._evaluations else None
        best = best_return(self.run)
        returns = [one.return_mean for one in self._evaluations] + ([] if best is None else [best])
        return View(
            title=self.title,
            snapshot=snapshot,
            evaluation=last,
            status=info.status,
            best=max(returns, default=None),
            asked_ratio="" if ratio is None else str(ratio),
            **more,
        )

    def _detach(self) -> None:
        if self._live is not None:
            self._live.close()
        self._live = self._reader = self.pid = None
        self._readings.clear()
