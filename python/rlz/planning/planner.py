"""The planner: from a profile and what the user wants to learn to how the run is placed, with a reason for each choice.

`plan` is a pure function. What it may choose are the options in `CHOICES`; everything else, replay ratio, learning
rate, precision and steps above all, is the user's and stays as it is, as is a batch size that is a number. An option
that was given wins.
"""

import math
from collections.abc import Collection, Iterable
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any

from rlz.learning.adaptation import KNEE, batch_sizes, knee
from rlz.planning.hints import bf16_gains
from rlz.planning.model import (
    DEFAULT_SPIN,
    Learning,
    Rates,
    Setting,
    is_of,
    predict,
    sampling_rate,
    score,
    setting_of,
    update_rate,
)
from rlz.planning.needs import CONTROLLER_BYTES, ENV_BYTES, LEARNER_BYTES, STEPPER_BYTES, replay_rows
from rlz.planning.plan import CHOICES, Plan, Prediction, shown
from rlz.planning.profile_model import Profile
from rlz.system.cores import ladder

if TYPE_CHECKING:
    from rlz.config import RunConfig

SAME = 0.97
"""Settings within this part of the best count as equally good; the simplest of them is taken."""

PROMISE = 1.15
"""A setting that was not measured together must promise so much more than the best one that was."""

WAY_GAIN = 1.05
"""Pinning, and other waits than the default, must have been measured to give this much: they take freedom from the
kernel, or cores from others."""

PUBLISH_SHARE = 0.02
"""Part of the learner's time that publishing may take, before it is done less often."""

LEAST_PUBLICATIONS = 50.0
"""Publications a second that are kept whatever they cost."""

MOST_ENVS = 65_536

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
    return _Planner(config, frozenset(kept), profile, memory).plan()


def options_given(config: "RunConfig", given: Collection[str]) -> tuple[str, ...]:
    """Options that a plan could choose, and the user has. `--batch-size auto` leaves it to the plan."""
    ours = "batch_size" if config.replay().plans_batch else None
    return tuple(name for name in CHOICES if name in given and name != ours)


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
    allowed = _allowed(config, envs)
    choices: dict[str, int | bool | str] = {"samplers": samplers, "num_envs": envs if allowed else samplers}
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
    planner = _Planner(config, frozenset(), profile, None)
    best: dict[Setting, float] = {}
    for setting, rates in planner.ranked():
        placed = Setting(setting.samplers, setting.envs_per_sampler, device=setting.device)
        best.setdefault(placed, score(planner.learning, rates))
    first = next(iter(best), Setting())
    usual = Setting(device=first.device)
    least = max(0.8 * best.get(first, 0.0), best.get(usual, 0.0) / SAME)
    return [usual, *(one for one, value in best.items() if value >= least and one != usual)][:most]


class _Planner:
    """The work of `plan` for one run."""

    def __init__(self, config: "RunConfig", given: frozenset[str], profile: Profile, memory: int | None) -> None:
        self.config = config
        self.given = given
        self.profile = profile
        self.learning = Learning.of(config)
        self.frames = self._frames()
        if self.frames and config.replay().plans_batch:
            self.learning = replace(self.learning, batch_size=knee(self.frames))
        hardware = profile.hardware
        self._joint = [one for one in profile.joint if is_of(profile, self.learning, one)]
        # By place, the number of threads that the learner settled on in the fastest measurement there.
        self._together = {
            (one.samplers, one.envs_per_sampler, one.device): one.threads
            for one in sorted(self._joint, key=lambda one: one.env_steps_per_s)
        }
        limits = [limit for limit in (hardware.memory_available, hardware.memory_limit) if limit]
        self.memory = memory if memory is not None else min(limits, default=1 << 62)

    @property
    def kept(self) -> tuple[str, ...]:
        """What was given, in the order of `CHOICES`."""
        return tuple(name for name in CHOICES if name in self.given)

    def plan(self) -> Plan:
        """The plan."""
        ranked = self.ranked()
        if not ranked:
            return _without_profile(self.config, self.kept, self.memory, self.profile.hardware.cores, self._missing())
        setting, rates = self._best(ranked)
        choices = self._choices(setting, rates)
        ours = {name: value for name, (value, _) in choices.items() if name not in self.given}
        size = self.learning.batch_size
        found = update_rate(self.profile, self.learning, setting.device, setting.threads)
        return Plan(
            basis="profile",
            machine=self.profile.hardware.fingerprint(),
            task="" if self.profile.workload is None else self.profile.workload.task,
            choices=ours,
            reasons={name: choices[name][1] for name in ours},
            given=self.kept,
            facts=self._facts(setting),
            prediction=None
            if self._unseen_card()
            else Prediction(
                env_steps_per_s=round(rates.env_steps, 2),
                updates_per_s=round(rates.updates, 2),
                frames_per_s=round(rates.updates * size, 1),
                bound=rates.bound,
                evidence=self._evidence(setting, rates),
                executor=found[1] if found is not None else "",
                learning=str(self.learning),
            ),
        )

    def _missing(self) -> str:
        """Why nothing can be planned."""
        if self.profile.sampling is None or not self.profile.updates:
            return "the profile has too few figures: `rlz profile --budget 120s` gives it more time"
        device = self._devices()[0]
        precision = self.learning.precision_on(device, self.profile.hardware)
        return f"the profile has no updates in {precision} on {device}"

    def ranked(self) -> list[tuple[Setting, Rates]]:
        """Every setting that may be chosen and has figures, the best first; equal ones: the simplest first."""
        found = []
        for setting in self._settings():
            rates = predict(self.profile, self.learning, setting)
            if rates is not None and rates.env_steps > 0:
                found.append((setting, rates))
        return sorted(found, key=lambda pair: (-score(self.learning, pair[1]), _effort(pair[0])))

    def _best(self, ranked: list[tuple[Setting, Rates]]) -> tuple[Setting, Rates]:
        measured = [pair for pair in ranked if pair[1].measured]
        if measured:
            spin = self.config.spin_count if "spin_count" in self.given else DEFAULT_SPIN
            usual = [pair for pair in measured if not pair[0].pinned and pair[0].spin_count == spin]
            if usual:
                worthwhile = WAY_GAIN * self._score(usual[0])
                measured = [pair for pair in measured if pair in usual or self._score(pair) >= worthwhile]
            most = self._score(measured[0])
            if self._score(ranked[0]) < PROMISE * most:
                ranked = measured
        most = self._score(ranked[0])
        return min((pair for pair in ranked if self._score(pair) >= SAME * most), key=lambda pair: _effort(pair[0]))

    def _score(self, pair: tuple[Setting, Rates]) -> float:
        return score(self.learning, pair[1])

    # -- what can be chosen ----------------------------------------------------------------------------------------

    def _settings(self) -> Iterable[Setting]:
        config = self.config
        joint = {setting_of(one) for one in self._joint}
        spins = {DEFAULT_SPIN} | {one.spin_count for one in self._joint}
        pins = {False} | {one.pinned for one in self._joint}
        spins = {config.spin_count} if "spin_count" in self.given else spins
        pins = {config.pin} if "pin" in self.given else pins
        for device in self._devices():
            ways = list(product(self._threads(device), sorted(spins), sorted(pins)))
            for (samplers, envs), way in product(self._samplers(), ways):
                setting = Setting(samplers, envs, *way, device)
                if setting in joint or self._sensible(setting):
                    yield setting

    def _sensible(self, setting: Setting) -> bool:
        """Whether a setting that was not measured together can be judged by the model."""
        cores, config = self.profile.hardware.cores, self.config
        place = setting.samplers, setting.envs_per_sampler, setting.device
        there = [other for other in self._together if other[2] == setting.device]
        if there and not self._threads_given:
            if place in there:
                return False  # the learner has tried the other numbers of threads there
            near = min(there, key=lambda other: _apart(place, other))
            if setting.threads != self._together[near]:
                return False  # what it found good is the best guess elsewhere: alone, more threads always look better
        if self.learning.replay_ratio is None:
            # Samplers that never wait leave no core to a learner, nor one to threads that wait for each other.
            if "samplers" not in self.given and setting.samplers > max(1, cores - 1):
                return False
            if not self._threads_given and setting.threads > max(1, cores - setting.samplers):
                return False
        # How waits and pinning turn out is known from measurements only.
        return setting.spin_count in (DEFAULT_SPIN, config.spin_count) and setting.pinned == config.pin

    @property
    def _threads_given(self) -> bool:
        """A number of threads was given; `auto` leaves it to measurements."""
        return "threads" in self.given and isinstance(self.config.threads, int)

    def _samplers(self) -> list[tuple[int, int]]:
        """Sampler processes and environments in each."""
        config, sampling = self.config, self.profile.sampling
        counts = [config.samplers] if "samplers" in self.given else ladder(self._most_samplers())
        if "num_envs" in self.given:
            return [(count, max(1, config.num_envs // count)) for count in counts if count <= config.num_envs]
        envs = sorted({rate.envs_per_process for rate in sampling.rates}) if sampling is not None else [1]
        return [(count, number) for count in counts for number in envs if number == 1 or self._envs_fit(count, number)]

    def _devices(self) -> list[str]:
        if self.config.devices is not None:
            return [",".join(self.config.devices)]
        if "device" in self.given and self.config.device != "auto":
            return ["cuda:0" if self.config.device == "cuda" else self.config.device]
        return list(dict.fromkeys(rate.device for rate in self.profile.updates)) or ["cpu"]

    def _threads(self, device: str) -> list[int]:
        if isinstance(self.config.threads, int) and self._threads_given:
            return [self.config.threads]
        if device != "cpu":
            return [1]
        counts = {rate.threads for rate in self.profile.updates if rate.device == device}
        return sorted(counts | {one.threads for one in self.profile.joint if one.device == device})

    def _most_samplers(self) -> int:
        """Sampler processes that cores and memory allow."""
        config, row = self.config, self.profile.transport.row_bytes if self.profile.transport is not None else 0
        steppers = 1 if config.eval_every > 0 else 0
        fixed = LEARNER_BYTES + CONTROLLER_BYTES + steppers * STEPPER_BYTES + replay_rows(config) * row
        room = (self.memory - fixed) // STEPPER_BYTES
        return max(1, min(self.profile.hardware.cores, int(room)))

    def _envs_fit(self, samplers: int, per_sampler: int) -> bool:
        """Rules of `RunConfig` and memory for more than one environment in a sampler."""
        count = samplers * per_sampler
        return _allowed(self.config, count) and (count - samplers) * ENV_BYTES < 0.1 * self.memory

    # -- choices and reasons ---------------------------------------------------------------------------------------

    def _choices(self, setting: Setting, rates: Rates) -> dict[str, tuple[int | bool | str, str]]:
        found: dict[str, tuple[int | bool | str, str]] = {
            "samplers": (setting.samplers, self._why_samplers(setting)),
            "num_envs": (setting.samplers * setting.envs_per_sampler, self._why_envs(setting)),
            "threads": self._live_threads(setting) or (f"auto_{setting.threads}", self._why_threads(setting)),
            "spin_count": (setting.spin_count, self._why_spin(setting)),
            "pin": (setting.pinned, self._why_pin(setting)),
            "updates_per_launch": self._launch(setting),
            "publish_every": self._publish(setting, rates),
        }
        if self.config.replay().plans_batch:
            found["batch_size"] = f"auto_{self.learning.batch_size}", self._why_batch_size()
        if self.config.devices is None:
            found["device"] = self._device(setting)
        return {name: found[name] for name in CHOICES if name in found}

    def _why_samplers(self, setting: Setting) -> str:
        one, here = (sampling_rate(self.profile, count, setting.envs_per_sampler) for count in (1, setting.samplers))
        if one is None or here is None:
            return "the one that was measured"
        if setting.samplers == 1:
            ratio = self.learning.replay_ratio
            if ratio is not None:
                need = self._predicted(setting)
                return f"one sampler makes {one:,.0f} env steps/s alone, the run needs {need:,.0f}"
            return f"one sampler makes {one:,.0f} env steps/s alone; more would take cores from the learner"
        return f"{setting.samplers} processes make {here:,.0f} env steps/s alone, one makes {one:,.0f}"

    def _frames(self) -> dict[int, float]:
        """Frames per second of updates alone by batch size, as far as they are known; {} for a size that is given."""
        if not self.config.replay().adapts:
            return {}
        largest = max((rate.batch_size for rate in self.profile.updates), default=0)
        found = {}
        for size in batch_sizes(min(largest, self.config.replay().capacity)):
            learning = replace(self.learning, batch_size=size)
            rates = [
                rate[0]
                for device in self._devices()[:1]
                for threads in self._threads(device)
                if (rate := update_rate(self.profile, learning, device, threads)) is not None
            ]
            if rates:
                found[size] = size * max(rates)
        return found

    def _why_batch_size(self) -> str:
        if not self.frames:
            return "updates of other sizes were not measured; the run measures them"
        most = max(self.frames.values())
        shares = ", ".join(f"{size}: {rate / most:.0%}" for size, rate in self.frames.items())
        return f"the smallest with {KNEE:.0%} of the most frames/s ({shares}), to begin with; the run goes on measuring"

    def _predicted(self, setting: Setting) -> float:
        rates = predict(self.profile, self.learning, setting)
        return 0.0 if rates is None else rates.env_steps

    def _why_envs(self, setting: Setting) -> str:
        one = sampling_rate(self.profile, setting.samplers, 1)
        here = sampling_rate(self.profile, setting.samplers, setting.envs_per_sampler)
        if setting.envs_per_sampler == 1 or one is None or here is None:
            if self.learning.replay_ratio is not None and one is not None and one > self._predicted(setting):
                return "one in each sampler: it is fast enough for the updates"
            return "one in each sampler: several in a process were not faster by enough"
        return f"{setting.envs_per_sampler} in each sampler make {here:,.0f} env steps/s alone, one makes {one:,.0f}"

    def _live_threads(self, setting: Setting) -> tuple[str, str] | None:
        """Leave threads to the learner where the profile knows only eager updates of a run that will be compiled."""
        found = update_rate(self.profile, self.learning, setting.device, setting.threads)
        if setting.device != "cpu" or not self.learning.compile or (found is not None and found[1] == "compiled"):
            return None
        return "auto", "measured live: the profile has eager updates only, and the run will compile them"

    def _device(self, setting: Setting) -> tuple[str, str]:
        if self._unseen_card():
            return "auto", "measured live: the profile has no updates on the card"
        return setting.device, self._why_device(setting)

    def _unseen_card(self) -> bool:
        """There is a card, the run may use it, and nothing is known of it."""
        free = "device" not in self.given or self.config.device == "auto"
        cards = bool(self.profile.hardware.gpus) and self.config.devices is None
        return free and cards and all(rate.device == "cpu" for rate in self.profile.updates)

    def _why_threads(self, setting: Setting) -> str:
        if setting.device != "cpu":
            return "the updates run on the card; one thread feeds it"
        rates = {
            count: found[0]
            for count in self._threads("cpu")
            if (found := update_rate(self.profile, self.learning, "cpu", count)) is not None
        }
        text = ", ".join(f"{count}: {rate:,.0f}" for count, rate in sorted(rates.items()))
        text = f"updates/s alone by threads are {text}"
        if setting.threads < max(rates, key=lambda count: rates[count], default=1):
            text += f"; beside the samplers {setting.threads} "
            text += "was at least as good" if self._together else "should be at least as good"
        return f"{text}. The run goes on measuring"

    def _why_spin(self, setting: Setting) -> str:
        if setting.threads == 1 or setting.device != "cpu":
            return "one thread never waits for another: the default"
        others = self._others(setting, "spin_count")
        return f"measured together, by turns: {others}" if others else "the default; others were not measured together"

    def _why_pin(self, setting: Setting) -> str:
        others = self._others(setting, "pinned")
        return f"measured together: {others}" if others else "the default; pinning was not measured here"

    def _others(self, setting: Setting, name: str) -> str:
        """Rates of joint measurements that differ in nothing but one thing, in words; "" with fewer than two."""
        rates: dict[Any, float] = {}
        for one in self._joint:
            same = one.samplers, one.envs_per_sampler, one.device
            if same != (setting.samplers, setting.envs_per_sampler, setting.device):
                continue
            if name != "pinned" and one.pinned != setting.pinned:
                continue
            if name != "spin_count" and one.spin_count != setting.spin_count:
                continue
            rates[getattr(one, name)] = one.env_steps_per_s
        if len(rates) < 2:
            return ""
        return ", ".join(f"{shown(value)}: {rate:,.0f} env steps/s" for value, rate in sorted(rates.items()))

    def _why_device(self, setting: Setting) -> str:
        found = {device: rate for device in self._devices() if (rate := self._update_rate(device)) is not None}
        if len(found) < 2:
            return "the only one that was measured"
        return "updates/s alone: " + ", ".join(f"{device}: {rate:,.0f}" for device, rate in found.items())

    def _update_rate(self, device: str) -> float | None:
        """Updates per second alone, with the best number of threads."""
        rates = (update_rate(self.profile, self.learning, device, count) for count in self._threads(device))
        return max((rate[0] for rate in rates if rate is not None), default=None)

    def _launch(self, setting: Setting) -> tuple[int | str, str]:
        """Updates of a launch; within a given slack, since a longer one would not be granted."""
        if setting.device == "cpu":
            return 1, "the CPU makes one update after the other"
        precision = self.learning.precision_on(setting.device, self.profile.hardware)
        most = self.config.replay().slack or math.inf
        size = (setting.device, precision, self.learning.batch_size)
        found = [rate for rate in self.profile.updates if (rate.device, rate.precision, rate.batch_size) == size]
        compiled = {rate.launch: rate.updates_per_s for rate in found if rate.executor == "compiled"}
        eager = {rate.launch: rate.updates_per_s for rate in found if rate.executor == "eager"}
        rates = {count: rate for count, rate in (compiled or eager).items() if count <= most}
        if len(rates) < 2:
            return "auto", "as many as keep the card busy; launches of several lengths were not measured"
        best = min(count for count, rate in rates.items() if rate >= SAME * max(rates.values()))
        text = ", ".join(f"{count}: {rate:,.0f}" for count, rate in sorted(rates.items()))
        return best, f"updates/s alone by updates in a launch are {text}"

    def _publish(self, setting: Setting, rates: Rates) -> tuple[int | str, str]:
        """As often as it costs little: the samplers' actor is then as new as it can be."""
        if setting.device != "cpu":
            return "auto", "after every launch, some hundred times a second at most, copied beside the updates"
        transport = self.profile.transport
        if transport is None:
            return 1, "after every update, so that the samplers' actor is as new as it can be"
        share = transport.publish_us * 1e-6 * rates.updates
        if share <= PUBLISH_SHARE:
            return 1, f"publishing after every update takes {share:.1%} of the learner's time"
        wanted = math.ceil(share / PUBLISH_SHARE)
        every = max(1, min(wanted, int(rates.updates / LEAST_PUBLICATIONS)))
        return every, (
            f"after every update it would take {share:.0%} of the learner's time, so {share / every:.1%}; the samplers "
            f"still get {rates.updates / every:,.0f} actors a second"
        )

    def _facts(self, setting: Setting) -> dict[str, str]:
        facts = {
            "sampler_policy": "on the CPU, in each sampler: its call is shorter than any way to a card",
            "evaluator": "on the CPU, a process of its own at evaluations",
            "prefetch": "none: the learner draws as it goes" if setting.device == "cpu" else "2 batches ahead, pinned",
            "executor": self._executor(setting),
            "cores": self._cores(setting),
        }
        gains = bf16_gains(self.profile)
        if setting.device in gains and self.config.precision != "bf16":
            gain, size = gains[setting.device]
            facts["precision"] = (
                f"bf16 was measured {gain:.1f} times as fast on {setting.device} (batch {size}): --precision bf16 is "
                "the user's choice, since it changes the arithmetic"
            )
        if setting.device.startswith("cuda"):
            facts["replay_device"] = {
                "auto": "a copy of the replay buffer on the card where it fits, else pinned rows; the run says which",
                "host": "given: rows come from the host, pinned",
                "device": "given: a copy of the replay buffer on the card",
            }[self.config.replay_device]
        sampling, transport = self.profile.sampling, self.profile.transport
        if sampling is not None and sampling.actor:
            actor = sampling.actor[0]
            facts["sampler_policy"] += f" ({actor.us:.0f} us; a step of the environment {sampling.step_us.mean:.0f} us)"
        if transport is not None:
            rows = replay_rows(self.config)
            facts["replay_buffer"] = (
                f"{rows:,} rows of {transport.row_bytes} bytes, {rows * transport.row_bytes / 2**20:,.0f} MiB"
            )
        if self.profile.hardware.gpus and self.config.devices is None:
            facts["critic_and_actor"] = (
                "on one device: two change what is learned a little, so --devices is the user's choice"
            )
        most = self._most_samplers()
        if most < self.profile.hardware.cores and "samplers" not in self.given:
            facts["memory"] = (
                f"there is room for {most} sampler{'s' * (most > 1)} of about {STEPPER_BYTES // 2**20} MiB"
            )
        return facts

    def _executor(self, setting: Setting) -> str:
        if not self.config.compile:
            return "eager: --no-compile"
        mine = [
            rate for rate in self.profile.updates if (rate.device, rate.threads) == (setting.device, setting.threads)
        ]
        precision = self.learning.precision_on(setting.device, self.profile.hardware)
        rates = {
            rate.executor: rate.updates_per_s
            for rate in mine
            if (rate.batch_size, rate.precision) == (self.learning.batch_size, precision)
        }
        text = "compiled, from the cache or beside the training"
        return (
            f"{text}: {rates['compiled']:,.0f} updates/s alone, eager {rates['eager']:,.0f}" if len(rates) > 1 else text
        )

    def _cores(self, setting: Setting) -> str:
        threads = f"{setting.threads} thread{'s' * (setting.threads > 1)} of the learner"
        workers = f"{setting.samplers} sampler{'s' * (setting.samplers > 1)} and {threads}"
        if setting.pinned:
            return f"{workers} have cores of their own"
        return f"the kernel places {workers} on {self.profile.hardware.cores} usable cores"

    def _evidence(self, setting: Setting, rates: Rates) -> str:
        date = self.profile.date[:10]
        if rates.measured:
            return f"samplers and learner were measured together in this setting ({date})"
        if self.profile.joint:
            return f"from samplers and learner alone, corrected by the nearest measurement of both together ({date})"
        return f"from samplers and learner alone; both together were not measured ({date}), so it may be too high"


def _allowed(config: "RunConfig", envs: int) -> bool:
    """Whether a run may have so many environments: each needs a row, and n-step returns some rows before updates."""
    data = config.replay()
    pending = envs * (data.n_step - 1)
    return envs <= min(data.capacity, MOST_ENVS) and (not pending or data.starts > pending)


def _apart(one: tuple[int, int, str], other: tuple[int, int, str]) -> float:
    """Distance of two places (samplers, environments in each) on a device."""
    return abs(math.log2(one[0] / other[0])) + 0.5 * abs(math.log2(one[1] / other[1]))


def _effort(setting: Setting) -> tuple[float, ...]:
    """What is simpler comes first: fewer processes and threads, less away from the defaults."""
    return (
        setting.samplers,
        setting.envs_per_sampler,
        setting.pinned,
        setting.threads,
        setting.spin_count != DEFAULT_SPIN,
        setting.device != "cpu",
    )
