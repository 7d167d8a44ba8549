"""rlz from Python: train, evaluate, list runs. Each call does what the command of its name does, and prints nothing.

From a script, a notebook or a test. Workers are processes of their own that import what they need by its name, never a
copy of the caller; an object without a name (of a notebook, of a script without a main guard) travels to them by value.
"""

from __future__ import annotations

import csv
import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlz.errors import ConfigError, RunFailedError
from rlz.references import loading, reference_to

if TYPE_CHECKING:
    import gymnasium
    import numpy as np
    from numpy.typing import NDArray

    from rlz.algorithms.base import Algorithm
    from rlz.loaded_policy import Policy
    from rlz.records.runs import RunInfo
    from rlz.tracking.callbacks import Callback
    from rlz.workers.evaluation import Episodes


@dataclass(frozen=True)
class Result:
    """A run that has ended.

    Attributes
    ----------
    path : run folder.
    status : "completed", or "stopped" by a callback or a signal.
    """

    path: Path
    status: str

    @cached_property
    def metrics(self) -> dict[str, NDArray[np.float64]]:
        """Lines of the log as arrays by tag, all of the same length; NaN where a line has no such number."""
        import numpy as np

        with (self.path / "metrics.jsonl").open(encoding="utf-8") as file:
            lines = [json.loads(line) for line in file]
        tags = list(dict.fromkeys(tag for line in lines for tag in line))
        nan = float("nan")
        numbers = {tag: [line.get(tag, nan) for line in lines] for tag in tags}
        return {
            tag: np.array(values, np.float64)
            for tag, values in numbers.items()
            if all(isinstance(value, int | float) for value in values)
        }

    @cached_property
    def evaluations(self) -> dict[str, NDArray[np.float64]]:
        """Columns of `evaluations.csv` as arrays; empty without evaluations."""
        import numpy as np

        file = self.path / "evaluations.csv"
        if not file.is_file():
            return {}
        with file.open(newline="", encoding="utf-8") as lines:
            rows = list(csv.DictReader(lines))
        return {name: np.array([float(row[name] or "nan") for row in rows]) for name in (rows[0] if rows else ())}

    @property
    def best_return(self) -> float | None:
        """Best mean return of the evaluations; None without any."""
        returns = self.evaluations.get("return_mean")
        return None if returns is None else float(returns.max())

    @cached_property
    def policy(self) -> Policy:
        """The best policy, else the newest: `policy.predict(obs)` for one observation or a batch."""
        from rlz.loaded_policy import load

        return load(self.path)


def train(
    algorithm: str | type[Algorithm[Any]],
    env: str | type[gymnasium.Env[Any, Any]] | Callable[..., gymnasium.Env[Any, Any]],
    *,
    quiet: bool = True,
    on_metrics: Callback | None = None,
    on_evaluation: Callback | None = None,
    on_checkpoint: Callback | None = None,
    **settings: Any,
) -> Result:
    """Train, and wait for the end. Call it from the main thread.

    Parameters
    ----------
    algorithm : a name of rlz, "file.py:Class", or a class of your own.
    env : a Gymnasium id, "file.py:Name", or a class or function that makes an environment.
    quiet : False shows the progress as `rlz train` does.
    on_metrics : called with each line of the log: numbers by tag, "env_steps" among them.
    on_evaluation : called with each evaluation: `return_mean`, `return_std`, `env_steps` and more.
    on_checkpoint : called with the folder of each checkpoint.
        Any of the three stops the run, after a checkpoint, where it returns False.
    settings : options of `rlz train`, with underscores: `total_timesteps=20_000, seed=2`.

    Raises
    ------
    ConfigError, UsageError, EnvError, DeviceError, SharedMemoryError
        Before anything starts: what was given, what was expected.
    RunFailedError
        A worker raised or died for good; has its text, and the run folder.
    """
    from rlz.config import resolve_with_origins
    from rlz.planning.planned import planned
    from rlz.runtime.train import run
    from rlz.tracking.callbacks import Callbacks

    if (file := loading()) is not None:
        raise ConfigError(
            f"rlz.train was called while {file} was imported by a process of rlz, which would start a run inside the "
            "run. Put the call under: if __name__ == '__main__':"
        )
    if threading.current_thread() is not threading.main_thread():
        raise ConfigError("rlz.train has to be called from the main thread: it handles Ctrl-C while it runs")
    settings = {name: reference_to(value) if callable(value) else value for name, value in settings.items()}
    callbacks = Callbacks(on_metrics, on_evaluation, on_checkpoint)
    named = algorithm if isinstance(algorithm, str) else reference_to(algorithm)
    resolved = resolve_with_origins(named, env if isinstance(env, str) else reference_to(env), settings)
    plan = planned(resolved.config, resolved.given())
    ended = run(plan.config, plan=plan.plan, notes=plan.notes, quiet=quiet, callbacks=callbacks)
    callbacks.raise_late()
    if ended.status == "failed":
        raise RunFailedError(f"{ended.error}\nlogs: {ended.path / 'logs'}")
    return Result(ended.path, ended.status)


def evaluate(
    run: str | Path, *, episodes: int = 10, checkpoint: str | None = None, seeds: str = "held-out"
) -> Episodes:
    """Play whole episodes with the deterministic policy of a run, as `rlz eval` does.

    Parameters
    ----------
    run : run folder, or the name of one in `runs/`.
    checkpoint : "best", "latest" or a name; default: best, else latest.
    seeds : "held-out" starts as no evaluation in training did; "training" as those did.
    """
    from rlz.runtime.evaluate import score

    return score(run, episodes, checkpoint=checkpoint, seeds=seeds)[1]


def runs(folder: str | Path = "runs") -> Sequence[RunInfo]:
    """The runs in a folder, oldest first."""
    from rlz.records.runs import list_runs

    return list_runs(folder)
