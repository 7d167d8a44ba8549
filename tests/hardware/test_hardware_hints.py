"""What the report says about options that no plan may choose."""

import pytest
from machines import hardware, profile

from rlz.hardware.hints import hints
from rlz.hardware.profile_model import Profile


def measured(bf16: float, *, threads: int = 2) -> Profile:
    """80 eager float32 updates a second with two threads, and so many in bf16."""
    found = profile(hardware(2), updates=80 / 0.6 / 2**0.7)
    eager = next(rate for rate in found.updates if (rate.executor, rate.threads) == ("eager", 2))
    assert eager.updates_per_s == pytest.approx(80)
    other = eager.model_copy(update={"precision": "bf16", "updates_per_s": bf16, "threads": threads})
    return found.model_copy(update={"updates": (*found.updates, other)})


def test_bf16_is_named_where_it_was_measured_to_be_clearly_faster() -> None:
    (hint,) = hints(measured(120.0))
    assert hint.startswith("--precision bf16 would make eager updates on cpu 1.5 times as fast (batch 256); ")
    assert hint.endswith("it changes the arithmetic, so nothing chooses it for you")


def test_a_small_gain_and_other_settings_are_no_reason() -> None:
    assert hints(measured(90.0)) == []
    assert hints(measured(400.0, threads=4)) == []
    assert hints(profile(hardware(2))) == []
