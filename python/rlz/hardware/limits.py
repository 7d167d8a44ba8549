"""What bounds each figure of a profile, and how much of it is reached, in words for people who are new to this."""

from itertools import pairwise
from typing import NamedTuple

from rlz.hardware.model import BOUNDS, bound
from rlz.hardware.profile_model import Joint, Profile, UpdateRate


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
    size = min((rate.batch_size for rate in profile.updates), default=0)
    rates = [rate for rate in profile.updates if rate.batch_size == size]
    return max(rates, key=lambda rate: rate.updates_per_s, default=None)


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
    if flops is None or profile.workload is None or profile.transport is None:
        return None
    state, work = _state_bytes(profile), _flops_per_frame(profile) * rate.batch_size
    products = work / flops * rate.updates_per_s
    moved = 0.0
    if rate.device == "cpu" and profile.memory:
        bandwidth = max(one.bytes_per_s for one in profile.memory if one.threads <= rate.threads)
        moved = 2 * state / bandwidth * rate.updates_per_s
    if moved > products:
        text = "of the time goes into moving weights and Adam's moments"
        return Limit("updates", min(1.0, moved), "memory-bound", text)
    return Limit(
        "updates",
        min(1.0, products),
        "update-bound",
        f"of the time goes into matrix products (about {work / 1e9:.2g} GFLOP an update, at the speed that large ones "
        "reach here); the rest is element-wise work and waiting",
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
        return Limit(
            "copies to the card", min(1.0, copied), "copy-bound", "of what the link carries is needed for the batches"
        )
    return Limit(
        "draws from the replay buffer",
        min(1.0, drawn),
        "memory-bound",
        "of what one thread can draw is needed for the batches",
    )


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


def _weights(profile: Profile) -> tuple[float, float]:
    """Weights of the actor and of one critic; the widths of observation and action follow from the row and actor."""
    assert profile.workload is not None
    assert profile.transport is not None
    hidden = profile.workload.hidden
    inner = sum(one * two for one, two in pairwise(hidden))
    actor = profile.transport.parameter_bytes / 4
    # What is no inner layer of the actor is input and output; a critic has the action as further inputs instead.
    return actor, max(inner, actor)


def _flops_per_frame(profile: Profile) -> float:
    """Of one SAC update, in the leanest form: 2 for a weight in a forward pass, 4 in a backward one.

    Critics: actor and target critics forward, two critics there and back. Actor: itself there and back, critics there
    and back to the action only.
    """
    actor, critic = _weights(profile)
    return 2 * actor + 2 * 2 * critic + 6 * 2 * critic + 6 * actor + 4 * 2 * critic


def _state_bytes(profile: Profile) -> float:
    """Weights, gradients and moments of actor and two critics, and the targets."""
    actor, critic = _weights(profile)
    return 4 * (4 * actor + 5 * 2 * critic)
