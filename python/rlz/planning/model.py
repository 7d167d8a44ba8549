"""How fast a setting will be, from a profile: what was measured where it was, else a model that measurements correct.

The model: samplers make S steps a second alone, the learner U updates, and cores are shared by whoever wants one. An
update is worth `threads` cores while it runs, since threads that wait for each other spin. Held at a replay ratio both
sides go at the pace of the slower one, or at what the cores allow; free, each gets its part of the cores. The nearest
joint measurement then says how much less than that both reach together (caches, memory, wake-ups).
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlz.learning.auto_precision import AMPERE, auto_precision
from rlz.planning.profile_model import Inference, Joint, Profile, UpdateRate
from rlz.system.detect import Hardware

if TYPE_CHECKING:
    from rlz.config import RunConfig

DEFAULT_SPIN = 1000
"""Spin count of a learner that nobody has told anything else (the option's default)."""


@dataclass(frozen=True)
class Learning:
    """What the user decides, as far as rates depend on it. `replay_ratio` None: free."""

    batch_size: int
    replay_ratio: float | None
    precision: str
    compile: bool

    @classmethod
    def of(cls, config: "RunConfig") -> "Learning":
        """Those of a run."""
        data = config.replay()
        ratio = None if data.ratio is None else data.ratio[0] / data.ratio[1]
        return cls(data.batch, ratio, config.precision, config.compile)

    def __str__(self) -> str:
        ratio = "free" if self.replay_ratio is None else f"{self.replay_ratio:g}"
        executor = "compiled" if self.compile else "eager"
        return f"batch {self.batch_size}, replay ratio {ratio}, precision {self.precision}, {executor}"

    def precision_on(self, device: str, hardware: Hardware) -> str:
        """What the precision is on a device of a machine, as the run resolves it."""
        if self.precision != "auto":
            return self.precision
        return auto_precision(_capability(name, hardware) for name in device.split(","))


@dataclass(frozen=True)
class Setting:
    """A way to place a run. `device`: of the learner; "A,B" for critics on A and the actor on B.

    `inference`: where actions are chosen, as the option says.
    """

    samplers: int = 1
    envs_per_sampler: int = 1
    threads: int = 1
    spin_count: int = DEFAULT_SPIN
    pinned: bool = False
    device: str = "cpu"
    inference: Inference = "inline"


@dataclass(frozen=True)
class Rates:
    """Rates of a setting per second. `measured`: this very setting was; `bound`: what limits it, one of `BOUNDS`."""

    env_steps: float
    updates: float
    measured: bool
    bound: str


BOUNDS = {
    "sampling-bound": "the learner waits for env steps: a faster environment or more samplers would help",
    "update-bound": "the samplers wait for updates: a faster device or more threads would help",
    "cores-bound": "samplers and learner share the cores: more cores would help",
    "memory-bound": "the learner waits for rows of the replay buffer: faster memory would help",
    "copy-bound": "the learner waits for rows on their way to its device: a faster link would help",
    "own limits": "samplers and learner each go as fast as they can, without getting in each other's way",
}
"""What limits a run, in words for people."""


def sampling_rate(profile: Profile, samplers: int, envs_per_sampler: int) -> float | None:
    """Env steps per second of samplers alone; beyond what was measured: in proportion, up to the cores.

    None: unknown.
    """
    rates = profile.sampling.rates if profile.sampling is not None else ()
    if not rates:
        return None
    envs = min({rate.envs_per_process for rate in rates}, key=lambda count: abs(math.log(count / envs_per_sampler)))
    by_processes = {rate.processes: rate.env_steps_per_s for rate in rates if rate.envs_per_process == envs}
    if samplers in by_processes:
        return by_processes[samplers]
    near = max((count for count in by_processes if count < samplers), default=min(by_processes))
    cores = profile.hardware.cores
    return by_processes[near] * min(samplers, cores) / min(near, cores)


def update_rate(profile: Profile, learning: Learning, device: str, threads: int) -> tuple[float, str] | None:
    """Updates per second alone, and the executor; None where nothing was measured on the device.

    Other batch sizes lie between (or, beyond the largest, in proportion to) those that were measured. Where compiled
    updates were measured at one size only, others gain as much from it. Of launches of several lengths the fastest
    counts.
    """
    precision = learning.precision_on(device, profile.hardware)
    here = best_launches(rate for rate in profile.updates if rate.device == device and rate.precision == precision)
    eager = _at(here, "eager", learning.batch_size, threads)
    compiled = _at(here, "compiled", learning.batch_size, threads) if learning.compile else None
    if compiled is not None:
        return compiled, "compiled"
    if learning.compile and eager is not None:
        gain = [
            one.updates_per_s / other.updates_per_s
            for one in here
            for other in here
            if one.executor == "compiled" and other.executor == "eager"
            and (one.batch_size, one.threads) == (other.batch_size, other.threads)
        ]  # fmt: skip
        if gain:
            return eager * gain[-1], "compiled"
    return None if eager is None else (eager, "eager")


def best_launches(rates: Iterable[UpdateRate]) -> list[UpdateRate]:
    """Of rates that differ in the length of a launch alone, the highest."""
    best: dict[tuple[object, ...], UpdateRate] = {}
    for rate in sorted(rates, key=lambda rate: rate.updates_per_s):
        best[rate.device, rate.precision, rate.executor, rate.batch_size, rate.threads] = rate
    return list(best.values())


def _at(rates: list[UpdateRate], executor: str, batch_size: int, threads: int) -> float | None:
    """Updates per second at a batch size, by the time of an update; None without a figure on either side of it."""
    mine = [rate for rate in rates if rate.executor == executor]
    counts = {rate.threads for rate in mine}
    if not counts:
        return None
    near = threads if threads in counts else max((c for c in counts if c < threads), default=min(counts))
    times = {rate.batch_size: 1 / rate.updates_per_s for rate in mine if rate.threads == near and rate.updates_per_s}
    # A size that was measured with another number of threads only is scaled by what the threads are worth elsewhere.
    for rate in mine:
        if rate.batch_size not in times and rate.updates_per_s:
            times[rate.batch_size] = _worth(mine, rate, near) / rate.updates_per_s
    if batch_size in times:
        return 1 / times[batch_size]
    if executor == "compiled" and len(times) < 2:
        return None
    below = max((size for size in times if size < batch_size), default=None)
    above = min((size for size in times if size > batch_size), default=None)
    if below is None:
        return None if above is None else 1 / times[above]
    if above is None:
        return below / (times[below] * batch_size)
    share = (batch_size - below) / (above - below)
    return 1 / (times[below] + share * (times[above] - times[below]))


def _worth(rates: list[UpdateRate], rate: UpdateRate, threads: int) -> float:
    """Time of an update with `threads`, relative to the threads of a figure, at a batch size where both are known."""
    sizes = {one.batch_size for one in rates if one.threads == threads}
    for other in rates:
        if other.threads == rate.threads and other.batch_size in sizes:
            same = next(one for one in rates if one.threads == threads and one.batch_size == other.batch_size)
            return other.updates_per_s / same.updates_per_s
    return rate.threads / threads


def alone(profile: Profile, learning: Learning, setting: Setting) -> Rates | None:
    """The model without correction; None where sampling or updates of the setting are unknown."""
    sampling = sampling_rate(profile, setting.samplers, setting.envs_per_sampler)
    found = update_rate(profile, learning, setting.device, setting.threads)
    if sampling is None or found is None:
        return None
    updates = found[0]
    cores = float(profile.hardware.cores)
    busy = float(setting.threads) if setting.device == "cpu" else 1.0
    samplers = min(setting.samplers, cores)
    ratio = learning.replay_ratio
    if ratio is None:
        share = min(1.0, cores / (samplers + busy))
        # A thread that lost its core keeps all others waiting at every barrier.
        lost = share**2 if busy > 1 else share
        return Rates(sampling * share, updates * lost, False, "own limits" if share == 1.0 else "cores-bound")
    limits = {
        "sampling-bound": sampling,
        "update-bound": updates / ratio,
        "cores-bound": cores / (samplers / sampling + ratio * busy / updates),
    }
    least = min(limits.values())
    # Sharing cores is named only where it costs more than a little.
    bound = min(limits, key=lambda name: limits[name] * (1.1 if name == "cores-bound" else 1.0))
    return Rates(least, ratio * least, False, bound)


def is_of(profile: Profile, learning: Learning, joint: Joint) -> bool:
    """Whether a joint measurement was of this learning, with the executor that the run will have."""
    updates = update_rate(profile, learning, joint.device, joint.threads)
    return (
        (joint.batch_size, joint.replay_ratio) == (learning.batch_size, learning.replay_ratio)
        and joint.precision == learning.precision_on(joint.device, profile.hardware)
        and (updates is None or updates[1] == joint.executor)
    )


def predict(profile: Profile, learning: Learning, setting: Setting) -> Rates | None:
    """Rates of samplers and learner together; None where the profile cannot tell."""
    modelled = alone(profile, learning, setting)
    exact = [one for one in profile.joint if setting_of(one) == setting and is_of(profile, learning, one)]
    if exact:
        one = exact[-1]
        return Rates(one.env_steps_per_s, one.updates_per_s, True, bound(profile, one))
    if modelled is None:
        return None
    near = min(profile.joint, key=lambda one: _distance(one, learning, setting), default=None)
    expected = None if near is None else alone(profile, _learning_of(near), setting_of(near))
    if near is None or expected is None:
        return modelled
    steps = modelled.env_steps * near.env_steps_per_s / expected.env_steps
    if learning.replay_ratio is not None:
        return Rates(steps, learning.replay_ratio * steps, False, modelled.bound)
    return Rates(steps, modelled.updates * near.updates_per_s / expected.updates, False, modelled.bound)


def score(learning: Learning, rates: Rates) -> float:
    """What a plan makes as large as it can: env steps a second; free, the geometric mean of both sides' rates."""
    return rates.env_steps if learning.replay_ratio is not None else math.sqrt(rates.env_steps * rates.updates)


def setting_of(joint: Joint) -> Setting:
    """The setting of a joint measurement."""
    place = (joint.samplers, joint.envs_per_sampler, joint.threads, joint.spin_count, joint.pinned, joint.device)
    return Setting(*place, joint.inference)


def bound(profile: Profile, joint: Joint) -> str:
    """What limited a joint measurement: a key of `BOUNDS`."""
    if joint.batch_waits > 0.2:
        return "memory-bound" if joint.device == "cpu" else "copy-bound"
    if joint.replay_ratio is not None:
        if joint.learner_waits > max(0.1, 0.5 * joint.sampler_waits):
            return "sampling-bound"
        if joint.sampler_waits > 0.5:
            return "update-bound"
        if joint.sampler_waits > 0.1 and joint.sampler_cpu + joint.learner_cpu < 0.95 * profile.hardware.cores:
            return "update-bound"
        return "cores-bound"
    busy = joint.sampler_cpu + joint.learner_cpu
    return "cores-bound" if busy > 0.85 * profile.hardware.cores else "own limits"


def _capability(device: str, hardware: Hardware) -> tuple[int, int] | None:
    """Compute capability of a card, None for the CPU. A card that nvidia-smi does not tell counts as a new one."""
    if not device.startswith("cuda"):
        return None
    index = int(device.partition(":")[2] or 0)
    known = hardware.gpus[index].capability if index < len(hardware.gpus) else (0, 0)
    return AMPERE if known == (0, 0) else known


def _learning_of(joint: Joint) -> Learning:
    return Learning(joint.batch_size, joint.replay_ratio, joint.precision, joint.executor == "compiled")


def _distance(joint: Joint, learning: Learning, setting: Setting) -> float:
    apart = abs(math.log2(joint.samplers / setting.samplers))
    apart += 0.5 * abs(math.log2(joint.envs_per_sampler / setting.envs_per_sampler))
    apart += abs(math.log2(joint.threads / setting.threads))
    apart += 0.5 * (joint.spin_count != setting.spin_count) + 0.5 * (joint.pinned != setting.pinned)
    apart += 8.0 * (joint.device != setting.device) + 2.0 * (joint.inference != setting.inference)
    return apart + 4.0 * ((joint.replay_ratio is None) != (learning.replay_ratio is None))
