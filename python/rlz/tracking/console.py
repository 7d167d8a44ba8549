"""What the terminal shows: a live view, or plain lines where stdout is no terminal.

Writing to a terminal can block (Ctrl-S, a pager that is full), and the controller must not, so a daemon thread does it
and always shows the newest snapshot only.
"""

import contextlib
import math
import threading
from collections import deque
from collections.abc import Mapping
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rlz.tracking.sinks import Evaluation
from rlz.tracking.snapshot import Snapshot, WorkerSnapshot
from rlz.tracking.view import View

_MIB = 1024 * 1024


class Display(Protocol):
    """Shows a run."""

    def show(self, snapshot: Snapshot, *, logged: bool) -> None:
        """Show a snapshot; `logged`: this is one of the log's lines."""

    def evaluation(self, evaluation: Evaluation) -> None:
        """Show an evaluation."""

    def note(self, text: str) -> None:
        """Show an event."""

    def close(self, last: str = "", timeout: float = 2.0) -> None:
        """Show what is waiting, give the terminal back, print `last`; give up after `timeout` seconds."""


class NoDisplay:
    """Shows nothing."""

    def show(self, snapshot: Snapshot, *, logged: bool) -> None:
        """Nothing."""

    def evaluation(self, evaluation: Evaluation) -> None:
        """Nothing."""

    def note(self, text: str) -> None:
        """Nothing."""

    def close(self, last: str = "", timeout: float = 2.0) -> None:
        """Nothing."""


class TerminalDisplay:
    """Live view on a terminal, plain lines elsewhere.

    Parameters
    ----------
    title : shown above the bar.
    console : where to write; default stdout.
    """

    def __init__(self, title: str, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)
        self._live = Live(console=self._console, auto_refresh=False) if self._console.is_terminal else None
        self._title = title
        self._snapshot: Snapshot | None = None
        self._evaluation: Evaluation | None = None
        self._lines: deque[RenderableType] = deque(maxlen=1000)
        self._wake = threading.Event()
        self._last = ""
        self._closing = False
        self._thread = threading.Thread(target=self._work, name="rlz-display", daemon=True)
        self._thread.start()

    @property
    def live(self) -> bool:
        """Whether there is a live view to refresh between log lines."""
        return self._live is not None

    def show(self, snapshot: Snapshot, *, logged: bool) -> None:
        """Refresh the live view; without one, print a line for each line of the log."""
        if self._live is not None:
            self._snapshot = snapshot
        elif logged:
            self._lines.append(plain_line(snapshot))
        self._wake.set()

    def evaluation(self, evaluation: Evaluation) -> None:
        """Print a line; the live view also keeps the last one."""
        self._evaluation = evaluation
        self._lines.append(evaluation_line(evaluation))
        self._wake.set()

    def note(self, text: str) -> None:
        """Print a line."""
        self._lines.append(Text(text))
        self._wake.set()

    def close(self, last: str = "", timeout: float = 2.0) -> None:
        """Print what is waiting, end the live view, print `last` below it."""
        self._last = last
        self._closing = True
        self._wake.set()
        self._thread.join(timeout)

    def _work(self) -> None:
        try:
            if self._live is not None:
                self._live.start()
            while not self._closing:
                self._wake.wait()
                self._wake.clear()
                self._write()
            self._write()
        except OSError:
            pass  # the terminal or pipe is gone; the run is not
        finally:
            with contextlib.suppress(OSError):
                if self._live is not None:
                    self._live.stop()
                if self._last:
                    self._console.print(Text(self._last), soft_wrap=True)

    def _write(self) -> None:
        while self._lines:
            self._console.print(self._lines.popleft(), soft_wrap=True)
        if self._live is not None and self._snapshot is not None:
            self._live.update(live_view(View(self._title, self._snapshot, self._evaluation)), refresh=True)


def plain_line(snapshot: Snapshot) -> Text:
    """One line of the log in words."""
    parts = [
        f"{snapshot.env_steps:>9,}/{snapshot.total_timesteps:,}",
        f"{snapshot.env_steps_per_s:,.0f} env steps/s",
        f"{snapshot.updates_per_s:,.0f} updates/s",
        f"return {number(snapshot.return_mean)}{success(snapshot.at_end)}",
        f"ratio {ratio(snapshot.replay_ratio)}",
        f"lag {number(snapshot.policy_lag)}",
        f"ETA {clock(snapshot.eta_s)}",
    ]
    return Text("  ".join(parts))


def evaluation_line(evaluation: Evaluation) -> Text:
    """One evaluation in words."""
    text = Text(
        f"evaluation at {evaluation.env_steps:,} env steps: return {evaluation.return_mean:,.2f}"
        f" +- {evaluation.return_std:,.2f} over {evaluation.episodes} episodes{success(evaluation.at_end)}"
    )
    if evaluation.best:
        text.append("  best so far", style="green")
    return text


def live_view(view: View) -> RenderableType:
    """The whole live view: bar, numbers of the run, one line per worker."""
    title, snapshot, evaluation = view.title, view.snapshot, view.evaluation
    bar = Table.grid(padding=(0, 1))
    done = 100 * snapshot.env_steps / max(1, snapshot.total_timesteps)
    bar.add_row(
        ProgressBar(total=snapshot.total_timesteps, completed=snapshot.env_steps, width=36),
        f"{snapshot.env_steps:,}/{snapshot.total_timesteps:,}",
        f"{done:.1f} %",
        f"{clock(snapshot.wall_s)} gone, {clock(snapshot.eta_s)} to go",
    )
    run = Table.grid(padding=(0, 2))
    run.add_row(
        *_pair("env steps/s", f"{snapshot.env_steps_per_s:,.0f}"),
        *_pair("updates/s", f"{snapshot.updates_per_s:,.0f}"),
        *_pair("frames/s", f"{snapshot.frames_per_s:,.0f}"),
    )
    run.add_row(
        *_pair("return", number(snapshot.return_mean)),
        *_pair("episode length", number(snapshot.length_mean)),
        *_pair("evaluation", "-" if evaluation is None else f"{evaluation.return_mean:,.1f}"),
    )
    run.add_row(
        *_pair("replay ratio", ratio(snapshot.replay_ratio)),
        *_pair("policy lag", number(snapshot.policy_lag)),
        *_pair("rows lost", f"{snapshot.rows_lost}" + (f", {snapshot.restarts} restarts" if snapshot.restarts else "")),
    )
    workers = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for heading in ("worker", "CPU", "private", "shared", "env steps/s", "waits for"):
        workers.add_column(heading, justify="left" if heading in ("worker", "waits for") else "right")
    for worker in snapshot.workers:
        workers.add_row(*_worker_cells(worker))
    return Group(Text(title, style="bold"), bar, run, workers)


def number(value: float | None) -> str:
    """A number for people: four significant digits at most, "-" where there is none."""
    if value is None or not math.isfinite(value):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def success(at_end: Mapping[str, float]) -> str:
    """A success rate behind something else; nothing where the environment does not tell."""
    rate = at_end.get("success_rate")
    return "" if rate is None else f", success {100 * rate:.0f} %"


def ratio(value: float | None) -> str:
    """A replay ratio: three decimals."""
    return "-" if value is None else f"{value:.3f}"


def clock(seconds: float | None) -> str:
    """Hours, minutes and seconds."""
    if seconds is None or not math.isfinite(seconds):
        return "-:--:--"
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


def _pair(name: str, value: str) -> tuple[Text, Text]:
    return Text(name, style="dim"), Text(value, justify="right")


def _worker_cells(worker: WorkerSnapshot) -> list[str]:
    waits = [f"{reason} {share:.0%}" for reason, share in worker.waits.items() if share >= 0.005]
    if worker.waiting_s >= 5:
        waits = [f"{worker.waiting_for} for {clock(worker.waiting_s)}"]
    return [
        worker.name,
        "-" if worker.cpu_percent is None else f"{worker.cpu_percent:.0f} %",
        "-" if worker.private is None else f"{worker.private / _MIB:,.0f} MiB",
        "-" if worker.shared is None else f"{worker.shared / _MIB:,.0f} MiB",
        f"{worker.env_steps_per_s:,.0f}" if worker.progress == "env_steps" else "",
        ", ".join(waits),
    ]
