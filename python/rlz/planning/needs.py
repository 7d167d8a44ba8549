"""The memory check before a run: what it needs against what this process may have, with the figures and the fix.

A shared segment that does not fit is otherwise noticed late, and a container's limit not at all.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rlz.answers import Rollout
from rlz.errors import SharedMemoryError
from rlz.row_sizes import allocated_rows, packed_bytes
from rlz.system.memory import MIB, Limit, in_words, limits

if TYPE_CHECKING:
    from rlz.answers import Answers
    from rlz.config import RunConfig
    from rlz.envs.spaces import EnvSpec

LEARNER_BYTES = 900 * MIB
"""Private memory of a learner: torch alone takes about 600 MB."""

STEPPER_BYTES = 130 * MIB
"""Private memory of a sampler or evaluator, with a MuJoCo environment."""

ENV_BYTES = MIB
"""Private memory of each further environment of a worker (measured for Ant-v4 and Humanoid-v4)."""

CONTROLLER_BYTES = 150 * MIB


def row_bytes(env_spec: "EnvSpec") -> int:
    """Bytes of one row of an environment's transitions in the replay buffer."""
    return packed_bytes(env_spec.fields())


def replay_rows(config: "RunConfig") -> int:
    """Rows that are allocated for the replay buffer of a run."""
    return allocated_rows(config.replay().capacity, config.num_envs)


@dataclass(frozen=True)
class Needs:
    """Memory of a run in bytes.

    Attributes
    ----------
    replay : the replay buffer, or trajectory queue.
    learning : networks, optimisers and one batch on its way through them (a lower bound).
    workers : private memory of the processes, environments included.
    """

    replay: int
    learning: int
    workers: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.replay + self.learning + self.workers


def estimate(config: "RunConfig", env_spec: "EnvSpec", answers: "Answers") -> Needs:
    """Estimate the memory that a run will take, by what its algorithm answers."""
    steppers = config.samplers + (1 if config.eval_every > 0 else 0)
    workers = LEARNER_BYTES + (config.num_envs - config.samplers) * ENV_BYTES
    if config.mode != "serial":
        workers += steppers * STEPPER_BYTES + CONTROLLER_BYTES
    data, learning = config.data(), _learning_bytes(config, env_spec, answers)
    if isinstance(data, Rollout):
        rollout = config.num_envs * data.length * packed_bytes(env_spec.segment_fields())
        # In the queue, in the samplers, and in the learner as they came and as rows.
        return Needs(data.in_flight * rollout, learning + 3 * rollout, workers)
    return Needs(replay_rows(config) * row_bytes(env_spec), learning, workers)


def _learning_bytes(config: "RunConfig", env_spec: "EnvSpec", answers: "Answers") -> int:
    data, (state, per_row) = config.data(), answers.memory
    if isinstance(data, Rollout):
        return state + data.batch * per_row
    on_cpu = any(not device.startswith("cuda") for device in config.learner_devices())
    # Of each row its weight in the sum tree, an eighth more for the inner nodes, and its ticket.
    priorities = 18 * replay_rows(config) if data.priority else 0
    # A mirror that was asked for; with auto there is none on the CPU.
    mirror = data.capacity * row_bytes(env_spec) if config.replay_device == "device" and on_cpu else 0
    return mirror + priorities + state + data.batch * (row_bytes(env_spec) + on_cpu * per_row)


def check_memory(config: "RunConfig", env_spec: "EnvSpec", answers: "Answers", root: Path = Path("/")) -> None:
    """Refuse a run that does not fit, before anything is allocated or started.

    Raises
    ------
    SharedMemoryError
        With the estimate, the limit that is too small, and what would fit.
    """
    needs = estimate(config, env_spec, answers)
    for limit in limits(root):
        if needs.total > limit.available:
            raise SharedMemoryError(_explain(config, env_spec, needs, limit))


def _explain(config: "RunConfig", env_spec: "EnvSpec", needs: Needs, limit: Limit) -> str:
    data = config.data()
    if isinstance(data, Rollout):
        rows = f"rollouts ({config.num_envs:,} environments of {data.length:,} steps)"
    else:
        rows = f"the replay buffer ({data.capacity:,} rows of {row_bytes(env_spec)} bytes)"
    text = (
        f"this run needs about {in_words(needs.total)}: {in_words(needs.replay)} for {rows}, "
        f"{in_words(needs.learning)} for networks and batches "
        f"and {in_words(needs.workers)} for its workers; there are {in_words(limit.available)} left: {limit.name}. "
    )
    fits = (limit.available - needs.learning - needs.workers) // row_bytes(env_spec)
    if isinstance(data, Rollout):
        return text + "Use fewer --num-envs or --n-steps, or a smaller --hidden"
    if fits >= max(config.num_envs, data.batch):
        rounded = int(fits) // 1000 * 1000 or int(fits)
        return text + f"Use --buffer-size {rounded} or less, or free some memory"
    if needs.learning > max(needs.replay, needs.workers):
        return text + "Use a smaller --hidden or --batch-size"
    return text + "Free some memory or raise the limit; fewer --samplers or --num-envs need less too"
