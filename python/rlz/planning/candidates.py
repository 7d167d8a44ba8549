"""The settings that a run may have, as a profile and the options that were given allow, and what each would reach."""

import math
from collections.abc import Iterable
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING

from rlz.learning.adaptation import batch_sizes, knee
from rlz.planning.model import (
    DEFAULT_SPIN,
    Learning,
    Rates,
    Setting,
    is_of,
    predict,
    score,
    setting_of,
    update_rate,
)
from rlz.planning.needs import CONTROLLER_BYTES, ENV_BYTES, LEARNER_BYTES, STEPPER_BYTES, replay_rows
from rlz.planning.profile_model import Inference, Profile
from rlz.system.cores import ladder

if TYPE_CHECKING:
    from rlz.config import RunConfig

MOST_ENVS = 65_536


class Candidates:
    """Settings for one run.

    Attributes
    ----------
    learning : what the run learns; a batch size that is left to the plan is the one that was measured best.
    frames : frames per second of updates alone by batch size, where the batch size is left to the plan.
    joint : measurements of both sides together that are of this learning.
    together : by place, the threads that the learner settled on in the fastest of them there.
    memory : bytes that the run may take.
    """

    def __init__(self, config: "RunConfig", given: frozenset[str], profile: Profile, memory: int | None) -> None:
        self.config = config
        self.given = given
        self.profile = profile
        self.learning = Learning.of(config)
        self.frames = self._frames()
        if self.frames and config.replay().plans_batch:
            self.learning = replace(self.learning, batch_size=knee(self.frames))
        hardware = profile.hardware
        self.joint = [one for one in profile.joint if is_of(profile, self.learning, one)]
        self.together = {
            (one.samplers, one.envs_per_sampler, one.device): one.threads
            for one in sorted(self.joint, key=lambda one: one.env_steps_per_s)
        }
        limits = [limit for limit in (hardware.memory_available, hardware.memory_limit) if limit]
        self.memory = memory if memory is not None else min(limits, default=1 << 62)

    def ranked(self) -> list[tuple[Setting, Rates]]:
        """Every setting that may be chosen and has figures, the best first; equal ones: the simplest first."""
        found = []
        for setting in self._settings():
            rates = predict(self.profile, self.learning, setting)
            if rates is not None and rates.env_steps > 0:
                found.append((setting, rates))
        return sorted(found, key=lambda pair: (-score(self.learning, pair[1]), effort(pair[0])))

    def _settings(self) -> Iterable[Setting]:
        config = self.config
        joint = {setting_of(one) for one in self.joint}
        spins = {DEFAULT_SPIN} | {one.spin_count for one in self.joint}
        pins = {False} | {one.pinned for one in self.joint}
        spins = {config.spin_count} if "spin_count" in self.given else spins
        pins = {config.pin} if "pin" in self.given else pins
        inferences = {self.inference} | {one.inference for one in self.joint if config.inference == "auto"}
        for device in self.devices():
            ways = list(product(self.threads(device), sorted(spins), sorted(pins), [device], sorted(inferences)))
            for (samplers, envs), way in product(self._samplers(), ways):
                setting = Setting(samplers, envs, *way)
                if setting in joint or self._sensible(setting):
                    yield setting

    def _sensible(self, setting: Setting) -> bool:
        """Whether a setting that was not measured together can be judged by the model."""
        cores, config = self.profile.hardware.cores, self.config
        place = setting.samplers, setting.envs_per_sampler, setting.device
        there = [other for other in self.together if other[2] == setting.device]
        if there and not self.threads_given:
            if place in there:
                return False  # the learner has tried the other numbers of threads there
            near = min(there, key=lambda other: _apart(place, other))
            if setting.threads != self.together[near]:
                return False  # what it found good is the best guess elsewhere: alone, more threads always look better
        if self.learning.replay_ratio is None:
            # Samplers that never wait leave no core to a learner, nor one to threads that wait for each other.
            if "samplers" not in self.given and setting.samplers > max(1, cores - 1):
                return False
            if not self.threads_given and setting.threads > max(1, cores - setting.samplers):
                return False
        # How waits, pinning and a server turn out is known from measurements only.
        usual = setting.spin_count in (DEFAULT_SPIN, config.spin_count) and setting.pinned == config.pin
        return usual and setting.inference == self.inference

    @property
    def inference(self) -> Inference:
        """Where actions are chosen unless measurements say otherwise."""
        return self.config.acts()

    @property
    def threads_given(self) -> bool:
        """A number of threads was given; `auto` leaves it to measurements."""
        return "threads" in self.given and isinstance(self.config.threads, int)

    def _samplers(self) -> list[tuple[int, int]]:
        """Sampler processes and environments in each."""
        config, sampling = self.config, self.profile.sampling
        counts = [config.samplers] if "samplers" in self.given else ladder(self.most_samplers())
        if "num_envs" in self.given:
            most = config.num_envs // config.env_groups
            return [(count, config.num_envs // count) for count in counts if count <= most]
        measured = {rate.envs_per_process for rate in sampling.rates} if sampling is not None else {1}
        envs = sorted({max(number, config.env_groups) for number in measured})
        return [(count, number) for count in counts for number in envs if number == 1 or self._envs_fit(count, number)]

    def devices(self) -> list[str]:
        """Devices that the run may use and the profile knows; a card that was given, whether it is known or not."""
        if self.config.devices is not None:
            return [",".join(self.config.devices)]
        if "device" in self.given and self.config.device != "auto":
            return ["cuda:0" if self.config.device == "cuda" else self.config.device]
        return list(dict.fromkeys(rate.device for rate in self.profile.updates)) or ["cpu"]

    def threads(self, device: str) -> list[int]:
        """Numbers of threads that were measured on a device."""
        if isinstance(self.config.threads, int) and self.threads_given:
            return [self.config.threads]
        if device != "cpu":
            return [1]
        counts = {rate.threads for rate in self.profile.updates if rate.device == device}
        return sorted(counts | {one.threads for one in self.profile.joint if one.device == device})

    def most_samplers(self) -> int:
        """Sampler processes that cores and memory allow."""
        config, row = self.config, self.profile.transport.row_bytes if self.profile.transport is not None else 0
        steppers = 1 if config.eval_every > 0 else 0
        fixed = LEARNER_BYTES + CONTROLLER_BYTES + steppers * STEPPER_BYTES + replay_rows(config) * row
        room = (self.memory - fixed) // STEPPER_BYTES
        return max(1, min(self.profile.hardware.cores, int(room)))

    def _envs_fit(self, samplers: int, per_sampler: int) -> bool:
        """Rules of `RunConfig` and memory for more than one environment in a sampler."""
        count = samplers * per_sampler
        return allowed(self.config, count) and (count - samplers) * ENV_BYTES < 0.1 * self.memory

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
                for device in self.devices()[:1]
                for threads in self.threads(device)
                if (rate := update_rate(self.profile, learning, device, threads)) is not None
            ]
            if rates:
                found[size] = size * max(rates)
        return found

    def update_rate(self, device: str) -> float | None:
        """Updates per second alone, with the best number of threads."""
        rates = (update_rate(self.profile, self.learning, device, count) for count in self.threads(device))
        return max((rate[0] for rate in rates if rate is not None), default=None)


def allowed(config: "RunConfig", envs: int) -> bool:
    """Whether a run may have so many environments: each needs a row, and n-step returns some rows before updates."""
    data = config.replay()
    pending = envs * (data.n_step - 1)
    return envs <= min(data.capacity, MOST_ENVS) and (not pending or data.starts > pending)


def _apart(one: tuple[int, int, str], other: tuple[int, int, str]) -> float:
    """Distance of two places (samplers, environments in each) on a device."""
    return abs(math.log2(one[0] / other[0])) + 0.5 * abs(math.log2(one[1] / other[1]))


def effort(setting: Setting) -> tuple[float, ...]:
    """What is simpler comes first: fewer processes and threads, less away from the defaults."""
    return (
        setting.samplers,
        setting.envs_per_sampler,
        setting.pinned,
        setting.threads,
        setting.spin_count != DEFAULT_SPIN,
        setting.inference != "inline",
        setting.device != "cpu",
    )
