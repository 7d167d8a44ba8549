"""Looking into a run while it lives, from another process of the same user: numbers, workers, and the newest actor.

The controller serves the run's streams on a socket in the run folder (`open_door`); `Live` is the other end. Both are
users of `rlz.transport.serving`, which says who may look and what is handed over.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np

from rlz._native import Limiter, ParameterStore, StatsBoard
from rlz.errors import NotServedError, TransportError
from rlz.tracking import WorkerInfo
from rlz.transport.attaching import attach
from rlz.transport.handover import Readable
from rlz.transport.serving import Door
from rlz.transport.stats import STAT_NAMES, Stat
from rlz.workers.job import Job

if TYPE_CHECKING:
    from rlz.loaded_policy import Policy
    from rlz.transport import Streams

SOCKET = ".live.sock"


def open_door(
    run_dir: Path,
    job: Job,
    streams: "Streams",
    workers: Callable[[], Sequence[WorkerInfo]],
) -> Door:
    """Let this user's processes look into a run.

    Parameters
    ----------
    run_dir : run folder; the caller holds its lock.
    job, streams : of the run.
    workers : gives every worker that has been started.

    Raises
    ------
    OSError
        The file system of the run folder has no sockets.
    """
    from rlz.loaded_policy import describe

    policy = describe(job.config, job.env_spec, job.answers.policy, version=0, env_steps=0)
    started = float(streams.stats.read()[:, Stat.RUN_BEGAN].max()) or time.monotonic()

    def info() -> dict[str, Any]:
        return {
            "started": started,
            "rows": streams.committed(),
            "workers": [asdict(worker) for worker in workers()],
            "policy": policy,
        }

    served: dict[str, Readable] = {"stats": streams.stats, "trace": streams.trace, "limiter": streams.limiter}
    acting = job.graph.source or job.graph.sink
    for name in job.graph.of_kind("parameters", (*acting.takes, *acting.gives))[:1]:
        served["parameters"] = cast("ParameterStore", streams[name])
    return Door(served, run_dir / SOCKET, info)


class Live:
    """A live run, seen from another process of the same user. Has the attributes that `tracking.Reader` reads.

    Parameters
    ----------
    run_dir : run folder.
    timeout : seconds to wait for an answer of its controller.

    Attributes
    ----------
    pid : the controller.
    started : `time.monotonic()` when the run would have begun had it never been interrupted.
    stats, trace, limiter : the run's, always current; they can only be read.
    parameters : the newest parameters of what acts; None where the graph has none.

    Raises
    ------
    NotServedError
        The run is not alive, or is just starting or ending.
    NoAnswerError
        The controller is busy, stopped or hanging.
    TransportError
        It belongs to another user, or to another version of rlz.
    """

    def __init__(self, run_dir: str | Path, timeout: float = 2.0) -> None:
        self._run_dir = Path(run_dir)
        try:
            self._attached = attach(self._run_dir / SOCKET, timeout=timeout)
        except NotServedError as error:
            raise NotServedError(f"{run_dir} is not alive ({error}). `rlz runs` lists the runs") from None
        try:
            self.pid = self._attached.pid
            self.stats: StatsBoard = self._attached.streams["stats"]
            self.trace: StatsBoard = self._attached.streams["trace"]
            self.limiter: Limiter = self._attached.streams["limiter"]
            self.parameters: ParameterStore | None = self._attached.streams.get("parameters")
            if tuple(self.stats.names)[: len(STAT_NAMES)] != STAT_NAMES:
                raise KeyError("the names on the board are others")
            self._read_info()
        except (KeyError, TypeError, ValueError) as error:
            self.close()
            raise TransportError(self._other_version()) from error

    @property
    def state(self) -> int:
        """What the run is doing: RUNNING, STOPPING, FINISHED or CLOSED, as of the limiter."""
        return self.limiter.state

    def workers(self) -> list[WorkerInfo]:
        """Workers at the last `refresh`."""
        return self._workers

    def refresh(self) -> None:
        """Ask the controller again about workers and rows; errors as in the constructor."""
        self._attached.refresh()
        try:
            self._read_info()
        except (KeyError, TypeError, ValueError) as error:
            raise TransportError(self._other_version()) from error

    def committed(self) -> list[int]:
        """Rows ever committed, per lane. Asked anew: whoever reads steps before rows finds no step without its row."""
        self.refresh()
        return self.rows

    def policy(self, *, seed: int | None = None) -> "Policy":
        """Copy the newest actor that the learner has published.

        Parameters
        ----------
        seed : of `predict(..., deterministic=False)`; default: a new one each time.

        Raises
        ------
        TransportError
            Nothing has been published yet, or nothing ever is.
        """
        from rlz.loaded_policy import Policy

        if self.parameters is None:
            raise TransportError(f"the graph of {self._run_dir} has no parameters of a policy")
        parameters = np.empty(self.parameters.nbytes, np.uint8)
        with self.parameters.subscriber() as subscriber:
            version, env_steps, _ = subscriber.read(parameters)
        return Policy(self._run_dir, {**self._policy, "version": version, "env_steps": env_steps}, parameters, seed)

    def close(self) -> None:
        """Let go of the streams. Idempotent."""
        self._attached.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read_info(self) -> None:
        info = self._attached.info
        self.started = float(info["started"])
        self.rows = [int(count) for count in info["rows"]]
        self._workers = [WorkerInfo(**{**worker, "lanes": tuple(worker["lanes"])}) for worker in info["workers"]]
        self._policy: dict[str, Any] = dict(info["policy"])

    def _other_version(self) -> str:
        return f"{self._run_dir} is being run by another version of rlz: use that one to look into it"
