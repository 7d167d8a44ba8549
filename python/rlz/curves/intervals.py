"""Summaries of several runs or rounds with their uncertainty.

Agarwal et al. 2021 (arXiv 2108.13264), section 4.3: the interquartile mean, which uses half of the runs and yet does
not follow single outliers as a mean does, with intervals by the percentile bootstrap over runs. scipy does both.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

ENOUGH = 10
"""Runs from which on a summary with an interval says more than every run."""

CONFIDENCE = 0.95
RESAMPLES = 2000

Statistic = Callable[..., Any]


def interquartile_mean(values: ArrayLike, axis: int = -1) -> Any:
    """Mean of the middle half: a quarter of the values is left out at each end, rounded down."""
    from scipy.stats import trim_mean

    return trim_mean(np.asarray(values, np.float64), 0.25, axis=axis)


def interval(values: ArrayLike, statistic: Statistic = interquartile_mean) -> tuple[Any, Any]:
    """Bootstrap interval of a statistic over the last axis: `values` [..., runs], both ends [...]."""
    return _bootstrap((np.asarray(values, np.float64),), statistic)


def ratio_interval(
    ours: Sequence[float], theirs: Sequence[float], *, paired: bool = True
) -> tuple[float, float] | None:
    """Interval of the ratio of medians; None for less than two values of a side.

    `paired`: by whole rounds, in which both sides had the machine in the same state.
    """
    if paired:
        rounds = min(len(ours), len(theirs))
        ours, theirs = ours[:rounds], theirs[:rounds]
    if min(len(ours), len(theirs)) < 2:
        return None
    samples = (np.array(ours, np.float64), np.array(theirs, np.float64))
    low, high = _bootstrap(samples, _ratio_of_medians, paired=paired)
    return float(low), float(high)


def _ratio_of_medians(ours: NDArray[Any], theirs: NDArray[Any], axis: int) -> Any:
    return np.median(ours, axis=axis) / np.median(theirs, axis=axis)


def _bootstrap(samples: tuple[NDArray[Any], ...], statistic: Statistic, **options: Any) -> tuple[Any, Any]:
    from scipy.stats import bootstrap

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # values that are all alike have an interval of no width, which is right
        found = bootstrap(
            samples, statistic, axis=-1, vectorized=True, method="percentile", n_resamples=RESAMPLES,
            confidence_level=CONFIDENCE, rng=np.random.default_rng(1), **options,
        )  # fmt: skip
    return found.confidence_interval.low, found.confidence_interval.high
