"""A learner without torch: keeps the limiter's line, publishes, writes checkpoints, and can misbehave on purpose.

What it does is said by the variable RLZ_FAKE_LEARNER: "" (behave), "raise", "bug", "exit", "kill" (after 20 updates,
the first checkpoint and the one after 10 written), "early" (killed after 5 updates), "diskless" (the same, and no
checkpoint could be written), "late" (does not come to its start), "deaf" (does not notice a stop), "slow" (10 ms per
update).
"""

import os
import signal
import time
from pathlib import Path

import numpy as np

from rlz.errors import NonFiniteError
from rlz.records.checkpointer import Checkpointer
from rlz.transport import Streams
from rlz.transport.stats import Stat, StatsRow, Waiting
from rlz.workers.base import WorkerSpec, waiting


class Learner:
    def __init__(self, spec: WorkerSpec, streams: Streams) -> None:
        self.spec = spec
        self.streams = streams
        self.stats = StatsRow(streams.stats, spec.slot)
        self.parameters = np.zeros(streams.parameters.nbytes, np.uint8)
        self.checkpointer = Checkpointer(Path(spec.run_dir), streams, spec.run_config(), spec.environment())
        self.mode = os.environ.get("RLZ_FAKE_LEARNER", "")
        self.count = streams.limiter.updates
        if self.mode == "late":
            time.sleep(600)

    def start(self) -> None:
        self.publisher = self.streams.parameters.publisher(worker=self.spec.worker_id)
        self.publish()
        if self.spec.resume is None:
            self.save()

    def publish(self) -> None:
        limiter = self.streams.limiter
        self.parameters.view(np.float32)[0] = self.count
        version = self.publisher.publish(self.parameters, env_steps=limiter.env_steps, updates=limiter.updates)
        self.stats.set(Stat.POLICY_VERSION, version)

    def step(self, timeout: float | None) -> bool:
        from rlz.errors import WaitTimeoutError

        limiter = self.streams.limiter
        self.stats.set(Stat.HEARTBEAT, time.monotonic())
        try:
            granted = limiter.acquire_updates(1, worker=self.spec.worker_id, timeout=0.0)
        except WaitTimeoutError:
            if timeout == 0.0:
                return True
            with waiting(self.stats, Waiting.LIMITER, Stat.WAIT_LIMITER_S):
                granted = limiter.acquire_updates(1, worker=self.spec.worker_id, timeout=None)
        if granted == 0:
            if self.mode == "deaf":
                time.sleep(600)
            self.publish()
            self.save()
            limiter.finish()
            return False
        self.count += 1
        if self.mode == "slow":
            time.sleep(0.01)
        if self.count == 20 and self.mode == "raise":
            raise NonFiniteError("critic_loss is not finite")
        if self.count == 20 and self.mode == "bug":
            raise ZeroDivisionError("a bug in the learner")
        if self.count == 20 and self.mode == "exit":
            os._exit(0)
        if (self.count, self.mode) in ((20, "kill"), (5, "early"), (5, "diskless")):
            os.kill(os.getpid(), signal.SIGKILL)
        limiter.complete_updates(1)
        self.stats.add(Stat.UPDATES, 1)
        self.publish()
        if self.count == 10:
            self.save()
        return True

    def save(self) -> None:
        if self.mode == "diskless":
            return
        state = {"weights": self.parameters.view(np.float32), "optimiser.step": np.array(self.count)}
        counters = {"count": self.count, "version": self.streams.parameters.version()}
        if self.checkpointer.save(state, self.parameters, counters, {"replay": "00", "learner": "00"}) is not None:
            self.stats.add(Stat.CHECKPOINTS, 1)

    def close(self) -> None:
        pass
