"""The search of a study: Optuna proposes points and is told scores; its journal is a file beside the runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlz.errors import ConfigError
from rlz.studies.definition import Choices, Point, Search

JOURNAL = "trials.log"

try:
    import optuna
    from optuna.storages.journal import JournalFileBackend
except ImportError as error:
    raise ConfigError("A [search] needs the package optuna. Install rlz's extra: uv sync --extra study") from error


class Trials:
    """Points that are being tried, and those that were.

    Parameters
    ----------
    search : what to try.
    folder : for the journal.
    """

    def __init__(self, search: Search, folder: Path) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._search = search
        storage = optuna.storages.JournalStorage(JournalFileBackend(str(folder / JOURNAL)))
        self._study = optuna.create_study(
            storage=storage,
            study_name=JOURNAL,
            direction="maximize",
            # Points under way count as bad ones, so that runs side by side do not try the same.
            sampler=optuna.samplers.TPESampler(seed=search.seed, constant_liar=True),
            load_if_exists=True,
        )
        self._distributions = {name: _distribution(space) for name, space in search.space.items()}

    @property
    def left(self) -> int:
        """Trials that were not begun yet."""
        return self._search.trials - len(self._study.get_trials(deepcopy=False))

    def open(self) -> dict[int, Point]:
        """Trials that were begun and have no score, by number: those of a study that was stopped."""
        running = (optuna.trial.TrialState.RUNNING,)
        found = self._study.get_trials(deepcopy=False, states=running)
        # One that died between its number and its point cannot go on.
        for trial in found:
            if trial.params.keys() != self._distributions.keys():
                self._study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
        return {
            trial.number: dict(trial.params) for trial in found if trial.params.keys() == self._distributions.keys()
        }

    def ask(self) -> tuple[int, Point]:
        """Begin one more: its number and its point."""
        trial = self._study.ask(self._distributions)
        return trial.number, dict(trial.params)

    def tell(self, number: int, score: float | None) -> None:
        """End a trial with the mean score of its runs; None: one of them has none."""
        if score is None:
            self._study.tell(number, state=optuna.trial.TrialState.FAIL)
        else:
            self._study.tell(number, score)

    def best(self) -> tuple[int, Point, float] | None:
        """Number, point and score of the best trial so far."""
        done = (optuna.trial.TrialState.COMPLETE,)
        if not self._study.get_trials(deepcopy=False, states=done):
            return None
        found = self._study.best_trial
        assert found.value is not None
        return found.number, dict(found.params), found.value


def _distribution(space: Any) -> Any:
    if isinstance(space, Choices):
        return optuna.distributions.CategoricalDistribution(space.choices)
    if isinstance(space.low, int) and isinstance(space.high, int):
        return optuna.distributions.IntDistribution(space.low, space.high, log=space.log)
    return optuna.distributions.FloatDistribution(space.low, space.high, log=space.log)
