"""What is shown of a run, as one value: for the console, `rlz top` and the page of `rlz watch`.

It is made from a live run's snapshot or, once the run has ended, from the last line of its log.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from rlz.system.usage import MachineUsage
from rlz.tracking.sinks import Evaluation
from rlz.tracking.snapshot import Snapshot
from rlz.transport.stats import PHASES

_WAITS = {
    ("limiter", "updates"): "waits for env steps",
    ("limiter", ""): "waits for updates",
    ("parameters", "episodes"): "waits for a policy",
    ("parameters", ""): "waits for parameters",
    ("batch", ""): "waits for a batch",
    ("batch", "rows_written"): "waits for requests",
    ("answer", ""): "waits for answers",
}


@dataclass(frozen=True)
class View:
    """A run at one moment.

    Attributes
    ----------
    title : of the run, for people.
    snapshot : its numbers.
    evaluation : the last one.
    status : as in `rlz.records.runs.RunInfo`.
    best : best mean return of an evaluation.
    asked_ratio : replay ratio that was asked for, as in the configuration; "" where there is none.
    doing : what each worker does right now, in words, by name; of a live run.
    machine : how busy the machine is; of a live run.
    """

    title: str
    snapshot: Snapshot
    evaluation: Evaluation | None = None
    status: str = "running"
    best: float | None = None
    asked_ratio: str = ""
    doing: Mapping[str, str] = field(default_factory=dict)
    machine: MachineUsage | None = None

    def time(self) -> dict[str, dict[str, float]]:
        """Where each worker's time goes, by its name: shares (0 to 1) by what it did, and whom it waited for."""
        found = {}
        for worker in self.snapshot.workers:
            shares = {phase: worker.phases[phase] for phase in PHASES if phase in worker.phases}
            for reason, share in worker.waits.items():
                shares[_WAITS.get((reason, worker.progress), _WAITS[reason, ""])] = share
            found[worker.name] = shares
        return found

    def to_json(self) -> dict[str, Any]:
        """All of it as JSON values; what is not finite is null."""
        snapshot = asdict(self.snapshot)
        seconds = self.snapshot.wall_s
        found = {
            **asdict(self),
            "snapshot": snapshot | {"eta_s": self.snapshot.eta_s},
            "time": self.time(),
            "over_the_run": {
                "env_steps_per_s": self.snapshot.env_steps / seconds if seconds > 0 else None,
                "updates_per_s": self.snapshot.updates / seconds if seconds > 0 else None,
            },
        }
        finite: dict[str, Any] = _finite(found)
        return finite


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value
