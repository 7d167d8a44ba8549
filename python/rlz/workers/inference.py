"""The inference server: chooses actions for all samplers that ask, in batches that form by themselves.

While it computes one batch the next requests come together; it waits for the first of them alone. So with few samplers
it answers each at once, and with many its batches grow until it keeps up.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rlz._native import RUNNING
from rlz.acting import make_policy, ranks
from rlz.config.seeds import Role, stream
from rlz.dtypes import numpy_dtype
from rlz.errors import WaitTimeoutError
from rlz.transport.stats import Stat, Waiting
from rlz.workers.base import FLUSH_EVERY_S, WorkerSpec, polled, waiting

if TYPE_CHECKING:
    from rlz.transport import Streams


class InferenceServer:
    """Answers requests with the newest policy, whichever runner it has.

    Noise is drawn in the order in which requests come. That order is that of the lanes in serial mode, which repeats
    itself; with processes it is a matter of time, as the version of the parameters is.

    Parameters
    ----------
    spec : seeds and names.
    streams : the run's inference stream and its parameters.
    """

    def __init__(self, spec: WorkerSpec, streams: Streams) -> None:
        config = spec.run_config()
        policy = spec.answers().policy
        seed = stream(config.seed, Role.POLICY, worker=spec.index, incarnation=spec.incarnation)
        self._policy = make_policy(policy, seed, config.inference_device)
        self._limiter = streams.limiter
        self._subscriber = streams.parameters.subscriber(worker=spec.worker_id)
        self._server = streams.inference.server(worker=spec.worker_id)
        self._stats = streams.row(spec.slot)
        self._total = config.total_timesteps
        lanes, env_spec = streams.inference.lanes, spec.environment()
        rooms: dict[str, NDArray[Any]] = {
            name: np.zeros((lanes, *shape), numpy_dtype(dtype))
            for name, dtype, shape, _ in (*streams.inference.request, *streams.inference.answer)
        }
        self._request = {"obs": rooms["obs"]}
        self._obs = rooms["obs"].reshape(lanes, env_spec.obs_dim)
        self._answer = {name: rooms[name] for name, *_ in streams.inference.answer}
        self._tickets, self._lanes = np.zeros(lanes, np.uint64), np.zeros(lanes, np.int64)
        self._ranks = ranks(np.arange(lanes), lanes)
        self._answered = 0
        self._flushed_at = 0.0

    def start(self) -> None:
        """Nothing."""

    def step(self, timeout: float | None) -> bool:
        """Answer what is there, once; waits for it. False at the end of the run."""
        count = self._take(timeout)
        if count:
            self._act(count)
        now = time.monotonic()
        if not count or now - self._flushed_at >= FLUSH_EVERY_S:
            self._flush(now)
        return self._limiter.state == RUNNING

    def close(self) -> None:
        """Leave what is not answered to another server; there is none at the end of a run."""
        self._flush(time.monotonic())
        self._server.close()

    def state(self) -> dict[str, Any]:
        """State of its random streams."""
        return {"policy": self._policy.state.hex()}

    def restore(self, state: dict[str, Any]) -> None:
        """Draw on from there."""
        self._policy.state = bytes.fromhex(state["policy"])

    def _take(self, timeout: float | None) -> int:
        """Requests that were taken; 0 when there are none in time, or no parameters to answer them with."""
        if self._policy.version == 0 and not self._parameters(timeout):
            return 0
        try:
            return self._requests(0.0)
        except WaitTimeoutError:
            if timeout == 0.0:
                return 0
        with waiting(self._stats, Waiting.BATCH, Stat.WAIT_BATCH_S):
            try:
                return self._requests(polled(timeout))
            except WaitTimeoutError:
                return 0

    def _requests(self, timeout: float) -> int:
        return self._server.take(self._request, timeout=timeout, notes=self._tickets, lanes=self._lanes)

    def _parameters(self, timeout: float | None) -> bool:
        if self._subscriber.version() > 0:
            return True
        with waiting(self._stats, Waiting.PARAMETERS, Stat.WAIT_PARAMETERS_S):
            try:
                return self._subscriber.wait_newer(0, timeout=polled(timeout)) > 0
            except WaitTimeoutError:
                return False

    def _act(self, count: int) -> None:
        self._stats.enter(Stat.ACT_S)
        version = self._policy.refresh(self._subscriber)
        answer = {name: values[:count] for name, values in self._answer.items()}
        extras = {name: values for name, values in answer.items() if name != "action"}
        self._policy.act(
            self._obs[:count],
            answer["action"],
            progress=int(self._tickets[:count].min()) / self._total,
            ranks=self._ranks[self._lanes[:count]],
            extras=extras or None,
        )
        self._server.answer(answer, note=version)
        self._stats.enter(Stat.OTHER_S)
        if self._answered == 0:
            self._stats.set(Stat.READY_S, time.monotonic())
        self._answered += count
        self._stats.add(Stat.ROWS_WRITTEN, float(count))
        self._stats.add(Stat.BATCHES, 1.0)

    def _flush(self, now: float) -> None:
        self._stats.set(Stat.POLICY_VERSION, float(self._policy.version))
        self._stats.set(Stat.HEARTBEAT, now)
        self._flushed_at = now
