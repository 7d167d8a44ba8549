"""`rlz study`: starts the runs of a study where there is room, goes on with what died, and says how it ended.

All that it knows is in the runs' folders and the journal of the search, so it may be killed and called again at will.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean

from rlz.errors import ConfigError, RlzError
from rlz.records.runs import hold_lock
from rlz.runtime.signals import StopSignals
from rlz.studies.definition import Point, Study, label, read_study
from rlz.studies.member import ATTEMPTS, OWN, Member
from rlz.studies.room import Room, need

LOOK_S = 0.5
"""Seconds from one look at the running runs to the next."""


class Conductor:
    """Takes the runs of a study to their ends.

    Parameters
    ----------
    study, folder : the study, and the folder of its runs.
    room : for runs side by side.
    say : takes one line for people.
    needs : bytes that a run takes.
    command : that runs one; its options follow.
    retry_failed : go on with runs that failed in an earlier call.
    """

    def __init__(
        self,
        study: Study,
        folder: Path,
        *,
        room: Room,
        say: Callable[[str], None],
        needs: Callable[[Member], int],
        command: Sequence[str] = (sys.executable, "-m", "rlz", "train"),
        retry_failed: bool = False,
    ) -> None:
        self._study = study
        self._folder = folder
        self._room = room
        self._say = say
        self._needs = needs
        self._command = command
        self._retry_failed = retry_failed
        self._trials = None
        self._of_trial: dict[int, list[Member]] = {}
        if study.search is not None:
            from rlz.studies.trials import Trials

            self._trials = Trials(study.search, folder / OWN)
        self.waiting: list[Member] = []
        self.running: list[Member] = []
        self.done: list[Member] = []
        self.failed: list[Member] = []

    def run(self, signals: StopSignals) -> str:
        """Until everything is done, or a signal stops it. "completed", "failed" (some runs) or "stopped"."""
        if self._trials is None:
            self._add([Member(self._study, self._folder, point) for point in self._study.combinations])
        else:
            for number, point in self._trials.open().items():
                self._begin(number, point)
        stops = 0
        while True:
            if signals.count > stops:
                stops = signals.count
                self._say(f"stopping {len(self.running)} runs; each writes a checkpoint")
                self.waiting.clear()
                for member in self.running:
                    member.stop()
            for member in [one for one in self.running if one.ended()]:
                self._ended(member, stopping=stops > 0)
            if not stops:
                self._start()
            if not self.running:
                break
            time.sleep(LOOK_S)
        if stops:
            return "stopped"
        return "failed" if self.failed else "completed"

    def best(self) -> str:
        """The best trial, in words; "" without one."""
        found = None if self._trials is None else self._trials.best()
        return "" if found is None else f"best trial {found[0]}: {label(found[1])} with {found[2]:.1f}"

    def _begin(self, number: int, point: Point) -> None:
        members = [
            Member(self._study, self._folder, {**combination, **point}, trial=number)
            for combination in self._study.combinations
        ]
        self._of_trial[number] = members
        self._add(members)

    def _add(self, members: list[Member]) -> None:
        for member in members:
            if changed := member.changed():
                raise ConfigError(
                    f"{member.path} was made with {changed}. Give the study another file name, or remove that folder"
                )
            status = member.status()
            if status == "completed":
                self._finish(member, self.done)
            elif status == "failed" and not self._retry_failed:
                self._say(f"{member.name}: failed before; --retry-failed tries it again")
                self._finish(member, self.failed)
            elif status == "running":
                self._say(f"{member.name}: still runs, started by an earlier call")
                self.running.append(member)
            else:
                self.waiting.append(member)

    def _start(self) -> None:
        while True:
            if not self.waiting and self._trials is not None and self._trials.left > 0:
                if len(self.running) >= self._room.sets:
                    return
                self._begin(*self._trials.ask())
            if not self.waiting:
                return
            member = self.waiting[0]
            cores = self._room.take(lambda member=member: self._needs(member))  # type: ignore[misc]
            if cores is None:
                return
            del self.waiting[0]
            again = member.path.exists()
            member.start(cores, self._command)
            self.running.append(member)
            self._say(f"{member.name}: {'goes on' if again else 'started'} on cores {','.join(map(str, cores))}")

    def _ended(self, member: Member, *, stopping: bool) -> None:
        self.running.remove(member)
        if member.cores:
            self._room.give_back(member.cores)
        member.cores, member.process = (), None
        status = member.status()
        if status == "completed":
            info = member.info()
            score = info.held_out_return if info.held_out_return is not None else info.best_return
            said = "" if score is None else f", {score:.1f}"
            self._say(f"{member.name}: completed{said} ({len(self.done) + 1} done, {len(self.waiting)} wait)")
            self._finish(member, self.done)
        elif stopping:
            self._say(f"{member.name}: {status}")
        elif status in ("failed", "new", "broken") or member.attempts >= ATTEMPTS:
            self._say(f"{member.name}: failed: {member.why()}")
            self._finish(member, self.failed)
        else:
            self._say(f"{member.name}: {status}; it goes on from its newest checkpoint")
            self.waiting.insert(0, member)

    def _finish(self, member: Member, where: list[Member]) -> None:
        where.append(member)
        if self._trials is None or member.trial is None:
            return
        members = self._of_trial[member.trial]
        if any(one in self.failed for one in members):
            if sum(one in self.failed for one in members) == 1 and where is self.failed:
                self._trials.tell(member.trial, None)
        elif all(one in self.done for one in members):
            scores = [self._score(one) for one in members]
            numbers = [score for score in scores if score is not None]
            self._trials.tell(member.trial, fmean(numbers) if len(numbers) == len(scores) else None)

    def _score(self, member: Member) -> float | None:
        assert self._study.search is not None
        info = member.info()
        kinds = {"held-out": info.held_out_return, "best": info.best_return, "last": info.last_return}
        return kinds[self._study.search.score]


def conduct(file: Path, runs_dir: Path, *, retry_failed: bool) -> int:
    """Run a study; the exit status: 0 completed, 1 some runs failed, 128 + number of the signal that stopped it.

    Raises
    ------
    ConfigError
        The file cannot be used, or the study runs already.
    """
    study = read_study(file)
    folder = (runs_dir / study.name).absolute()
    (folder / OWN).mkdir(parents=True, exist_ok=True)
    try:
        lock = hold_lock(folder / OWN)
    except BlockingIOError as error:
        raise ConfigError(f"the study {study.name} runs already (in {folder})") from error

    points: dict[str, Point] = {}

    @cache
    def estimated(values: str) -> int:
        return need(study.config(points[values]))

    def needs(member: Member) -> int:
        # Seeds need the same: one look at the environment serves them all.
        point = {name: value for name, value in member.point.items() if name != "seed"}
        points[label(point)] = member.point
        try:
            return estimated(label(point))
        except RlzError:
            return 0  # the run itself says what is wrong

    with lock, StopSignals() as signals:
        conductor = Conductor(
            study,
            folder,
            room=Room(study.cores_per_run),
            say=lambda line: print(line, flush=True),
            needs=needs,
            retry_failed=retry_failed,
        )
        status = conductor.run(signals)
    if best := conductor.best():
        print(best)
    print(
        f"{status}: {len(conductor.done)} runs done, {len(conductor.failed)} failed\n"
        f"table: rlz runs --runs-dir {folder}\nplot:  rlz plot {folder}/* --output {study.name}.svg"
    )
    if status == "stopped":
        print(f"go on: rlz study {file}")
        return signals.exit_status
    return 0 if status == "completed" else 1
