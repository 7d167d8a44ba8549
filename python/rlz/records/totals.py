"""What a run has counted so far: taken from the stats board at a checkpoint's cut, put back when the run goes on."""

import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict

from rlz.runtime.graph import Node, plan
from rlz.transport.stats import EPISODE_WINDOW, EVENT_WIDTH, TOTALS, LaneCounts, Stat, at_end_names

if TYPE_CHECKING:
    from rlz.config import RunConfig
    from rlz.transport import Streams


class WorkerTotals(BaseModel):
    """Counters of one worker by name, and the newest episodes of a sampler, as the events that it pushed."""

    model_config = ConfigDict(strict=True)

    counters: dict[str, float]
    episodes: list[list[float]] = []


class Totals(BaseModel):
    """Counts of a run, by worker, and the seconds that it has trained. Empty in checkpoints that are older than it."""

    model_config = ConfigDict(strict=True)

    wall_s: float = 0.0
    workers: dict[str, WorkerTotals] = {}

    @staticmethod
    def of(
        streams: "Streams", config: "RunConfig", *, steps: Sequence[int], committed: Sequence[int], writing: int = 0
    ) -> "Totals":
        """Take them from a run.

        Parameters
        ----------
        streams, config : of the run.
        steps, committed : env steps and rows of each lane at the cut.
        writing : checkpoints to count beside those that are written: the one that the totals are for.
        """
        board = streams.stats.read()
        most = math.ceil(EPISODE_WINDOW / config.samplers)
        workers = {}
        for node in plan(config):
            row = board[node.slot]
            counters = {stat.name.lower(): float(row[stat]) for stat in TOTALS}
            episodes: list[list[float]] = []
            if node.role == "learner":
                counters["checkpoints"] += writing
            if node.role == "sampler":
                counts = LaneCounts.of(row, node.lanes, steps, committed)
                # A row is there a moment before its step is counted.
                counters["env_steps"] = float(counts.env_steps)
                counters["rows_written"] = float(min(counts.rows, counts.env_steps))
                episodes = streams.stats.events(node.slot, 0)[1][-most:].tolist()
            counted = {name: value for name, value in counters.items() if value}
            workers[node.name] = WorkerTotals(counters=counted, episodes=episodes)
        began = board[:, Stat.RUN_BEGAN].max()
        return Totals(wall_s=time.monotonic() - began if began else 0.0, workers=workers)

    def samplers(self) -> "dict[str, WorkerTotals]":
        """Those of the samplers."""
        return {name: worker for name, worker in self.workers.items() if _role(name) == "sampler"}

    def put_back(self, streams: "Streams", config: "RunConfig") -> None:
        """Let the board of a resumed run go on with them; after its rows were restored, before any worker starts.

        What a worker counted that the run does not have any more goes to the first one of its role.
        """
        nodes, width = plan(config), EVENT_WIDTH + len(at_end_names(config.log_info))
        for name, worker in self.workers.items():
            node = _successor(name, nodes)
            if node is None:
                continue
            for counter, value in worker.counters.items():
                if (stat := Stat.__members__.get(counter.upper())) in TOTALS:
                    streams.stats.add(node.slot, stat, value)
            for episode in worker.episodes:
                streams.stats.push_event(node.slot, (episode + [math.nan] * width)[:width])
        board = streams.stats.read()
        committed = streams.replay.committed()
        for node in nodes:
            if node.role == "sampler":
                restored = sum(committed[lane] for lane in node.lanes)
                streams.stats.set(node.slot, Stat.STEPS_OFFSET, board[node.slot][Stat.ENV_STEPS])
                streams.stats.set(node.slot, Stat.ROWS_OFFSET, board[node.slot][Stat.ROWS_WRITTEN] - restored)


def start_clock(streams: "Streams", config: "RunConfig", wall_s: float) -> None:
    """Let the seconds that the run has trained go on from `wall_s`, now."""
    for node in plan(config):
        streams.stats.set(node.slot, Stat.RUN_BEGAN, time.monotonic() - wall_s)


def _role(name: str) -> str:
    return name.split("-")[0]


def _successor(name: str, nodes: Sequence[Node]) -> Node | None:
    same = [node for node in nodes if node.role == _role(name)]
    return next((node for node in same if node.name == name), same[0] if same else None)
