"""Groups of curves: which belong together, and their summary on a common axis."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlz.curves.intervals import ENOUGH, interquartile_mean, interval
from rlz.curves.reading import EVALUATION, TRAINING, Series, Source
from rlz.errors import CheckpointError, UsageError
from rlz.references import label as short

POINTS = 200
"""Of a summary."""


@dataclass(frozen=True)
class Summary:
    """A group on a common axis: x, middle [points]; ends of its interval, None for a few runs."""

    x: NDArray[np.float64]
    middle: NDArray[np.float64]
    low: NDArray[np.float64] | None = None
    high: NDArray[np.float64] | None = None


def common_metric(sources: Sequence[Source], metric: str | None) -> str:
    """The metric to show: the one that was asked for, else returns of evaluations, else those of training.

    Raises
    ------
    CheckpointError
        A source does not have it; says which ones it has.
    """
    if metric is None:
        wanted = [one for one in (EVALUATION, TRAINING) if all(source.get(one) for source in sources)]
        if wanted:
            return wanted[0]
        metric = EVALUATION if any(source.get(EVALUATION) for source in sources) else TRAINING
    for source in sources:
        if source.get(metric) is None:
            has = ", ".join(sorted(tag for tag in source.series if not tag.startswith("workers/")))
            raise CheckpointError(
                f"{source.path} has no {metric}. --metric takes one that all runs have; it has: {has}"
            )
    return metric


def grouped(sources: Sequence[Source], by: Sequence[str] = ()) -> dict[str, list[Source]]:
    """Sources by the name of their group.

    Parameters
    ----------
    by : settings whose values tell runs of rlz apart; default: algorithm, and environment where there are several.
        Others are told apart by their label.
    """
    runs = [source for source in sources if source.settings]
    for name in by:
        if not any(name in source.settings for source in runs):
            known = ", ".join(sorted({key for source in runs for key in source.settings}))
            raise UsageError(f"--group-by {name}: no run has such a setting; they have: {known}")
    several = len({source.settings.get("env") for source in runs}) > 1
    groups: dict[str, list[Source]] = {}
    for source in sources:
        name = source.label
        if source.settings and by:
            name = ", ".join(f"{key} {_shown(source.settings, key)}" for key in by)
        elif source.settings and several:
            name = f"{name}, {_shown(source.settings, 'env')}"
        groups.setdefault(name, []).append(source)
    return groups


def _shown(settings: Mapping[str, Any], key: str) -> str:
    value = settings.get(key, "-")
    return short(value) if isinstance(value, str) else str(value)


def summary(curves: Sequence[Series], axis: str) -> Summary | None:
    """Of several curves where all of them are: the mean, for `ENOUGH` or more the interquartile mean with its interval.

    None for a single curve, and where no stretch is common to all.
    """
    if len(curves) < 2:
        return None
    first = max(float(one.over(axis)[0]) for one in curves)
    last = min(float(one.over(axis)[-1]) for one in curves)
    if not first < last:
        return None
    x = np.linspace(first, last, POINTS)
    values = np.stack([np.interp(x, one.over(axis), one.values) for one in curves], axis=-1)
    if len(curves) < ENOUGH:
        return Summary(x, values.mean(axis=-1))
    low, high = interval(values)
    return Summary(x, interquartile_mean(values), low, high)
