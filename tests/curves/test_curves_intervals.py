"""Summaries with known answers."""

import numpy as np
import pytest

from rlz.curves.intervals import interquartile_mean, interval, ratio_interval


def test_the_interquartile_mean_leaves_a_quarter_out_at_each_end() -> None:
    assert interquartile_mean([-1000.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 9000.0]) == 3.5
    assert interquartile_mean(np.arange(24.0).reshape(2, 12)).tolist() == [5.5, 17.5]


def test_an_interval_covers_as_often_as_it_says() -> None:
    rng = np.random.default_rng(3)
    samples = rng.normal(10.0, 1.0, (200, 20))
    low, high = interval(samples)
    assert 0.87 <= np.mean((low <= 10.0) & (high >= 10.0)) <= 0.99
    assert np.mean(high - low) == pytest.approx(2 * 1.96 * 1.1 / np.sqrt(20), rel=0.2)


def test_values_that_are_all_alike_have_no_width() -> None:
    assert interval([4.0] * 12) == (4.0, 4.0)


def test_a_ratio_by_rounds_forgets_what_both_sides_had_in_common() -> None:
    """The machine gets slower from round to round; the ratio is 0.9 in every one."""
    theirs = [100.0, 80.0, 60.0, 40.0, 20.0]
    low, high = ratio_interval([0.9 * value for value in theirs], theirs) or (0.0, 0.0)
    assert (low, high) == (pytest.approx(0.9), pytest.approx(0.9))
    wide = ratio_interval([90.0, 110.0, 100.0, 95.0, 105.0], [100.0] * 5)
    assert wide is not None
    assert 0.9 <= wide[0] < 1.0 < wide[1] <= 1.1
    assert ratio_interval([1.0], [2.0]) is None
