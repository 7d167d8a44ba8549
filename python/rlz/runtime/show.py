"""`rlz runs show`: what a run is doing, who waits for what and since when; also while it hangs, and when it is over."""

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlz._native import CLOSED, FINISHED, STOPPING
from rlz.errors import CheckpointError, NoAnswerError, NotServedError
from rlz.records.runs import RunInfo, find_run, last_line, read_run
from rlz.runtime.live import Live
from rlz.system.files import TEMPORARY
from rlz.tracking.console import clock, number, ratio
from rlz.tracking.process import read_state, started_at
from rlz.tracking.reading import Reader
from rlz.tracking.snapshot import Snapshot, WorkerSnapshot, between

if TYPE_CHECKING:
    from rlz.config import RunConfig

WINDOW_S = 1.0
"""Rates are measured over this time."""

QUIET_S = 1.0
"""A worker that neither waits nor has given a sign of life for so long is inside one long call."""

EVENTS = 6
"""Last events that are shown."""

_MIB = 1024 * 1024
_HEADINGS = ("worker", "process", "CPU", "private", "shared", "rate", "lag", "lost", "restarts", "waits")


@dataclass(frozen=True)
class Process:
    """What the kernel knows of a worker: its state (one letter, "" when it is gone), and its age."""

    state: str = "S"
    age_s: float = 0.0

    @staticmethod
    def of(pid: int) -> "Process":
        """Look at a process."""
        try:
            return Process(read_state(pid), time.monotonic() - started_at(pid))
        except (OSError, ValueError):
            return Process("")


def show(run: Path, *, window: float = WINDOW_S) -> Iterator[str]:
    """Explain a run, line by line.

    Raises
    ------
    CheckpointError
        There is no run.
    TransportError
        It lives, but this process may not look into it.
    """
    run = find_run(run)
    info = read_run(run)
    if info.status == "broken":
        raise CheckpointError(f"{run} is broken: {info.problem}")
    try:
        with Live(run) as live:
            yield from _live(run, live, window)
        return
    except NotServedError:
        if info.status == "running":
            yield f"{run.name}: running, but it cannot be looked into (it is starting or ending); its last log line:"
    except NoAnswerError as error:
        silent = f"the controller (process {error.pid or 'unknown'}) does not answer within {error.timeout:g} s"
        yield f"{run.name}: {silent}: it {_state_words(read_state(error.pid), error.pid)}. The last log line:"
    yield from _from_files(run, info)


def _live(run: Path, live: Live, window: float) -> Iterator[str]:
    from rlz.config import read_config

    config = read_config(run / "config.toml")
    reader = Reader(live, live.workers)
    old = reader.read()
    time.sleep(window)
    live.refresh()
    snapshot = between(old, reader.read(), config=config, started=live.started)
    processes = {worker.name: Process.of(worker.pid) for worker in snapshot.workers if worker.pid}
    saving = any((run / "checkpoints").glob(f"{TEMPORARY}*"))
    yield f"{run.name}: {_phase(live.state, snapshot, config)} (controller: process {live.pid})"
    yield from _progress(run, snapshot)
    yield ""
    for worker in snapshot.workers:
        process = processes.get(worker.name, Process(""))
        yield f"{worker.name} {doing(worker, process, saving=saving)}"
    yield from verdict(snapshot, processes, window)
    yield ""
    yield from _table([_HEADINGS, *(_cells(worker) for worker in snapshot.workers)])
    yield from _events(run)


def _phase(state: int, snapshot: Snapshot, config: "RunConfig") -> str:
    if state in (STOPPING, CLOSED):
        return "stopping"
    if state == FINISHED:
        return "all env steps and updates are done, ending"
    starts = config.data().starts
    if snapshot.env_steps < starts:
        return f"running, warm-up (updates begin after {starts:,} env steps)"
    return "running"


def _progress(run: Path, snapshot: Snapshot) -> Iterator[str]:
    done = 100 * snapshot.env_steps / max(1, snapshot.total_timesteps)
    yield (
        f"{snapshot.env_steps:,} of {snapshot.total_timesteps:,} env steps ({done:.1f} %), {snapshot.updates:,} updates"
        f"; trained for {clock(snapshot.wall_s)}, {clock(snapshot.eta_s)} to go"
    )
    yield (
        f"now {snapshot.env_steps_per_s:,.0f} env steps/s, {snapshot.updates_per_s:,.0f} updates/s;"
        f" replay ratio {ratio(snapshot.replay_ratio)}, policy lag {number(snapshot.policy_lag)},"
        f" rows lost {snapshot.rows_lost}, restarts {snapshot.restarts}"
    )
    saved = sorted((run / "checkpoints").glob("step-*"), key=lambda path: path.stat().st_mtime)
    newest = f"{saved[-1].name}, {clock(time.time() - saved[-1].stat().st_mtime)} ago" if saved else "none yet"
    yield (
        f"return {number(snapshot.return_mean)} over the last episodes; evaluations {snapshot.evaluations}; "
        f"newest checkpoint: {newest}"
    )


def doing(worker: WorkerSnapshot, process: Process, *, saving: bool = False) -> str:
    """Say what a worker does right now, and since when; goes after its name.

    Parameters
    ----------
    worker : over the last moments.
    process : its process.
    saving : a checkpoint is being written.
    """
    if not worker.pid:
        return "does not run: it has ended, or is about to be started again"
    if process.state in ("", "Z", "X", "t", "T"):
        since = f"; last sign of life {_ago(worker.quiet_s)}" if worker.quiet_s is not None else ""
        return _state_words(process.state, worker.pid) + since
    if worker.waiting_for:
        return f"waits for {_reason(worker)} since {_s(worker.waiting_s)}"
    if worker.quiet_s is None:
        return f"starts since {_s(process.age_s)} (imports, environment, first step)"
    if worker.quiet_s < QUIET_S:
        return "works"
    where = "in an environment step or reset"
    if worker.progress == "rows_written":
        where = "at its rows"
    if worker.progress == "updates":
        where = "writes a checkpoint, or is in an update," if saving else "in an update"
    kernel = " (in the kernel: disk or network)" if process.state == "D" else ""
    return f"{where} since {_s(worker.quiet_s)}{kernel}"


def _state_words(state: str, pid: int) -> str:
    if state in ("T", "t"):
        return f"is stopped by a signal or a debugger (`kill -CONT {pid}` lets it go on)"
    if state in ("", "Z", "X"):
        return "is dead"
    return "is busy"


def _reason(worker: WorkerSnapshot) -> str:
    if worker.waiting_for == "limiter":
        return "env steps (replay ratio)" if worker.progress == "updates" else "updates (replay ratio)"
    if worker.waiting_for == "parameters":
        return "a policy to evaluate" if worker.progress == "episodes" else "the learner's first parameters"
    if worker.waiting_for == "answer":
        return "answers of the inference server"
    return "requests" if worker.progress == "rows_written" else f"a {worker.waiting_for}"


def verdict(snapshot: Snapshot, processes: dict[str, Process], window: float) -> Iterator[str]:
    """When nothing has moved for the whole window, say who holds the run up."""
    if snapshot.env_steps_per_s > 0 or snapshot.updates_per_s > 0:
        return
    held = [
        worker.name
        for worker in snapshot.workers
        if worker.progress != "episodes"
        and (not worker.waiting_for or processes.get(worker.name, Process("")).state in ("", "T", "t", "Z"))
        and worker.pid
    ]
    yield ""
    if held:
        yield f"Nothing has moved for {_s(window)} or longer: the run waits for {' and '.join(held)}."
    elif any(worker.progress == "episodes" and worker.pid and not worker.waiting_for for worker in snapshot.workers):
        yield "Steps and updates are done: the run waits for the evaluator."
    else:
        yield f"Nothing has moved for {_s(window)} or longer, and every worker waits: a worker is being started again."


def _cells(worker: WorkerSnapshot) -> tuple[str, ...]:
    rates = {
        "env_steps": f"{worker.env_steps_per_s:,.0f} env steps/s",
        "updates": f"{worker.updates_per_s:,.0f} updates/s",
        "episodes": f"{worker.episodes_per_s:,.1f} episodes/s",
        "rows_written": f"{worker.rows_per_s:,.0f} rows/s",
    }
    steps = worker.progress == "env_steps"
    return (
        worker.name,
        str(worker.pid or "-"),
        "-" if worker.cpu_percent is None else f"{worker.cpu_percent:.0f} %",
        _mib(worker.private),
        _mib(worker.shared),
        rates[worker.progress],
        number(worker.policy_lag) if steps else "",
        str(worker.rows_lost) if steps else "",
        str(worker.restarts),
        ", ".join(f"{reason} {share:.0%}" for reason, share in worker.waits.items() if share >= 0.005),
    )


def _mib(size: int | None) -> str:
    return "-" if size is None else f"{size / _MIB:,.0f} MiB"


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            cell.ljust(width) if i in (0, len(widths) - 1) else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()


def _from_files(run: Path, info: RunInfo) -> Iterator[str]:
    """A run that does not answer: what it has written down."""
    line = last_line(run / "metrics.jsonl")
    summary: dict[str, Any] = {}
    if info.status != "running":
        yield f"{run.name}: {info.status}"
        try:
            summary = json.loads((run / "summary.json").read_text())
        except (OSError, ValueError):
            yield "it left no summary: its controller was killed, or could not write"
    known = summary or line
    if not known:
        yield "it has written no numbers yet"
    else:
        when = f", {clock(time.time() - float(line['time']))} ago" if "time" in line else ""
        yield (
            f"{number(info.env_steps)} of {number(info.total_timesteps)} env steps, {number(known.get('updates'))} "
            f"updates, {number(info.env_steps_per_s)} env steps/s, {clock(info.wall_s)} of training{when}"
        )
        lag = known.get("policy_lag_mean", known.get("replay/policy_lag"))
        yield (
            f"replay ratio {ratio(known.get('replay_ratio', known.get('replay/ratio')))}, policy lag {number(lag)}, "
            f"rows lost {known.get('rows_lost', known.get('replay/rows_lost', '-'))}, "
            f"restarts {known.get('restarts', known.get('run/restarts', '-'))}; "
            f"evaluation {number(info.last_return)}, best {number(info.best_return)} "
            f"(on held-out starts {number(info.held_out_return)})"
        )
    yield from _logged_workers(line)
    yield from _events(run)


def _logged_workers(line: dict[str, Any]) -> Iterator[str]:
    """One line per worker from the tags of a log line."""
    found: dict[str, dict[str, str]] = {}
    for tag, value in line.items():
        kind, _, rest = tag.partition("/")
        name, _, what = rest.partition("/")
        if kind == "workers" and what:
            found.setdefault(name, {})[what.removesuffix("_bytes")] = _with_unit(what, value)
    if found:
        yield ""
    for name, values in found.items():
        yield f"{name}: " + ", ".join(f"{what} {value}" for what, value in values.items())


def _with_unit(what: str, value: float) -> str:
    if what.endswith("_bytes"):
        return _mib(int(value))
    return f"{value:.1%}" if what.startswith(("wait_", "phase_")) or what == "resets" else number(value)


def _events(run: Path) -> Iterator[str]:
    try:
        events = (run / "logs" / "events.log").read_text(errors="replace").splitlines()[-EVENTS:]
    except OSError:
        return
    if events:
        yield ""
        yield "last events:"
        yield from (f"  {event}" for event in events)


def _s(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 100 else clock(seconds)


def _ago(seconds: float) -> str:
    return f"{_s(seconds)} ago"
