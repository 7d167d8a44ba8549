"""What an option would bring that no plan may choose, where the profile has measured it."""

from rlz.hardware.profile_model import Profile

WORTHWHILE = 1.2
"""Gain from which on a hint is given."""


def hints(profile: Profile) -> list[str]:
    """Lines for people, at most one for each device."""
    found: dict[str, str] = {}
    for one in profile.updates:
        place = one.device, one.executor, one.batch_size, one.threads
        others = [
            other.updates_per_s
            for other in profile.updates
            if (other.device, other.executor, other.batch_size, other.threads) == place and other.precision != "bf16"
        ]
        gain = one.updates_per_s / max(others) if others and one.precision == "bf16" else 0.0
        if gain >= WORTHWHILE:
            found[one.device] = (
                f"--precision bf16 would make {one.executor} updates on {one.device} {gain:.1f} times as fast (batch "
                f"{one.batch_size}); it changes the arithmetic, so nothing chooses it for you"
            )
    return list(found.values())
