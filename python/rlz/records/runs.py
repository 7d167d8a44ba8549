"""The runs in a folder: what `rlz runs` lists. Reads small files only, imports no numpy, survives any broken folder."""

import csv
import fcntl
import io
import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from rlz.errors import CheckpointError

NEWEST = ("last", "-1")
"""Names of the newest run."""

_LOCK = ".lock"
_TAIL = 65536
"""Bytes at the end of metrics.jsonl that are searched for its last whole line."""


@dataclass(frozen=True)
class RunInfo:
    """One run.

    Attributes
    ----------
    name : of its folder.
    status : "running", as in its summary ("completed", "stopped", "failed"), "died" (neither), or "broken".
    started : seconds since 1970 when its configuration was written; 0 when unknown.
    wall_s : seconds it has trained.
    last_return, best_return : of its evaluations; None without any.
    held_out_return : of the best policy on starts that did not choose it; None before the end.
    problem : why it is "broken", else "".
    values : settings of its configuration, its newest metrics and its summary, by name.
    """

    name: str
    path: Path
    status: str
    algo: str = "?"
    env: str = "?"
    seed: int | None = None
    started: float = 0.0
    env_steps: int | None = None
    total_timesteps: int | None = None
    env_steps_per_s: float | None = None
    wall_s: float | None = None
    last_return: float | None = None
    best_return: float | None = None
    held_out_return: float | None = None
    problem: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)


def list_runs(runs_dir: str | Path = "runs") -> list[RunInfo]:
    """Every folder in `runs_dir` that holds a `config.toml`, oldest first; empty when there is no such folder."""
    try:
        folders = [child for child in Path(runs_dir).iterdir() if (child / "config.toml").exists()]
    except OSError:
        return []
    return sorted((read_run(folder) for folder in folders), key=lambda run: (run.started, run.name))


def read_run(path: Path) -> RunInfo:
    """What is known of one run folder; never raises for what is in it."""
    try:
        return _read_run(path)
    except tomllib.TOMLDecodeError as error:
        return RunInfo(path.name, path, "broken", problem=f"config.toml is not TOML: {error}")
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        return RunInfo(path.name, path, "broken", problem=f"{type(error).__name__}: {error}")


def _read_run(path: Path) -> RunInfo:
    config_path = path / "config.toml"
    config = tomllib.loads(config_path.read_text(encoding="utf-8"))
    summary_path = path / "summary.json"
    running = is_running(path)
    summary: dict[str, Any] = {}
    if summary_path.exists() and not running:
        summary = json.loads(summary_path.read_text(encoding="utf-8"))
    log = last_line(path / "metrics.jsonl")
    line = summary or log
    returns = _evaluation_returns(path / "evaluations.csv")
    best = best_return(path)
    status = "running" if running else str(summary.get("status", "died"))
    rate = line.get("env_steps_per_s", line.get("time/env_steps_per_s"))
    return RunInfo(
        name=path.name,
        path=path,
        status=status,
        algo=str(config.get("algo", "?")),
        env=str(config.get("env", "?")),
        seed=config.get("seed"),
        started=config_path.stat().st_mtime,
        env_steps=line.get("env_steps"),
        total_timesteps=config.get("total_timesteps"),
        env_steps_per_s=rate,
        wall_s=line.get("wall_s"),
        last_return=returns[-1] if returns else None,
        best_return=max([*returns, *([] if best is None else [best])], default=None),
        held_out_return=best_return(path, "held_out"),
        values={**log, **summary, **config},
    )


def find_run(run: str | Path, runs_dir: str | Path = "runs") -> Path:
    """The folder of a run that a user names (absolute).

    Parameters
    ----------
    run : its folder, its name in `runs_dir`, a folder of runs (its newest one), or "last" or -1: the newest of
        `runs_dir`.

    Raises
    ------
    CheckpointError
        There is none.
    """
    given = Path(runs_dir if str(run) in NEWEST else run).expanduser()
    for folder in (given, Path(runs_dir).expanduser() / given):
        if (folder / "config.toml").is_file():
            return folder.absolute()
        if found := list_runs(folder):
            return found[-1].path.absolute()
    if str(run) in NEWEST:
        raise CheckpointError(f"there is no run in {given} yet: `rlz train` makes one")
    why = "it has no config.toml" if given.is_dir() else "it is a file" if given.exists() else "there is no such folder"
    raise CheckpointError(f"{run} is no run: {why}. `rlz runs` lists the runs")


def last_line(path: Path) -> dict[str, Any]:
    """Last whole line of a JSON-lines file; {} when there is none."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - _TAIL))
            lines = file.read().split(b"\n")[:-1]
    except FileNotFoundError:
        return {}
    for line in reversed(lines):
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            return value
    return {}


def _evaluation_returns(path: Path) -> list[float]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    whole = text[: text.rfind("\n") + 1]  # a run that was killed may have left half a line
    return [float(row["return_mean"]) for row in csv.DictReader(io.StringIO(whole, newline=""))]


def best_return(path: Path, score: str = "evaluation") -> float | None:
    """Mean return of the policy in `checkpoints/best`; None when there is none that can be read.

    `score`: "evaluation", by which it was chosen, or "held_out": on other starts, at the end of the run.
    """
    try:
        description = json.loads((path / "checkpoints" / "best" / "policy.json").read_text(encoding="utf-8"))
        return float(description[score]["return_mean"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def hold_lock(path: Path) -> IO[bytes]:
    """Mark a run folder as in use for as long as the returned file stays open; the kernel lets go on any death.

    Raises
    ------
    BlockingIOError
        When another process holds it.
    """
    file = (path / _LOCK).open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise
    return file


def is_running(path: Path) -> bool:
    """Whether a controller holds the run folder."""
    try:
        with (path / _LOCK).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
