"""What `rlz profile` found out, typed: facts of the machine, and the rates that were measured on it.

A profile is made by `probe`, kept by `cache`, read by `planner`. It is frozen, and its JSON is read strictly: a key too
many, a text where a number belongs or a number that is not finite is an error, so nobody plans with a broken file.
Rates are per second. docs/profile.md explains every key.
"""

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from rlz.answers import Replay
from rlz.errors import ConfigError
from rlz.options.option import of_networks
from rlz.system.detect import Hardware

if TYPE_CHECKING:
    from rlz.config import RunConfig

FORMAT: Literal[4] = 4

Inference = Literal["inline", "central", "learner"]

_WORKLOAD = (
    "algo",
    "env",
    "env_kwargs",
    "wrapper",
    "obs_dtype",
)


class Figures(BaseModel):
    """Base of the parts of a profile."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Workload(Figures):
    """What was measured: environment and networks. `of` takes a run's configuration apart."""

    algo: str
    env: str
    task: str
    """Digest of the options that define environment, rows and networks."""

    @classmethod
    def of(cls, config: "RunConfig") -> Self:
        """The workload of a run."""
        values = config.model_dump(mode="json")
        data = config.data()
        priority, n_step = (data.priority is not None, data.n_step) if isinstance(data, Replay) else (False, 1)
        networks = {name: values[name] for name, field in type(config).model_fields.items() if of_networks(field)}
        task = json.dumps([*(values[name] for name in _WORKLOAD), priority, n_step, networks], sort_keys=True)
        digest = hashlib.sha256(task.encode()).hexdigest()[:16]
        return cls(algo=config.algo, env=config.env, task=digest)


class Memory(Figures):
    """Memory bandwidth: bytes read and written per second by copies far larger than any cache, by threads."""

    threads: int
    bytes_per_s: float


class Transport(Figures):
    """rlz's streams, one thread each. `publish_us`, `copy_us`: one actor, into and out of the parameter store."""

    row_bytes: int
    append_rows_per_s: float
    sample_256_rows_per_s: float
    sample_8192_rows_per_s: float
    parameter_bytes: int
    publish_us: float
    copy_us: float


class Spread(Figures):
    """Microseconds of one call."""

    mean: float
    median: float
    p95: float
    worst: float


class ActorCost(Figures):
    """One call of the actor for some environments at once, in a sampler."""

    envs: int
    us: float


class SamplingRate(Figures):
    """Env steps per second of all sampler processes together, with no learner beside them."""

    processes: int
    envs_per_process: int
    env_steps_per_s: float


class Sampling(Figures):
    """The environment, and samplers alone. `share_of_bare`: of what a bare loop over the same steps reaches."""

    step_us: Spread
    reset_us: Spread | None
    episode_length: float | None
    actor: tuple[ActorCost, ...]
    bare_env_steps_per_s: float
    share_of_bare: float
    rates: tuple[SamplingRate, ...]


class MatrixProduct(Figures):
    """Floating-point operations per second of a product as large as a layer of the networks at batch 1024.

    `library`: torch's product, or a dense layer of rlz. `of_peak`: share of what so many cores reach that do nothing
    but multiply and add in this dtype, with the instructions that rlz's dense layers use; None: not known.
    """

    device: str
    dtype: Literal["fp32", "tf32", "bf16"]
    threads: int
    flops: float
    library: Literal["torch", "rlz"] = "torch"
    of_peak: float | None = None


class Copy(Figures):
    """Bytes per second between host (pinned memory) and devices."""

    source: str
    target: str
    bytes_per_s: float


class UpdateRate(Figures):
    """Updates alone. `ready_s`: until the first three were done, compilation included where it was needed.

    `launch`: updates that the device makes without the host. `dense`: with dense layers of rlz.
    """

    device: str
    executor: Literal["eager", "compiled"]
    precision: Literal["fp32", "tf32", "bf16"]
    batch_size: int
    threads: int
    updates_per_s: float
    frames_per_s: float
    ready_s: float
    launch: int = 1
    dense: bool = False


class Joint(Figures):
    """Samplers and a learner of rlz together. `replay_ratio` None: free.

    `threads`: what the learner settled on. `sampler_cpu`, `learner_cpu`: cores in use. The waits are shares of the time
    (of all samplers): for the replay ratio, for a batch. `publish_share`: of the learner's time.
    """

    samplers: int
    envs_per_sampler: int
    spin_count: int
    pinned: bool
    device: str
    batch_size: int
    replay_ratio: float | None
    precision: Literal["fp32", "tf32", "bf16"]
    executor: Literal["eager", "compiled"]
    threads: int
    env_steps_per_s: float
    updates_per_s: float
    frames_per_s: float
    sampler_cpu: float
    learner_cpu: float
    sampler_waits: float
    learner_waits: float
    batch_waits: float
    publish_share: float
    seconds: float
    inference: Inference = "inline"


class Profile(Figures):
    """Everything about a machine and, for one workload, what it reaches. Parts that did not fit are empty."""

    format: Literal[4] = FORMAT
    date: str
    hardware: Hardware
    workload: Workload | None = None
    budget_s: float
    took_s: float
    memory: tuple[Memory, ...] = ()
    transport: Transport | None = None
    sampling: Sampling | None = None
    products: tuple[MatrixProduct, ...] = ()
    copies: tuple[Copy, ...] = ()
    updates: tuple[UpdateRate, ...] = ()
    joint: tuple[Joint, ...] = ()
    skipped: tuple[str, ...] = ()

    @property
    def enough(self) -> bool:
        """It has figures of both sides, without which there is no plan."""
        return self.sampling is not None and bool(self.updates)

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return self.model_dump(mode="json")

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file that holds a profile.

        Raises
        ------
        ConfigError
            It cannot be read, or is no profile of this format; says which file and what is wrong with it.
        """
        try:
            return cls.model_validate_json(path.read_bytes())
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}") from error
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(str(part) for part in first["loc"])
            raise ConfigError(
                f"{path} is no profile of format {FORMAT}: {where + ': ' * bool(where)}{first['msg']}"
            ) from error
