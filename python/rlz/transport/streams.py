"""All streams of a run, as one bundle that travels to the workers by file descriptors."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from rlz._native import Limiter, ParameterStore, Replay, StatsBoard
from rlz.transport.stats import EVENT_CAPACITY, EVENT_WIDTH, STAT_NAMES, at_end_names

if TYPE_CHECKING:
    from rlz.config import RunConfig
    from rlz.envs.spaces import EnvSpec

PUBLISHERS = frozenset({"learner"})
"""Roles that may write parameters; all others can only read them."""

MOST_LEASES = 64
"""Subscribers that hold a lease cell. Those beyond it read as well; each cell costs one version's memory."""

SPARE_LEASES = 1
"""The evaluator's. Processes that look in from outside hold no lease."""


@dataclass(frozen=True)
class Streams:
    """The streams between the workers of a run.

    The controller creates them and owns them: it alone says who is dead (`reap`). Memory goes with the last process
    that holds it.

    Attributes
    ----------
    replay : transitions, one lane per environment.
    limiter : env steps, updates, and the ratio between them.
    parameters : the actor's parameters, newest wins.
    stats : numbers for people and logs.
    """

    replay: Replay
    limiter: Limiter
    parameters: ParameterStore
    stats: StatsBoard

    @classmethod
    def create(
        cls,
        config: "RunConfig",
        env_spec: "EnvSpec",
        *,
        slots: int,
        run_id: int,
        env_steps: int = 0,
        updates: int = 0,
        version: int = 0,
    ) -> Self:
        """Allocate the streams of a run.

        Parameters
        ----------
        config, env_spec : the run.
        slots : rows of the stats board, one per worker.
        run_id : any 63-bit number; a descriptor of another run is refused with it.
        env_steps, updates : counts to go on from (resume).
        version : of the newest parameters that were published before (resume); the next ones get the number after it.

        Raises
        ------
        SharedMemoryError
            The memory cannot be had; nothing stays allocated.
        """
        # The layout of the actor is the networks' business; this module only reserves room for it.
        from rlz.config.model import ask

        answers = ask(config, env_spec)
        data = config.replay()
        return cls(
            replay=Replay.create(env_spec.fields(), buffer_size=data.capacity, lanes=config.num_envs, run_id=run_id),
            limiter=Limiter.create(
                lanes=config.num_envs,
                total_timesteps=config.total_timesteps,
                learning_starts=data.starts,
                ratio=data.ratio,
                slack=config.slack(),
                run_id=run_id,
                env_steps=env_steps,
                updates=updates,
            ),
            parameters=ParameterStore.create(
                answers.policy.manifest,
                leases=min(config.samplers + SPARE_LEASES, MOST_LEASES),
                run_id=run_id,
                version=version,
            ),
            stats=StatsBoard.create(
                slots=slots,
                names=(*STAT_NAMES, *answers.metrics),
                event_width=EVENT_WIDTH + len(at_end_names(config.log_info)),
                event_capacity=EVENT_CAPACITY,
                run_id=run_id,
            ),
        )

    def fds(self, role: str | None = None) -> dict[str, int]:
        """Descriptors that a worker needs for `attach`; pass them on with `subprocess.Popen(pass_fds=...)`.

        They stay this object's. `role`: leave out what that role must not have (memory that it could write to); None:
        everything.
        """
        fds = {
            "replay": self.replay.fd,
            "limiter": self.limiter.fd,
            "parameters_control": self.parameters.control_fd,
            "parameters_read_only": self.parameters.readonly_payload_fd,
            "stats": self.stats.fd,
        }
        if role is None or role in PUBLISHERS:
            fds["parameters"] = self.parameters.payload_fd
        return fds

    @classmethod
    def attach(cls, fds: Mapping[str, int], role: str) -> Self:
        """Map the streams in a worker.

        The descriptors stay open but are not passed on to the worker's own children.

        Parameters
        ----------
        fds : as made by `fds`.
        role : the worker's role; only a publisher maps the parameters writable.

        Raises
        ------
        LayoutMismatchError, TransportError
            A descriptor is not what it should be.
        """
        for fd in fds.values():
            os.set_inheritable(fd, False)
        writable = role in PUBLISHERS
        return cls(
            replay=Replay.attach(fds["replay"]),
            limiter=Limiter.attach(fds["limiter"]),
            parameters=ParameterStore.attach(
                fds["parameters_control"],
                fds["parameters"] if writable else fds["parameters_read_only"],
                writable=writable,
            ),
            stats=StatsBoard.attach(fds["stats"]),
        )

    def reap(self, worker: int) -> None:
        """Take back everything that a worker held on any stream. Only for a worker that is proven dead.

        Its id may be given out again after this has returned.
        """
        self.replay.reap(worker)
        self.limiter.reap(worker)
        self.parameters.reap(worker)

    def close(self) -> None:
        """Let go of the memory in this process. Others do not notice: `limiter.cancel()` is what ends their waits."""
        self.replay.close()
        self.limiter.close()
        self.parameters.close()
        self.stats.close()
