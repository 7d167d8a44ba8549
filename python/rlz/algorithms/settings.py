"""Settings that many algorithms share: how data is drawn, how networks look. An algorithm's own stand in its file.

Names are option names with underscores. The command line, the TOML files and the error messages are made from the
fields, so that an algorithm with another setting needs a line in its own file alone. Imports no torch.
"""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise
from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, model_validator

from rlz.answers import Field, Priority, Replay, Rollout
from rlz.networks.mlp import Mlp
from rlz.networks.own import Network, OwnNetwork
from rlz.options import Integer, Number, Panel, option, values

REFERENCE_BATCH = 256
"""Batch size of the algorithms' default learning rates."""

DEFAULT_CAP = 4.0
"""Cap of the learning rate's factor for a batch size that rlz chooses: that of 4,096 rows."""

MAX_LAYER_BYTES = 2**30
"""Most bytes of one field of a stream (`MAX_ROW` in rust/core/src/schema.rs); the weights of a layer are a field of the
parameter store."""


class Settings(BaseModel):
    """What an algorithm can be told. Frozen; unknown keys are errors.

    A class of a user's own derives from this, or from one of the classes below, and states its options with
    `rlz.option`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=False, ser_json_inf_nan="constants")

    code: ClassVar[tuple[str, ...]] = ()
    """Names of the settings that name a user's own code, which may import what it likes."""

    def data(self, fields: tuple[Field, ...] = ()) -> Replay | Rollout:
        """What the algorithm learns from. `fields`: of a row."""
        raise NotImplementedError(f"{type(self).__name__} does not say what its algorithm learns from")


def scheduled(value: float | str, done: float) -> float:
    """A number, or one that falls linearly to 0 (text such as lin_3e-4), when a part of the run (0 to 1) is done."""
    if not isinstance(value, str):
        return value
    return float(value.removeprefix("lin_")) * (1.0 - min(max(done, 0.0), 1.0))


class LearningSettings(Settings):
    """Of an algorithm that follows gradients."""

    learning_rate: Annotated[float | str, BeforeValidator(values.learning_rate)] = option(
        3e-4,
        shown="3e-4",
        panel=Panel.LEARNING,
        help="Of every optimiser; lin_3e-4 falls linearly to 0 over the run.",
        metavar="R|lin_R",
        expects="a number above 0 and at most 1, or lin_ before such a number (linear to 0 over the run)",
    )
    gamma: Number = option(0.99, panel=Panel.LEARNING, help="Discount per step.", metavar="G", ge=0, le=1, fixed=True)

    def learning_rate_at(self, done: float, batch_size: int | None = None) -> float:
        """Learning rate when a part of the run (0 to 1) is done: constant, or linear from its start value to 0."""
        return scheduled(self.learning_rate, done)


class RolloutSettings(LearningSettings):
    """Of an algorithm that learns from rollouts of its newest policy."""

    n_steps: Integer = option(
        2048,
        panel=Panel.LEARNING,
        help="Steps of each environment in a rollout, which is what one round of learning uses.",
        metavar="STEPS",
        ge=1,
        le=2**24,
    )
    batch_size: Integer = option(
        64,
        panel=Panel.LEARNING,
        help="Rows of one update; a part of a rollout (--n-steps x --num-envs rows).",
        metavar="INT",
        ge=1,
        le=2**24,
    )
    n_epochs: Integer = option(
        10, panel=Panel.LEARNING, help="How often the rows of a rollout are learned from.", metavar="INT", ge=1, le=1000
    )
    max_policy_lag: Integer | None = option(
        0,
        panel=Panel.LEARNING,
        help="Segments whose policy is older than so many versions are dropped. 0: synchronous, samplers wait for the "
        "policy that has learned from their last steps.",
        metavar="VERSIONS",
        shown="0",
        ge=0,
        le=2**31,
    )

    def data(self, fields: tuple[Field, ...] = ()) -> Rollout:
        """What the algorithm learns from. `fields`: of a step."""
        return Rollout(
            fields=fields,
            length=self.n_steps,
            batch=self.batch_size,
            epochs=self.n_epochs,
            max_lag=self.max_policy_lag,
            gamma=self.gamma,
        )


class ReplaySettings(LearningSettings):
    """Of an algorithm that learns from single transitions of a replay buffer."""

    batch_size: Annotated[int | str, BeforeValidator(values.batch_size)] = option(
        256,
        panel=Panel.LEARNING,
        help="Rows of one update; auto, with --replay-ratio free: the smallest at the knee of frames/s, learning rate "
        "scaled to it (auto_1024 starts there).",
        metavar="INT|auto",
        expects="an integer from 1 to 1048576, auto, or auto_ before the size to start with",
    )
    buffer_size: Integer = option(
        1_000_000,
        panel=Panel.LEARNING,
        help="Rows of the replay buffer, over all environments.",
        metavar="INT",
        ge=1,
        le=2**40,
    )
    learning_starts: Integer = option(
        100,
        panel=Panel.LEARNING,
        help="Env steps with uniform random actions before the first update. Presets may differ.",
        metavar="STEPS",
        ge=0,
        le=2**62,
        fixed=True,
    )
    scale_learning_rate: Number | None = option(
        None,
        panel=Panel.LEARNING,
        help="Multiply the learning rate by sqrt(batch size / 256), by CAP at most: for large batches.",
        metavar="CAP",
        shown=f"not scaled; {DEFAULT_CAP:g} with --batch-size auto",
        ge=1,
        le=1024,
    )
    replay_ratio: Annotated[float | str, BeforeValidator(values.replay_ratio)] = option(
        1.0,
        shown="1",
        panel=Panel.LEARNING,
        help="Updates per env step, held exactly; free lets both sides run as fast as they can (--min-replay-ratio).",
        metavar="R|free",
        expects="a number above 0 and at most 1024 (updates per env step), or free",
        fixed=True,
    )
    min_replay_ratio: Number = option(
        1.0,
        shown="1",
        panel=Panel.LEARNING,
        help="With --replay-ratio free: times that each row is learned from on average, at least (updates x batch size "
        "/ env steps); samplers wait for it. 0: they never wait.",
        metavar="TIMES",
        ge=0,
        le=1_000_000,
    )
    ratio_slack: Number | None = option(
        None,
        panel=Panel.LEARNING,
        help="Most updates by which either side may be away from the replay ratio's line.",
        metavar="UPDATES",
        expects="a number of at least 1 and at least the replay ratio",
        shown="the largest of environments, ratio and --updates-per-launch",
        ge=1,
    )
    n_step_return: Integer = option(
        1,
        panel=Panel.LEARNING,
        help="Steps whose rewards a row sums before it bootstraps; shorter where an episode ends. SAC then adds the "
        "entropy bonus for the last step only.",
        metavar="N",
        ge=1,
        le=1000,
        fixed=True,
    )
    prioritized: bool = option(
        False,
        panel=Panel.LEARNING,
        help="Draw rows in proportion to their TD error, with importance weights.",
        fixed=True,
    )
    priority_alpha: Number = option(
        0.6,
        panel=Panel.LEARNING,
        needs="prioritized",
        help="0 draws uniformly, 1 in proportion.",
        metavar="A",
        ge=0,
        le=1,
        fixed=True,
    )
    priority_beta: Number = option(
        0.4,
        panel=Panel.LEARNING,
        needs="prioritized",
        help="Exponent of the importance weights at first; it rises linearly to 1 over the run.",
        metavar="B",
        ge=0,
        le=1,
    )
    priority_epsilon: Number = option(
        1e-6,
        shown="1e-6",
        panel=Panel.LEARNING,
        needs="prioritized",
        help="Added to every |TD error|.",
        metavar="EPS",
        gt=0,
        le=1e6,
        fixed=True,
    )

    def data(self, fields: tuple[Field, ...] = ()) -> Replay:
        """What the algorithm learns from. `fields`: of a row."""
        priority = Priority(self.priority_alpha, self.priority_beta, self.priority_epsilon)
        return Replay(
            fields=fields,
            capacity=self.buffer_size,
            batch=self.first_batch_size(),
            ratio=self.ratio(),
            starts=self.learning_starts,
            gamma=self.gamma,
            n_step=self.n_step_return,
            priority=priority if self.prioritized else None,
            slack=self.ratio_slack,
            row_uses=self.min_replay_ratio,
            adapts=self.adapts(),
            plans_batch=self.batch_size == "auto",
        )

    def ratio(self) -> tuple[int, int] | None:
        """Updates per env step as an exact fraction (0.1 is 1/10); None when free-running."""
        if isinstance(self.replay_ratio, str):
            return None
        fraction = Fraction(str(self.replay_ratio))
        return fraction.numerator, fraction.denominator

    def adapts(self) -> bool:
        """The run chooses its batch size and how long samplers wait, and goes on choosing (`--batch-size auto`)."""
        return isinstance(self.batch_size, str)

    def first_batch_size(self) -> int:
        """Rows of the first update, and of all where the batch size is given."""
        if isinstance(self.batch_size, str):
            return REFERENCE_BATCH if self.batch_size == "auto" else int(self.batch_size.removeprefix("auto_"))
        return self.batch_size

    def learning_rate_at(self, done: float, batch_size: int | None = None) -> float:
        """Learning rate when a part of the run (0 to 1) is done: constant, or linear from its start value to 0.

        Scaled for the batch size (default: the first) where that was asked for, or where rlz chooses it.
        """
        cap = DEFAULT_CAP if self.scale_learning_rate is None and self.adapts() else self.scale_learning_rate
        size = self.first_batch_size() if batch_size is None else batch_size
        factor = 1.0 if cap is None else learning_rate_factor(size, cap)
        return factor * scheduled(self.learning_rate, done)

    @model_validator(mode="after")
    def _ratio_agrees(self) -> Self:
        ratio = self.ratio()
        if self.ratio_slack is not None and ratio is not None and self.ratio_slack * ratio[1] < ratio[0]:
            raise ValueError(
                f"--ratio-slack {self.ratio_slack:g} is less than --replay-ratio {self.replay_ratio}: one env step "
                f"alone would leave the slack. Use {self.replay_ratio} or more."
            )
        if self.min_replay_ratio != 1.0 and ratio is not None:
            raise ValueError(
                f"--min-replay-ratio {self.min_replay_ratio:g} needs --replay-ratio free: a ratio of "
                f"{self.replay_ratio:g} is held exactly. Leave one of them out."
            )
        if self.adapts() and self.replay_ratio != "free":
            raise ValueError(
                f"--batch-size {self.batch_size} needs --replay-ratio free: with a ratio held, the batch size is "
                "part of what is learned. Give a number, such as 256, or --replay-ratio free."
            )
        return self


Widths = Annotated[tuple[int, ...], BeforeValidator(values.widths), AfterValidator(values.check_widths)]


class NetworkSettings(Settings):
    """Of an algorithm whose networks (`make_network`) are multi-layer perceptrons, or a user's own torch modules."""

    code = ("network",)

    hidden: Widths = option(
        (256, 256),
        panel=Panel.NETWORK,
        help="Widths of the hidden layers of actor and critics; none: linear.",
        metavar="W,W",
        expects="widths from 1 to 65536 separated by commas, such as 256,256, or none",
        shown="256,256",
    )
    activation: Literal["relu", "tanh", "silu", "elu"] = option(
        "relu", panel=Panel.NETWORK, help="After each hidden layer."
    )
    layer_norm: bool = option(False, panel=Panel.NETWORK, help="Layer normalisation before each activation.")
    network: Annotated[str | None, AfterValidator(values.code_path)] = option(
        None,
        panel=Panel.NETWORK,
        help="Class of torch modules, called as Net(inputs, outputs), in the place of the layers above, for each "
        "network.",
        metavar="FILE.py:NET",
        expects="file.py:Net or module:Net",
        shown="layers as above",
    )

    def make_network(self, name: str, inputs: int, outputs: int, members: int | None = None) -> Network:
        """A network of these settings; with `members` a stack of so many."""
        if self.network is not None:
            return OwnNetwork.of(self.network, name, inputs, outputs, members)
        return Mlp(name, inputs, self.hidden, outputs, self.activation, self.layer_norm, members)

    @model_validator(mode="after")
    def _layers_fit(self) -> Self:
        for before, after in pairwise(self.hidden):
            if 4 * before * after > MAX_LAYER_BYTES:
                raise ValueError(
                    f"--hidden {','.join(map(str, self.hidden))}: {before} x {after} weights are "
                    f"{4 * before * after / 2**30:.0f} GiB; a layer may have at most 1 GiB."
                )
        return self


def learning_rate_factor(batch_size: int, cap: float) -> float:
    """min(sqrt(batch_size / 256), cap): the noise of a gradient falls with the root of the batch (arXiv 1404.5997).

    It multiplies the learning rates of actor, critics and temperature. The step tau of the target networks stays.
    """
    return min(math.sqrt(batch_size / REFERENCE_BATCH), cap)
