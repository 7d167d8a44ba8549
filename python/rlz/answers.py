"""What an algorithm answers when a run is planned: its data, policy and metrics. Values without torch, as JSON too.

Everything outside `algorithms/` that has to know how an algorithm learns asks these values, never its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

from rlz.errors import GraphError

Field = tuple[str, str, tuple[int, ...]]
"""(name, dtype, shape) of one field of a row, or of one tensor of a network, as `rlz._native` takes it."""


@dataclass(frozen=True)
class Priority:
    """Rows are drawn in proportion to (|TD error| + epsilon) ** alpha (Schaul et al. 2016, arXiv 1511.05952).

    `beta` is the exponent of the importance weights at first; it rises linearly to 1 over the run.
    """

    alpha: float = 0.6
    beta: float = 0.4
    epsilon: float = 1e-6


@dataclass(frozen=True)
class Replay:
    """The algorithm learns from single transitions: the oldest are overwritten, batches are drawn at random.

    Attributes
    ----------
    fields : of a row.
    capacity : rows over all environments.
    batch : rows of the first update; of every one, unless `adapts`.
    ratio : updates per env step as an exact fraction; None: both sides run as fast as they can.
    starts : env steps with uniform random actions before the first update.
    gamma, n_step : discount per step, and steps whose rewards a row sums. Both are in the rows.
    priority : None: rows are drawn uniformly.
    slack : most updates by which either side may leave the ratio's line; None: a default from the placement.
    row_uses : where `ratio` is None, times that each row is learned from on average, at least; 0: any.
    adapts : the run chooses its batch size, and how long samplers wait beyond `row_uses` (throughput mode).
    plans_batch : the plan chooses the batch size that it begins with.
    """

    fields: tuple[Field, ...]
    capacity: int
    batch: int
    ratio: tuple[int, int] | None
    starts: int = 0
    gamma: float = 0.99
    n_step: int = 1
    priority: Priority | None = None
    slack: float | None = None
    row_uses: float = 1.0
    adapts: bool = False
    plans_batch: bool = False


@dataclass(frozen=True)
class Rollout:
    """The algorithm learns from segments of consecutive steps, first in, first out: as many at a time as the run has
    environments, which are one rollout.

    Attributes
    ----------
    fields : of one step.
    length : steps of a segment.
    batch : rows of one update.
    epochs : how often the rows of a rollout are used, each time in another order.
    max_lag : segments whose policy is older than so many versions are dropped and counted; None: all are used. With 0
        learning is synchronous: an environment begins a segment with a version that it has not acted with before.
    starts : env steps with uniform random actions first.
    gamma : discount per step.
    """

    fields: tuple[Field, ...]
    length: int
    batch: int
    epochs: int = 1
    max_lag: int | None = None
    starts: int = 0
    gamma: float = 0.99

    @property
    def in_flight(self) -> int:
        """Rollouts that acting may be ahead: what the queue holds, segments that are being filled included.

        One is enough for acting and learning to overlap wholly. More are older, and no faster.
        """
        return 2 if self.max_lag is not None and self.max_lag > 1 else 1

    def updates(self, envs: int) -> int:
        """Updates of one epoch over a rollout of so many environments."""
        return envs * self.length // self.batch


@dataclass(frozen=True)
class PolicySpec:
    """What acts. It travels to every worker that acts, and is kept beside the weights (`policy.json`).

    Attributes
    ----------
    runner : "native": a network that Rust knows, its arguments in `network` (those of `rlz._native.Policy` but the
        seed); "torch": `network` names a module and the class that acts with it.
    manifest : the tensors of its parameters, in flat order.
    extras : what it gives beside the action and the data keeps, for instance log_prob and value.
    state : of a recurrent one.
    """

    runner: Literal["native", "torch"]
    network: Mapping[str, Any]
    manifest: tuple[Field, ...]
    extras: tuple[Field, ...] = ()
    state: tuple[Field, ...] = ()

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Inverse of `dataclasses.asdict`, with lists for tuples."""
        return cls(**{**{name: _frozen(value) for name, value in values.items()}, "network": values["network"]})


@dataclass(frozen=True)
class Answers:
    """All that a run asks its algorithm before it starts. Made once; travels to every worker as JSON.

    Attributes
    ----------
    data : the only place that says off-policy or on-policy.
    policy : what acts.
    metrics : names of what an update measures; they become `train/<name>`.
    sides : names of the halves of its update that `--devices` may place apart; empty: it is one piece.
    memory : bytes of the learner's state, and of each row of a batch; 0: not known.
    """

    data: Replay | Rollout
    policy: PolicySpec
    metrics: tuple[str, ...]
    sides: tuple[str, ...] = ()
    memory: tuple[int, int] = (0, 0)

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {**asdict(self), "kind": type(self.data).__name__}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Inverse of `to_json`."""
        data = {name: _frozen(value) for name, value in values["data"].items()}
        kind: type[Replay] | type[Rollout] = Replay if values["kind"] == "Replay" else Rollout
        if data.get("priority") is not None:
            data["priority"] = Priority(**values["data"]["priority"])
        return cls(
            data=kind(**data),
            policy=PolicySpec.from_json(values["policy"]),
            metrics=tuple(values["metrics"]),
            sides=tuple(values["sides"]),
            memory=(values["memory"][0], values["memory"][1]),
        )


def _frozen(value: Any) -> Any:
    """Lists as tuples, at any depth."""
    return tuple(_frozen(item) for item in value) if isinstance(value, list | tuple) else value


OWN_METRICS = frozenset(
    (
        *("learning_rate", "batch_size", "row_uses", "trying", "threads", "compiled"),
        *("actor_staleness", "policy_version", "policy_lag", "publish_share", "updates"),
    )
)
"""Names below `train/` that rlz logs itself: no algorithm measures something else under one of them."""


def check_metrics(names: tuple[str, ...]) -> None:
    """Refuse names that are not an algorithm's to give. Raises GraphError."""
    for name in names:
        if name in OWN_METRICS:
            others = ", ".join(sorted(OWN_METRICS - {name}))
            raise GraphError(
                f"metric {name!r}: train/{name} is logged by rlz itself, as are {others}. Give the metric another name"
            )
        if names.count(name) > 1:
            raise GraphError(f"metric {name!r}: there are {names.count(name)} of that name. Give each its own")
