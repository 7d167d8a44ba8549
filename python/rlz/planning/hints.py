"""What an option would bring that no plan may choose, where the profile has measured it."""

from rlz.planning.profile_model import Profile

WORTHWHILE = 1.2
"""Gain from which on a hint is given."""


def hints(profile: Profile) -> list[str]:
    """Lines for people, at most one for each device."""
    return [
        f"--precision bf16 would make updates on {device} at least {gain:.1f} times as fast (batch {size}); it changes "
        "the arithmetic, so nothing chooses it for you"
        for device, (gain, size) in bf16_gains(profile).items()
    ]


def bf16_gains(profile: Profile) -> dict[str, tuple[float, int]]:
    """How many times as fast bf16 was by device, and at which batch size, where that is worth a hint.

    The best that was measured in bf16 is compared with the best of all else, compiled updates included: eager ones
    alone gain much where torch's float32 products are slow, and a compiled run nothing.
    """
    found: dict[str, tuple[float, int]] = {}
    for device, size in dict.fromkeys((rate.device, rate.batch_size) for rate in profile.updates):
        rates = [rate for rate in profile.updates if (rate.device, rate.batch_size) == (device, size)]
        if {rate.precision for rate in rates if rate.executor == "compiled"} == {"bf16"}:
            continue  # the run has it already
        bf16, others = (
            max((rate.updates_per_s for rate in rates if (rate.precision == "bf16") == wanted), default=0.0)
            for wanted in (True, False)
        )
        if others and bf16 >= WORTHWHILE * others:
            found[device] = bf16 / others, size
    return found
