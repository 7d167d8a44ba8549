"""What a plan sets for a setting, and why: one reason for each choice, with the numbers that decided."""

import math
from dataclasses import replace
from typing import Any

from rlz.learning.adaptation import KNEE
from rlz.planning.candidates import Candidates
from rlz.planning.model import Rates, Setting, predict, sampling_rate, update_rate
from rlz.planning.needs import STEPPER_BYTES
from rlz.planning.plan import CHOICES, shown
from rlz.planning.profile_model import Inference, Profile

SAME = 0.97
"""Settings within this part of the best count as equally good; the simplest of them is taken."""

PUBLISH_SHARE = 0.02
"""Part of the learner's time that publishing may take, before it is done less often."""

LEAST_PUBLICATIONS = 50.0
"""Publications a second that are kept whatever they cost."""

ACTING_SHARE = 0.1
"""Part of a sampler's time that choosing actions takes, below which a server is not worth a measurement."""

Choice = tuple[int | bool | str, str]
"""A value and its reason."""


def acting_share(profile: Profile, envs: int) -> float | None:
    """Part of a sampler's time that choosing actions takes, by the nearest measured number of environments."""
    sampling = profile.sampling
    if sampling is None or not sampling.actor:
        return None
    near = min(sampling.actor, key=lambda one: abs(one.envs - envs))
    return near.us / (near.us + near.envs * sampling.step_us.mean)


def _other(inference: Inference) -> Inference:
    return "central" if inference == "inline" else "inline"


class Reasons:
    """For one run."""

    def __init__(self, candidates: Candidates) -> None:
        self._of = candidates
        self._config, self._profile, self._learning = candidates.config, candidates.profile, candidates.learning

    def choices(self, setting: Setting, rates: Rates) -> dict[str, Choice]:
        """Every option that the plan sets, in the order of `CHOICES`."""
        found: dict[str, Choice] = {
            "samplers": (setting.samplers, self._why_samplers(setting)),
            "num_envs": (setting.samplers * setting.envs_per_sampler, self._why_envs(setting)),
            "threads": self._live_threads(setting) or (f"auto_{setting.threads}", self._why_threads(setting)),
            "spin_count": (setting.spin_count, self._why_spin(setting)),
            "pin": (setting.pinned, self._why_pin(setting)),
            "updates_per_launch": self._launch(setting),
            "publish_every": self._publish(setting, rates),
            "inference": (setting.inference, self._why_inference(setting, rates)),
        }
        if self._config.replay().plans_batch:
            found["batch_size"] = f"auto_{self._learning.batch_size}", self._why_batch_size()
        if self._config.devices is None:
            found["device"] = self._device(setting)
        return {name: found[name] for name in CHOICES if name in found}

    def _why_samplers(self, setting: Setting) -> str:
        one, here = (sampling_rate(self._profile, count, setting.envs_per_sampler) for count in (1, setting.samplers))
        if one is None or here is None:
            return "the one that was measured"
        most = self._of.most_samplers()
        if setting.samplers == most < self._profile.hardware.cores:
            return f"there is memory for {most}, of about {STEPPER_BYTES // 2**20} MiB each"
        if setting.samplers == 1:
            if self._learning.replay_ratio is not None:
                need = self._predicted(setting)
                return f"one sampler makes {one:,.0f} env steps/s alone, the run needs {need:,.0f}"
            return f"one sampler makes {one:,.0f} env steps/s alone; more would take cores from the learner"
        return f"{setting.samplers} processes make {here:,.0f} env steps/s alone, one makes {one:,.0f}"

    def _why_batch_size(self) -> str:
        if not self._of.frames:
            return "updates of other sizes were not measured; the run measures them"
        most = max(self._of.frames.values())
        shares = ", ".join(f"{size}: {rate / most:.0%}" for size, rate in self._of.frames.items())
        return f"the smallest with {KNEE:.0%} of the most frames/s ({shares}), to begin with; the run goes on measuring"

    def _predicted(self, setting: Setting) -> float:
        rates = predict(self._profile, self._learning, setting)
        return 0.0 if rates is None else rates.env_steps

    def _why_envs(self, setting: Setting) -> str:
        one = sampling_rate(self._profile, setting.samplers, 1)
        here = sampling_rate(self._profile, setting.samplers, setting.envs_per_sampler)
        if setting.envs_per_sampler == 1 or one is None or here is None:
            if self._learning.replay_ratio is not None and one is not None and one > self._predicted(setting):
                return "one in each sampler: it is fast enough for the updates"
            return "one in each sampler: several in a process were not faster by enough"
        return f"{setting.envs_per_sampler} in each sampler make {here:,.0f} env steps/s alone, one makes {one:,.0f}"

    def _why_inference(self, setting: Setting, rates: Rates) -> str:
        share, other = acting_share(self._profile, setting.envs_per_sampler), _other(setting.inference)
        there = predict(self._profile, self._learning, replace(setting, inference=other, pinned=False))
        if there is not None and there.measured and rates.measured:
            return f"{rates.env_steps:,.0f} env steps/s, with {other} {there.env_steps:,.0f}: measured together"
        if share is None or share >= ACTING_SHARE:
            return "a server was not measured beside this"
        return f"choosing actions takes {share:.0%} of a sampler's time, and no server could save more"

    def _live_threads(self, setting: Setting) -> tuple[str, str] | None:
        """Leave threads to the learner where the profile knows only eager updates of a run that will be compiled."""
        found = update_rate(self._profile, self._learning, setting.device, setting.threads)
        if setting.device != "cpu" or not self._learning.compile or (found is not None and found[1] == "compiled"):
            return None
        return "auto", "measured live: the profile has eager updates only, and the run will compile them"

    def _device(self, setting: Setting) -> tuple[str, str]:
        if self.unseen_card():
            return "auto", "measured live: the profile has no updates on the card"
        return setting.device, self._why_device(setting)

    def unseen_card(self) -> bool:
        """There is a card, the run may use it, and nothing is known of it."""
        free = "device" not in self._of.given or self._config.device == "auto"
        cards = bool(self._profile.hardware.gpus) and self._config.devices is None
        return free and cards and all(rate.device == "cpu" for rate in self._profile.updates)

    def _why_threads(self, setting: Setting) -> str:
        if setting.device != "cpu":
            return "the updates run on the card; one thread feeds it"
        rates = {
            count: found[0]
            for count in self._of.threads("cpu")
            if (found := update_rate(self._profile, self._learning, "cpu", count)) is not None
        }
        text = ", ".join(f"{count}: {rate:,.0f}" for count, rate in sorted(rates.items()))
        text = f"updates/s alone by threads are {text}"
        if setting.threads < max(rates, key=lambda count: rates[count], default=1):
            text += f"; beside the samplers {setting.threads} "
            text += "was at least as good" if self._of.together else "should be at least as good"
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
        for one in self._of.joint:
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
        found = {device: rate for device in self._of.devices() if (rate := self._of.update_rate(device)) is not None}
        if len(found) < 2:
            return "the only one that was measured"
        return "updates/s alone: " + ", ".join(f"{device}: {rate:,.0f}" for device, rate in found.items())

    def _launch(self, setting: Setting) -> tuple[int | str, str]:
        """Updates of a launch; within a given slack, since a longer one would not be granted."""
        if setting.device == "cpu":
            return 1, "the CPU makes one update after the other"
        precision = self._learning.precision_on(setting.device, self._profile.hardware)
        most = self._config.replay().slack or math.inf
        size = (setting.device, precision, self._learning.batch_size)
        found = [rate for rate in self._profile.updates if (rate.device, rate.precision, rate.batch_size) == size]
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
        transport = self._profile.transport
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
