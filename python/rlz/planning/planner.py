"""The planner: from a profile and what the user wants to learn to how the run is placed, with a reason for each choice.

`plan` is a pure function. What it may choose are the options in `CHOICES`; everything else, replay ratio, learning
rate, precision and steps above all, is the user's and stays as it is, as is a batch size that is a number. An option
that was given wins.
"""

from collections.abc import Collection
from typing import TYPE_CHECKING

from rlz.answers import Replay
from rlz.planning.candidates import MOST_ENVS, Candidates, allowed, effort
from rlz.planning.model import DEFAULT_SPIN, Rates, Setting, score, update_rate
from rlz.planning.needs import STEPPER_BYTES
from rlz.planning.plan import CHOICES, Plan, Prediction
from rlz.planning.profile_model import Profile
from rlz.planning.reasons import SAME, Reasons

if TYPE_CHECKING:
    from rlz.config import RunConfig

PROMISE = 1.15
"""A setting that was not measured together must promise so much more than the best one that was."""

WAY_GAIN = 1.05
"""Pinning, other waits than the default and an inference server must have been measured to give this much: they take
freedom from the kernel, or cores from others."""

ENVS_WITHOUT_PROFILE = 4
"""Environments in a sampler of throughput mode, where nothing is known."""


def plan(
    config: "RunConfig",
    given: Collection[str] = (),
    profile: Profile | None = None,
    *,
    memory: int | None = None,
    cores: int = 1,
) -> Plan:
    """Choose how to place a run.

    Parameters
    ----------
    config : of the run; options that were not given hold defaults.
    given : names of options that were given; they keep their value.
    profile : of this machine for this workload; None: the defaults, on which everything works, and live measurement.
    memory : bytes that the run may still take; default: what the profile says.
    cores : that this process may use, where there is no profile.

    Returns
    -------
    The plan. Without a prediction where the profile has too few figures for one.
    """
    kept = options_given(config, given)
    if config.mode == "serial":
        return Plan(basis="serial", given=kept)
    if profile is None:
        return _without_profile(config, kept, memory, cores, "no profile for this run yet (`rlz profile` makes one)")
    return _of_profile(Candidates(config, frozenset(kept), profile, memory), kept)


def options_given(config: "RunConfig", given: Collection[str]) -> tuple[str, ...]:
    """Options that a plan could choose, and the user has. `--batch-size auto` leaves it to the plan."""
    data = config.data()
    ours = "batch_size" if isinstance(data, Replay) and data.plans_batch else None
    auto = "inference" if config.inference == "auto" else None
    return tuple(name for name in CHOICES if name in given and name not in (ours, auto))


def _defaults(config: "RunConfig", given: tuple[str, ...], profile: str) -> Plan:
    """The values that the options have, on which everything works. `profile`: why it is not used."""
    ours = [name for name in CHOICES if name not in given and name != "batch_size"]
    return Plan(
        basis="defaults",
        choices={name: getattr(config, name) for name in ours},
        reasons={name: "the default" if name != "threads" else "measured live, on updates" for name in ours},
        given=given,
        facts={"profile": profile},
    )


def _without_profile(config: "RunConfig", given: tuple[str, ...], memory: int | None, cores: int, why: str) -> Plan:
    """The defaults; in throughput mode samplers on half of the cores, which it may pause. `why` there is no profile."""
    plan = _defaults(config, given, why)
    if not config.replay().adapts:
        return plan
    samplers = config.samplers
    if "samplers" not in given:
        samplers = max(1, min(cores // 2, MOST_ENVS, (memory or 1 << 62) // (4 * STEPPER_BYTES)))
        if "num_envs" in given:
            samplers = min(samplers, config.num_envs)
    envs = ENVS_WITHOUT_PROFILE * samplers
    choices: dict[str, int | bool | str] = {
        "samplers": samplers,
        "num_envs": envs if allowed(config, envs) else samplers,
    }
    reasons = {
        "samplers": f"half of {cores} cores; the learner has the others",
        "num_envs": f"{ENVS_WITHOUT_PROFILE} in each sampler at most; the run lets fewer of them step where that pays",
    }
    ours = {name: value for name, value in choices.items() if name not in given}
    return plan.model_copy(
        update={"choices": plan.choices | ours, "reasons": plan.reasons | {name: reasons[name] for name in ours}}
    )


def open_settings(config: "RunConfig", profile: Profile, most: int = 4) -> list[Setting]:
    """Settings that figures taken alone leave open, the most promising first: worth measuring together.

    The defaults are always among them. Threads are left to the learner, which measures its own.
    """
    candidates = Candidates(config, frozenset(), profile, None)
    best: dict[Setting, float] = {}
    for setting, rates in candidates.ranked():
        placed = Setting(setting.samplers, setting.envs_per_sampler, device=setting.device, inference=config.acts())
        best.setdefault(placed, score(candidates.learning, rates))
    first = next(iter(best), Setting())
    usual = Setting(device=first.device, inference=config.acts())
    least = max(0.8 * best.get(first, 0.0), best.get(usual, 0.0) / SAME)
    return [usual, *(one for one, value in best.items() if value >= least and one != usual)][:most]


def _of_profile(of: Candidates, kept: tuple[str, ...]) -> Plan:
    ranked = of.ranked()
    if not ranked:
        return _without_profile(of.config, kept, of.memory, of.profile.hardware.cores, _missing(of))
    setting, rates = _best(of, ranked)
    reasons = Reasons(of)
    choices = reasons.choices(setting, rates)
    ours = {name: value for name, (value, _) in choices.items() if name not in of.given}
    size = of.learning.batch_size
    found = update_rate(of.profile, of.learning, setting.device, setting.threads)
    return Plan(
        basis="profile",
        machine=of.profile.hardware.fingerprint(),
        task="" if of.profile.workload is None else of.profile.workload.task,
        choices=ours,
        reasons={name: choices[name][1] for name in ours},
        given=kept,
        prediction=None
        if reasons.unseen_card()
        else Prediction(
            env_steps_per_s=round(rates.env_steps, 2),
            updates_per_s=round(rates.updates, 2),
            frames_per_s=round(rates.updates * size, 1),
            bound=rates.bound,
            evidence=_evidence(of.profile, rates),
            executor=found[1] if found is not None else "",
            learning=str(of.learning),
        ),
    )


def _missing(of: Candidates) -> str:
    """Why nothing can be planned."""
    if of.profile.sampling is None or not of.profile.updates:
        return "the profile has too few figures: `rlz profile --budget 120s` gives it more time"
    device = of.devices()[0]
    precision = of.learning.precision_on(device, of.profile.hardware)
    return f"the profile has no updates in {precision} on {device}"


def _best(of: Candidates, ranked: list[tuple[Setting, Rates]]) -> tuple[Setting, Rates]:
    measured = [pair for pair in ranked if pair[1].measured]
    if measured:
        spin = of.config.spin_count if "spin_count" in of.given else DEFAULT_SPIN
        usual = [
            pair
            for pair in measured
            if (pair[0].pinned, pair[0].spin_count, pair[0].inference) == (False, spin, of.inference)
        ]
        if usual:
            worthwhile = WAY_GAIN * _score(of, usual[0])
            measured = [pair for pair in measured if pair in usual or _score(of, pair) >= worthwhile]
        most = _score(of, measured[0])
        if _score(of, ranked[0]) < PROMISE * most:
            ranked = measured
    most = _score(of, ranked[0])
    return min((pair for pair in ranked if _score(of, pair) >= SAME * most), key=lambda pair: effort(pair[0]))


def _score(of: Candidates, pair: tuple[Setting, Rates]) -> float:
    return score(of.learning, pair[1])


def _evidence(profile: Profile, rates: Rates) -> str:
    date = profile.date[:10]
    if rates.measured:
        return f"samplers and learner were measured together in this setting ({date})"
    if profile.joint:
        return f"from samplers and learner alone, corrected by the nearest measurement of both together ({date})"
    return f"from samplers and learner alone; both together were not measured ({date}), so it may be too high"
