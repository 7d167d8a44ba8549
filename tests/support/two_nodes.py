"""A graph of two nodes of one's own: numbers in segments, through a queue, to a sum. No algorithm takes part."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from rlz._native import RUNNING
from rlz.errors import WaitTimeoutError
from rlz.graph import ENDS_THE_RUN, Graph, Node, Rule, Stream
from rlz.transport.stats import Stat, StatsRow

LENGTH = 5
SEGMENTS = Stream("numbers", "queue", (("number", "f32", ()),), {"length": LENGTH, "segments": 8})


def graph(standard: Graph, answers: Any) -> Graph:
    return Graph(
        nodes=(
            Node("counter", f"{__file__}:Counter", takes=("numbers",), progress="rows_written", death=ENDS_THE_RUN),
            Node("maker", f"{__file__}:Maker", gives=("numbers",), progress="env_steps"),
        ),
        streams=(SEGMENTS,),
        rule=Rule(standard.rule.total_timesteps, 0, None),
    )


class Maker:
    """Makes the number of each env step, in segments."""

    def __init__(self, spec: Any, streams: Any) -> None:
        self.spec, self.limiter = spec, streams.limiter
        self.stats = StatsRow(streams.stats, spec.slot)
        self.producer = streams.queue.producer(worker=spec.worker_id)
        self.lanes = list(spec.lanes)
        self.tickets = np.full(len(self.lanes), -1, np.int64)
        self.open: list[float] = []

    def start(self) -> None:
        pass

    def step(self, timeout: float | None) -> bool:
        try:
            if self.limiter.acquire_steps(self.lanes, self.tickets, worker=self.spec.worker_id, timeout=timeout) == 0:
                return False
        except WaitTimeoutError:
            return True
        for lane, ticket in zip(self.lanes, self.tickets.tolist(), strict=True):
            if ticket < 0:
                continue
            self.open.append(float(ticket))
            if len(self.open) == LENGTH:
                self.producer.put(timeout=None, number=np.array(self.open, np.float32))
                self.open.clear()
            self.limiter.complete_step(lane)
            self.stats.add(Stat.ENV_STEPS, 1.0)
        return True

    def close(self) -> None:
        self.producer.close()


class Counter:
    """Sums them up, and ends the run when it has all."""

    def __init__(self, spec: Any, streams: Any) -> None:
        self.path, self.limiter = Path(spec.run_dir) / "sum.json", streams.limiter
        self.stats = StatsRow(streams.stats, spec.slot)
        self.consumer = streams.queue.consumer(worker=spec.worker_id)
        self.count, self.sum = 0, 0.0

    def start(self) -> None:
        pass

    def step(self, timeout: float | None) -> bool:
        try:
            with self.consumer.pop(timeout=0.05 if timeout is None else timeout) as segment:
                self.sum += float(segment["number"].sum())
                self.count += LENGTH
                self.stats.add(Stat.ROWS_WRITTEN, float(LENGTH))
        except WaitTimeoutError:
            pass
        if self.count < self.limiter.total_timesteps and self.limiter.state == RUNNING:
            return True
        self.path.write_text(json.dumps({"count": self.count, "sum": self.sum}))
        self.limiter.finish()
        return False

    def close(self) -> None:
        self.consumer.close()
