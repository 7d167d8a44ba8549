"""The memory check before a run: what it needs against what this process may have, with the figures and the fix.

A shared segment that does not fit is otherwise noticed late, and a container's limit not at all: there the kernel kills
a process without a word.
"""

import math
import resource
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from rlz.errors import SharedMemoryError
from rlz.system import cgroup
from rlz.system.kernel_files import lines

if TYPE_CHECKING:
    from rlz.config import RunConfig
    from rlz.envs.spaces import EnvSpec

MIB = 1024 * 1024

LEARNER_BYTES = 900 * MIB
"""Private memory of a learner: torch alone takes about 600 MB."""

STEPPER_BYTES = 130 * MIB
"""Private memory of a sampler or evaluator, with a MuJoCo environment."""

ENV_BYTES = MIB
"""Private memory of each further environment of a worker (measured for Ant-v4 and Humanoid-v4)."""

CONTROLLER_BYTES = 150 * MIB

_ITEM_BYTES = {"f16": 2, "bf16": 2, "u8": 1, "i8": 1, "bool": 1, "u16": 2, "i16": 2, "f64": 8, "u64": 8, "i64": 8}


@dataclass(frozen=True)
class Limit:
    """Memory that is left under one of the limits of this process.

    Attributes
    ----------
    name : the limit, for people.
    available : bytes that may still be taken.
    """

    name: str
    available: int


def limits(root: Path = Path("/")) -> list[Limit]:
    """Every memory limit of this process that can be seen, the tightest first.

    Free memory of the machine, the cgroup (v1 or v2) of this process and all its ancestors, and RLIMIT_AS. Page cache
    that the kernel can drop does not count as used.

    Parameters
    ----------
    root : where /proc and the cgroup mounts are looked for (tests).
    """
    found = [*_machine(root), *_cgroups(root), *_address_space(root)]
    return sorted(found, key=lambda limit: limit.available)


def _machine(root: Path) -> list[Limit]:
    for line in lines(root / "proc/meminfo"):
        if line.startswith("MemAvailable:"):
            return [Limit("free memory of this machine (MemAvailable)", int(line.split()[1]) * 1024)]
    return []


def _address_space(root: Path) -> list[Limit]:
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft == resource.RLIM_INFINITY:
        return []
    used = 0
    for line in lines(root / "proc/self/status"):
        if line.startswith("VmSize:"):
            used = int(line.split()[1]) * 1024
    return [Limit("limit of the address space (ulimit -v)", max(0, soft - used))]


def _cgroups(root: Path) -> list[Limit]:
    found = []
    for folder in cgroup.folders("memory", root / "proc", root / "sys/fs/cgroup"):
        most, used = cgroup.memory_limit(folder), cgroup.memory_used(folder)
        if most is not None and used is not None:
            name = f"memory limit of the container or cgroup (/{folder.relative_to(root)})"
            found.append(Limit(name, max(0, most - used)))
    return found


def row_bytes(env_spec: "EnvSpec") -> int:
    """Bytes of one row in the replay buffer: its packed fields rounded up to 64, and 16 bytes of stamp."""
    offset = 0
    for _, dtype, shape in env_spec.fields():
        size = _ITEM_BYTES.get(dtype, 4)
        offset = -(-offset // size) * size + size * math.prod(shape)
    return -(-offset // 64) * 64 + 16


def replay_rows(config: "RunConfig") -> int:
    """Rows that are allocated: every lane has room for its share of the buffer, and a margin."""
    share = -(-config.buffer_size // config.num_envs)
    return (share + min(max(share // 16, 2), 64)) * config.num_envs


@dataclass(frozen=True)
class Needs:
    """Memory of a run in bytes.

    Attributes
    ----------
    replay : the replay buffer.
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


def estimate(config: "RunConfig", env_spec: "EnvSpec") -> Needs:
    """Estimate the memory that a run will take."""
    steppers = config.samplers + (1 if config.eval_every > 0 else 0)
    workers = LEARNER_BYTES + (config.num_envs - config.samplers) * ENV_BYTES
    if config.mode != "serial":
        workers += steppers * STEPPER_BYTES + CONTROLLER_BYTES
    return Needs(replay_rows(config) * row_bytes(env_spec), _learning_bytes(config, env_spec), workers)


def _learning_bytes(config: "RunConfig", env_spec: "EnvSpec") -> int:
    def weights(inputs: int, outputs: int) -> int:
        widths = (inputs, *config.hidden, outputs)
        return sum((before + 1) * after for before, after in pairwise(widths))

    obs, action = env_spec.obs_dim, env_spec.action_dim
    # Each weight has a gradient and two moments of Adam, a critic's also a target.
    numbers = 4 * weights(obs, 2 * action) + 5 * config.n_critics * weights(obs + action, 1)
    if any(not device.startswith("cuda") for device in config.learner_devices()):
        # Every hidden value of actor and critics is kept for the way back.
        numbers += config.first_batch_size() * sum(config.hidden) * (1 + config.n_critics)
    # Of each row its weight in the sum tree, an eighth more for the inner nodes, and its ticket.
    priorities = 18 * replay_rows(config) if config.prioritized else 0
    # A mirror that was asked for; with auto there is none on the CPU.
    on_cpu = not config.learner_devices()[0].startswith("cuda")
    mirror = config.buffer_size * row_bytes(env_spec) if config.replay_device == "device" and on_cpu else 0
    return mirror + priorities + 4 * numbers + config.first_batch_size() * row_bytes(env_spec)


def check_memory(config: "RunConfig", env_spec: "EnvSpec", root: Path = Path("/")) -> None:
    """Refuse a run that does not fit, before anything is allocated or started.

    Raises
    ------
    SharedMemoryError
        With the estimate, the limit that is too small, and what would fit.
    """
    needs = estimate(config, env_spec)
    for limit in limits(root):
        if needs.total > limit.available:
            raise SharedMemoryError(_explain(config, env_spec, needs, limit))


def _explain(config: "RunConfig", env_spec: "EnvSpec", needs: Needs, limit: Limit) -> str:
    text = (
        f"this run needs about {_size(needs.total)}: {_size(needs.replay)} for the replay buffer "
        f"({config.buffer_size:,} rows of {row_bytes(env_spec)} bytes), "
        f"{_size(needs.learning)} for networks and batches "
        f"and {_size(needs.workers)} for its workers; there are {_size(limit.available)} left: {limit.name}. "
    )
    fits = (limit.available - needs.learning - needs.workers) // row_bytes(env_spec)
    if fits >= max(config.num_envs, config.first_batch_size()):
        rounded = int(fits) // 1000 * 1000 or int(fits)
        return text + f"Use --buffer-size {rounded} or less, or free some memory"
    if needs.learning > max(needs.replay, needs.workers):
        return text + "Use a smaller --hidden or --batch-size"
    return text + "Free some memory or raise the limit; fewer --samplers or --num-envs need less too"


def _size(nbytes: int) -> str:
    return f"{nbytes / 1024**3:.1f} GiB" if nbytes >= 1024**3 else f"{nbytes / MIB:.0f} MiB"
