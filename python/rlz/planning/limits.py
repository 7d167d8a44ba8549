"""What bounds each figure of a profile, and how much of it is reached, in words for people who are new to this."""

import math
from typing import NamedTuple

from rlz.planning.model import BOUNDS, bound
from rlz.planning.profile_model import Joint, Profile, UpdateRate

NO_LIMIT = "not a limit"

LITTLE = 0.1
"""Part of the rows that there can be, up to which nobody notices that they are drawn or copied."""


class Limit(NamedTuple):
    """A figure beside what bounds it. `reached`: part of that, 0 to 1, None where it cannot be told."""

    name: str
    reached: float | None
    bound: str
    text: str


def limits(profile: Profile) -> list[Limit]:
    """Everything that the profile's figures tell about limits, parts first."""
    found: list[Limit | None] = []
    if profile.sampling is not None:
        found.append(_sampling(profile))
    best = _best_update(profile)
    if best is not None:
        found += [_update(profile, best), _feeding(profile, best)]
    for ratio in dict.fromkeys(one.replay_ratio for one in profile.joint):
        mine = [one for one in profile.joint if one.replay_ratio == ratio]
        found.append(_together(profile, max(mine, key=lambda one: one.env_steps_per_s * one.updates_per_s)))
    return [limit for limit in found if limit is not None]


def _sampling(profile: Profile) -> Limit:
    sampling = profile.sampling
    assert sampling is not None
    share = min(1.0, sampling.share_of_bare)
    resets = ""
    if sampling.reset_us is not None and sampling.episode_length:
        part = sampling.reset_us.mean / (sampling.reset_us.mean + sampling.episode_length * sampling.step_us.mean)
        resets = f"; resets take {part:.0%} of its time"
    return Limit(
        "one sampler",
        share,
        "sampling-bound",
        f"of what a bare loop over the environment makes; the rest is actor, checks and the replay buffer{resets}",
    )


def _best_update(profile: Profile) -> UpdateRate | None:
    """The fastest update at the batch size that the profile was measured for, or the one nearest to it."""
    if not profile.updates:
        return None
    wanted = profile.joint[0].batch_size if profile.joint else profile.updates[0].batch_size  # measured before others
    size = min((rate.batch_size for rate in profile.updates), key=lambda one: abs(math.log(one / wanted)))
    return max((rate for rate in profile.updates if rate.batch_size == size), key=lambda rate: rate.updates_per_s)


def _update(profile: Profile, rate: UpdateRate) -> Limit | None:
    """An update against the time of its matrix products, and of reading and writing its state once."""
    flops = max(
        (
            one.flops
            for one in profile.products
            if (one.device, one.dtype) == (rate.device, rate.precision) and one.threads <= rate.threads
        ),
        default=None,
    )
    if flops is None or not rate.flops:
        return None
    about = f"about {rate.flops / 1e9:.2g} GFLOP an update at batch size {rate.batch_size:,}"
    products = rate.flops / flops * rate.updates_per_s
    if products > 1.0:
        text = f"updates do matrix products {products:.1f} times as fast as those that were measured alone ({about})"
        return Limit("updates", None, NO_LIMIT, text)
    moved = 0.0
    bandwidths = [one.bytes_per_s for one in profile.memory if one.threads <= rate.threads]
    if rate.device == "cpu" and bandwidths:
        moved = rate.state_bytes / max(bandwidths) * rate.updates_per_s
    if products < moved <= 1.0:  # beyond 1 weights and moments stay in the caches, and memory does not matter
        return Limit("updates", moved, "memory-bound", "of the time goes into moving weights and Adam's moments")
    return Limit(
        "updates",
        products,
        "update-bound",
        f"of the time goes into matrix products ({about}, at the speed that large ones reach here); the rest is "
        "element-wise work and waiting",
    )


def _feeding(profile: Profile, rate: UpdateRate) -> Limit | None:
    """Rows that updates need against rows that can be drawn, and copied to a card."""
    transport = profile.transport
    if transport is None:
        return None
    frames = rate.frames_per_s
    drawn = frames / (transport.sample_256_rows_per_s if rate.batch_size < 2048 else transport.sample_8192_rows_per_s)
    link = next((one.bytes_per_s for one in profile.copies if one.target == rate.device), None)
    copied = 0.0 if link is None else frames * transport.row_bytes / link
    if copied > drawn:
        return _supply("copies to the card", copied, "copy-bound", "the link carries")
    return _supply("draws from the replay buffer", drawn, "memory-bound", "one thread can draw")


def _supply(name: str, needed: float, kind: str, source: str) -> Limit:
    """Rows that are needed, as a part of those that there can be."""
    if needed > 1.0:
        return Limit(name, None, kind, f"updates alone could use {needed:.1f} times the rows that {source}")
    return Limit(name, needed, kind if needed > LITTLE else NO_LIMIT, f"of what {source} is needed for the batches")


def _together(profile: Profile, joint: Joint) -> Limit:
    kind = "free" if joint.replay_ratio is None else f"replay ratio {joint.replay_ratio:g}"
    name = f"together, {kind}"
    reason = bound(profile, joint)
    of = "of the cores are in use: " if reason == "cores-bound" else "of what that side makes alone: "
    reached = _fraction(profile, joint, reason)
    return Limit(name, reached, reason, (of if reached is not None else "") + BOUNDS[reason])


def _fraction(profile: Profile, joint: Joint, reason: str) -> float | None:
    """Of what the side that bounds the run reaches alone; of the cores where they are the bound."""
    if reason == "cores-bound":
        return min(1.0, (joint.sampler_cpu + joint.learner_cpu) / profile.hardware.cores)
    updates = [
        rate.updates_per_s
        for rate in profile.updates
        if (rate.device, rate.batch_size, rate.precision) == (joint.device, joint.batch_size, joint.precision)
    ]
    sampling = [
        rate.env_steps_per_s
        for rate in (profile.sampling.rates if profile.sampling else ())
        if (rate.processes, rate.envs_per_process) == (joint.samplers, joint.envs_per_sampler)
    ]
    if reason == "update-bound" and updates:
        return min(1.0, joint.updates_per_s / max(updates))
    if reason in ("sampling-bound", "own limits") and sampling:
        return min(1.0, joint.env_steps_per_s / max(sampling))
    return None
