"""What a run has counted so far: taken from the stats board at a checkpoint's cut, put back when the run goes on."""

import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict

from rlz.graph import ENDS_THE_RUN
from rlz.placement import Place
from rlz.transport.stats import EPISODE_WINDOW, EVENT_WIDTH, TOTALS, LaneCounts, Stat, at_end_names

if TYPE_CHECKING:
    from rlz.transport import Streams


class WorkerTotals(BaseModel):
    """Counters of one worker by name, and the newest episodes of a sampler, as the events that it pushed."""

    model_config = ConfigDict(strict=True)

    counters: dict[str, float]
    episodes: list[list[float | None]] = []


class Totals(BaseModel):
    """Counts of a run, by worker, and the seconds that it has trained. Empty in checkpoints that are older than it."""

    model_config = ConfigDict(strict=True)

    wall_s: float = 0.0
    workers: dict[str, WorkerTotals] = {}

    @staticmethod
    def of(streams: "Streams", *, steps: Sequence[int], committed: Sequence[int], writing: int = 0) -> "Totals":
        """Take them from a run.

        Parameters
        ----------
        streams : of the run.
        steps, committed : env steps and rows of each lane at the cut.
        writing : checkpoints to count beside those that are written: the one that the totals are for.
        """
        board, places = streams.stats.read(), streams.places
        most = math.ceil(EPISODE_WINDOW / max(1, sum(bool(place.lanes) for place in places)))
        workers = {}
        for place in places:
            row = board[place.slot]
            counters = {stat.name.lower(): float(row[stat]) for stat in TOTALS}
            episodes: list[list[float | None]] = []
            if place.node.death == ENDS_THE_RUN:
                counters["checkpoints"] += writing
            if place.lanes:
                counts = LaneCounts.of(row, place.lanes, steps, committed)
                # A row is there a moment before its step is counted.
                counters["env_steps"] = float(counts.env_steps)
                counters["rows_written"] = float(min(counts.rows, counts.env_steps))
                # NaN (the last info had no such number) is no JSON.
                events = streams.stats.events(place.slot, 0)[1][-most:].tolist()
                episodes = [[None if math.isnan(value) else value for value in event] for event in events]
            counted = {name: value for name, value in counters.items() if value}
            workers[place.name] = WorkerTotals(counters=counted, episodes=episodes)
        began = board[:, Stat.RUN_BEGAN].max()
        return Totals(wall_s=time.monotonic() - began if began else 0.0, workers=workers)

    def steppers(self) -> "dict[str, WorkerTotals]":
        """Those of workers that have stepped environments of the run."""
        return {name: worker for name, worker in self.workers.items() if "env_steps" in worker.counters}

    def put_back(self, streams: "Streams") -> None:
        """Let the board of a resumed run go on with them; after its rows were restored, before any worker starts.

        What a worker counted that the run does not have any more goes to the first one of its role.
        """
        width = EVENT_WIDTH + len(at_end_names(streams.graph.log_info))
        for name, worker in self.workers.items():
            place = _successor(name, streams.places)
            if place is None:
                continue
            for counter, value in worker.counters.items():
                if (stat := Stat.__members__.get(counter.upper())) in TOTALS:
                    streams.stats.add(place.slot, stat, value)
            for episode in worker.episodes:
                values = (math.nan if value is None else value for value in episode)
                streams.stats.push_event(place.slot, [*values, *[math.nan] * width][:width])
        board = streams.stats.read()
        committed = streams.committed()
        for place in streams.places:
            if place.lanes:
                restored = sum(committed[lane] for lane in place.lanes)
                streams.stats.set(place.slot, Stat.STEPS_OFFSET, board[place.slot][Stat.ENV_STEPS])
                streams.stats.set(place.slot, Stat.ROWS_OFFSET, board[place.slot][Stat.ROWS_WRITTEN] - restored)


def start_clock(streams: "Streams", wall_s: float) -> None:
    """Let the seconds that the run has trained go on from `wall_s`, now."""
    for slot in range(streams.stats.slots):
        streams.stats.set(slot, Stat.RUN_BEGAN, time.monotonic() - wall_s)


def _successor(name: str, places: Sequence[Place]) -> Place | None:
    same = [place for place in places if place.role == name.split("-")[0]]
    return next((place for place in same if place.name == name), same[0] if same else None)
