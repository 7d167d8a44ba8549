"""Log lines beyond the checkpoint that a run goes on from: taken out of the run's files, and kept aside."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from rlz.system.files import replace_file
from rlz.tracking.sinks import Evaluation

ASIDE = "discarded"
"""Folder in the run folder that keeps what was taken out: `discarded/start-N/`, of the N-th start of the run."""


@dataclass
class History:
    """What a run has logged up to its cut.

    Attributes
    ----------
    wall_s : of its newest line of metrics; 0 without any.
    evaluations : its evaluations, oldest first.
    notes : lines for people about what was taken out.
    """

    wall_s: float = 0.0
    evaluations: list[Evaluation] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def rewind(run_dir: Path, env_steps: int, updates: int, *, start: int) -> History:
    """Take everything beyond a cut out of `metrics.jsonl` and `evaluations.csv`, so that both go on from there.

    Each file is replaced as a whole, after what is taken out has been written: a kill at any time loses nothing.

    Parameters
    ----------
    run_dir : run folder; nothing is writing to it.
    env_steps, updates : counts of the run at the cut.
    start : number of the start of the run that wrote the lines (1: the first).

    Raises
    ------
    OSError
        A file cannot be read or written.
    """
    history = History()

    def keep_metrics(line: str) -> bool:
        values = json.loads(line)
        kept: bool = values["env_steps"] <= env_steps and values["updates"] <= updates
        if kept:
            history.wall_s = float(values["wall_s"])
        return kept

    names: list[str] = []

    def keep_evaluation(line: str) -> bool:
        values = line.split(",")
        if not names:
            names.extend(values)
            return True
        evaluation = Evaluation.from_row(dict(zip(names, values, strict=True)))
        kept = evaluation.env_steps <= env_steps and evaluation.updates <= updates
        if kept:
            history.evaluations.append(evaluation)
        return kept

    for name, keep in (("metrics.jsonl", keep_metrics), ("evaluations.csv", keep_evaluation)):
        aside = f"{ASIDE}/start-{start}/{name}"
        count = _take_out(run_dir / name, run_dir / aside, keep)
        if count:
            lines = "1 line" if count == 1 else f"{count:,} lines"
            history.notes.append(f"{lines} of {name} from beyond the checkpoint: moved to {aside}")
    return history


def _take_out(path: Path, aside: Path, keep: Callable[[str], bool]) -> int:
    """Move the lines of a file that are not kept to another file; returns how many. Broken ones are not kept."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return 0
    kept: list[str] = []
    out: list[str] = []
    for line in lines:
        try:
            good = keep(line)
        except (ValueError, KeyError, TypeError):
            good = False
        (kept if good else out).append(line)
    if out:
        aside.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(aside, "".join(f"{line}\n" for line in out).encode())
        replace_file(path, "".join(f"{line}\n" for line in kept).encode())
    return len(out)
