"""Rates of settings from a profile."""

from dataclasses import replace

import pytest

from rlz.planning.model import Learning, Setting, bound, predict, sampling_rate, update_rate
from support.machines import config, hardware, profile, together

LEARNING = Learning.of(config())
FREE = replace(LEARNING, replay_ratio=None)


def test_sampling_beyond_what_was_measured_grows_with_the_cores() -> None:
    found = profile(hardware(8), steps=100.0)
    assert sampling_rate(found, 1, 1) == 100.0
    assert sampling_rate(found, 3, 1) == pytest.approx(300.0)
    assert sampling_rate(found, 16, 1) == pytest.approx(800.0)  # 8 cores
    assert sampling_rate(found, 2, 3) == pytest.approx(220.0)  # as with 4 environments
    assert sampling_rate(found.model_copy(update={"sampling": None}), 1, 1) is None


def test_updates_of_other_batch_sizes_lie_between_those_that_were_measured() -> None:
    found = profile(hardware(1), updates=100.0)
    eager = replace(LEARNING, compile=False)

    def seconds(batch: int, learning: Learning = eager) -> float:
        rate = update_rate(found, replace(learning, batch_size=batch), "cpu", 1)
        assert rate is not None
        return 1 / rate[0]

    assert seconds(256) == pytest.approx(1 / 60)
    assert seconds(8192) == pytest.approx(25 / 60)
    assert seconds(256) < seconds(1024) < seconds(8192)
    assert seconds(16384) == pytest.approx(2 * seconds(8192))
    assert seconds(64) == pytest.approx(seconds(256))
    assert seconds(8192, LEARNING) == pytest.approx(0.6 * seconds(8192))  # compiled at 256 only: as much faster
    assert update_rate(found, eager, "cuda:0", 1) is None


def test_held_at_a_ratio_both_sides_go_at_the_pace_of_the_slower() -> None:
    for steps, updates, expected in ((1000.0, 50.0, "update-bound"), (50.0, 1000.0, "sampling-bound")):
        rates = predict(profile(hardware(4), steps=steps, updates=updates), LEARNING, Setting())
        assert rates is not None
        assert (rates.env_steps, rates.bound) == (pytest.approx(50.0), expected)
    rates = predict(profile(hardware(1), steps=100.0, updates=100.0), LEARNING, Setting())
    assert rates is not None
    assert (rates.env_steps, rates.bound) == (pytest.approx(50.0), "cores-bound")


def test_free_sides_share_the_cores() -> None:
    two = predict(profile(hardware(2), steps=100.0, updates=100.0), FREE, Setting())
    one = predict(profile(hardware(1), steps=100.0, updates=100.0), FREE, Setting())
    assert two is not None
    assert one is not None
    assert (two.env_steps, two.updates, two.bound) == (100.0, 100.0, "own limits")
    assert (one.env_steps, one.updates, one.bound) == (50.0, 50.0, "cores-bound")


@pytest.mark.parametrize(
    ("figures", "expected"),
    [
        ({"sampler_waits": 0.9}, "update-bound"),
        ({"sampler_waits": 0.0, "learner_waits": 0.6}, "sampling-bound"),
        ({"sampler_waits": 0.2, "sampler_cpu": 0.9, "learner_cpu": 1.1}, "cores-bound"),
        ({"sampler_waits": 0.2, "sampler_cpu": 0.5, "learner_cpu": 1.0}, "update-bound"),
        ({"batch_waits": 0.5}, "memory-bound"),
        ({"batch_waits": 0.5, "device": "cuda:0"}, "copy-bound"),
        ({"ratio": None, "sampler_cpu": 1.0, "learner_cpu": 1.0}, "cores-bound"),
        ({"ratio": None, "sampler_cpu": 0.5, "learner_cpu": 1.0}, "own limits"),
    ],
)
def test_what_limits_a_run(figures: dict[str, float], expected: str) -> None:
    joint = together(100, 100, **figures)
    found = profile(hardware(2), joint=[joint])
    assert bound(found, joint) == expected


@pytest.mark.parametrize(
    ("precision", "device", "resolved"),
    [
        ("auto", "cpu", "fp32"),
        ("auto", "cuda:0", "tf32"),
        ("auto", "cuda:1", "fp32"),
        ("auto", "cuda:0,cuda:1", "fp32"),
        ("auto", "cuda", "tf32"),
        ("auto", "cuda:7", "tf32"),  # nvidia-smi does not know it
        ("fp32", "cuda:0", "fp32"),
        ("bf16", "cpu", "bf16"),
    ],
)
def test_precision_is_what_the_run_makes_of_it(precision: str, device: str, resolved: str) -> None:
    machine = hardware(2, gpus=2)
    machine = replace(machine, gpus=(machine.gpus[0], replace(machine.gpus[1], compute_capability="7.5")))
    assert replace(LEARNING, precision=precision).precision_on(device, machine) == resolved


def test_an_older_card_has_its_updates_in_float32() -> None:
    old = replace(hardware(2, gpus=1), gpus=(replace(hardware(2, gpus=1).gpus[0], compute_capability="7.5"),))
    found = profile(old, card=900.0)
    updates = tuple(
        rate.model_copy(update={"precision": "fp32"}) if rate.device == "cuda:0" else rate for rate in found.updates
    )
    assert update_rate(found, LEARNING, "cuda:0", 1) is None
    assert update_rate(found.model_copy(update={"updates": updates}), LEARNING, "cuda:0", 1) == (900.0, "compiled")
