"""What the report says about options that no plan may choose."""

from rlz.planning.hints import hints
from rlz.planning.profile_model import Profile
from support.machines import hardware, profile


def measured(bf16: float, *, batch_size: int = 256) -> Profile:
    """Of one core: 60 eager and 100 compiled float32 updates a second, and so many eager ones in bf16."""
    found = profile(hardware(1), updates=100.0)
    eager = next(rate for rate in found.updates if rate.executor == "eager")
    other = eager.model_copy(update={"precision": "bf16", "updates_per_s": bf16, "batch_size": batch_size})
    return found.model_copy(update={"updates": (*found.updates, other)})


def test_bf16_is_named_where_it_was_measured_to_be_clearly_faster() -> None:
    (hint,) = hints(measured(150.0))
    assert hint.startswith("--precision bf16 would make updates on cpu at least 1.5 times as fast (batch 256); ")
    assert hint.endswith("it changes the arithmetic, so nothing chooses it for you")


def test_what_is_faster_than_eager_updates_only_is_no_reason() -> None:
    assert hints(measured(95.0)) == []
    assert hints(measured(115.0)) == []


def test_other_batch_sizes_tell_nothing() -> None:
    assert hints(measured(500.0, batch_size=128)) == []
    assert hints(profile(hardware(2))) == []
