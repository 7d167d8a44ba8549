"""One run of a study: where it stands, and the process that takes it further."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rlz.config import read_config
from rlz.records.checkpoint import step_folders
from rlz.records.runs import RunInfo, is_running, read_run
from rlz.studies.definition import Point, Study, as_toml, label
from rlz.system.files import replace_file

OWN = ".study"
"""Folder within that of the runs, for what is the study's: what runs are told and print, and the search's journal."""

ATTEMPTS = 3
"""Starts of a run within one call of `rlz study`: what died may go on twice."""


@dataclass
class Member:
    """A run of a study.

    Attributes
    ----------
    study, folder : its study, and the folder that holds the study's runs.
    point : what distinguishes it.
    trial : number of the trial that it scores; None in a study without a search.
    attempts : starts so far.
    process, cores : while it runs here.
    """

    study: Study
    folder: Path
    point: Point
    trial: int | None = None
    attempts: int = 0
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    cores: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """Name of its run folder."""
        grid = {name: value for name, value in self.point.items() if name in self.study.grid}
        if self.trial is None:
            return label(grid) or "run"
        return f"trial-{self.trial:04d}" + (f",{label(grid)}" if grid else "")

    @property
    def path(self) -> Path:
        """Its run folder."""
        return self.folder / self.name

    def status(self) -> str:
        """As in `RunInfo`, "new" without a run folder, "short" where it is complete and now has more env steps."""
        if not (self.path / "config.toml").is_file():
            return "new"
        info = self.info()
        if info.status != "completed" or info.total_timesteps is None:
            return info.status
        return "short" if self.study.config(self.point).total_timesteps > info.total_timesteps else info.status

    def changed(self) -> str:
        """An option that its run was not made with as the study says now, in words; "" where there is none."""
        if not (self.path / "config.toml").is_file():
            return ""
        made, now = read_config(self.path / "config.toml").model_dump(), self.study.config(self.point).model_dump()
        for name in self.study.values(self.point):
            if name != "total_timesteps" and made.get(name) != now[name]:
                return f"{name} = {made.get(name)!r}, now {now[name]!r}"
        return ""

    def info(self) -> RunInfo:
        """What is known of it."""
        return read_run(self.path)

    def start(self, cores: Sequence[int], command: Sequence[str] = (sys.executable, "-m", "rlz", "train")) -> None:
        """Begin it, or go on from its newest checkpoint, on these cores alone, with its output in a file."""
        self.attempts += 1
        self.cores = tuple(cores)
        if self.path.exists() and not step_folders(self.path / "checkpoints"):
            shutil.rmtree(self.path)  # nothing was learned that could be gone on with
        if self.path.exists():
            total = self.study.config(self.point).total_timesteps
            arguments = ["--resume", str(self.path), "--total-timesteps", str(total)]
        else:
            config = self._beside(".toml")
            replace_file(config, as_toml(self.study.values(self.point)).encode())
            arguments = ["--config", str(config), "--runs-dir", str(self.folder), "--name", self.name]
        with self._beside(".log").open("ab") as log:
            before = os.sched_getaffinity(0)
            os.sched_setaffinity(0, self.cores)  # a child inherits them, and plans for them
            try:
                # A session of its own: Ctrl-C in the terminal is for the study, which stops its runs in order.
                self.process = subprocess.Popen(
                    [*command, *arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
                )
            finally:
                os.sched_setaffinity(0, before)

    def _beside(self, suffix: str) -> Path:
        """A file of the study about this run."""
        return self.folder / OWN / f"{self.name}{suffix}"

    def ended(self) -> bool:
        """Whether it does not run (any more), here or as the child of a study that died."""
        if self.process is not None:
            return self.process.poll() is not None
        return not is_running(self.path)

    def stop(self) -> None:
        """Ask it for a checkpoint and its end; asked twice, it ends at once."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)

    def why(self) -> str:
        """Last line that it printed."""
        try:
            lines = self._beside(".log").read_text(encoding="utf-8", errors="replace").split("\n")
        except OSError:
            return ""
        said = [line for line in lines if line.strip()]
        errors = [line for line in said if line.startswith("error:")]
        return (errors or said or [""])[-1]
