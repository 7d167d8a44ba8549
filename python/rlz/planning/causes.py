"""Why a run probably does not go as predicted, in words: first what the machine tells, then which side is slow."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlz.system.cards import Cards
from rlz.system.surroundings import Surroundings

if TYPE_CHECKING:
    from rlz.config import RunConfig
    from rlz.planning.plan import Prediction
    from rlz.planning.profile_model import Sampling
    from rlz.tracking.snapshot import Snapshot, WorkerSnapshot

TOLERANCE = 0.2
"""Relative difference from the prediction that is worth a word."""

FOREIGN_CORES = 0.25
"""Cores in use by other processes that explain a slow run, where hardly any is left."""

FULL = 0.85
"""Part of the cores in use from which on one process takes from the other."""

LOW_CLOCK = 0.6
"""Part of its highest clock that even a CPU with all cores busy exceeds, as long as nothing holds it back."""

WAITS = 0.1
"""Part of the time that a side waits for the other one, where the other one is what bounds the run."""


@dataclass(frozen=True)
class Window:
    """A run over some seconds: the snapshot at its begin and all later ones, and the machine before and after."""

    snapshots: "tuple[Snapshot, ...]"
    before: Surroundings
    after: Surroundings
    cores: int

    @property
    def env_steps_per_s(self) -> float:
        """Of all samplers."""
        return (self.last.env_steps - self.first.env_steps) / self._seconds

    @property
    def frames_per_s(self) -> float:
        """Rows of the updates."""
        return (self.last.frames - self.first.frames) / self._seconds

    @property
    def first(self) -> "Snapshot":
        """At the begin."""
        return self.snapshots[0]

    @property
    def last(self) -> "Snapshot":
        """At the end."""
        return self.snapshots[-1]

    @property
    def own_cores(self) -> float:
        """Cores that the run's processes used."""
        return self._mean(lambda snapshot: sum(worker.cpu_percent or 0.0 for worker in snapshot.workers) / 100)

    def of(self, progress: str, value: "Callable[[WorkerSnapshot], float]") -> float:
        """A figure of the workers that do one thing: its mean over them and the time."""

        def mean(snapshot: "Snapshot") -> float:
            values = [value(worker) for worker in snapshot.workers if worker.progress == progress]
            return sum(values) / max(1, len(values))

        return self._mean(mean)

    @property
    def _seconds(self) -> float:
        return max(self.last.wall_s - self.first.wall_s, 1e-9)

    def _mean(self, value: "Callable[[Snapshot], float]") -> float:
        # The rates of the first snapshot are of the time before the window.
        values = [value(snapshot) for snapshot in self.snapshots[1:]]
        return sum(values) / max(1, len(values))


def likely_cause(
    window: Window,
    wanted: "Prediction",
    config: "RunConfig",
    sampling: "Sampling | None",
    cards: "Callable[[list[str]], Cards]",
) -> str:
    """Why a run differs from its prediction.

    Parameters
    ----------
    window : of the run.
    wanted, config : what was predicted, and for what.
    sampling : figures of the environment in the profile, where there is one.
    cards : looks at the learner's cards, by their names.
    """
    steps = _off(window.env_steps_per_s, wanted.env_steps_per_s)
    frames = _off(window.frames_per_s, wanted.frames_per_s)
    if min(steps, frames) >= -TOLERANCE:
        return _faster(window, wanted)
    if cause := _machine(window):
        return cause
    if frames < -TOLERANCE and (cause := _learner(window, wanted, config, cards)):
        return cause
    if config.replay().ratio is not None and window.last.evaluations + window.last.evaluations_skipped > (
        window.first.evaluations + window.first.evaluations_skipped
    ):
        return "the evaluator was playing meanwhile (--eval-every)"
    if max(steps, frames) > TOLERANCE:
        gains, loses = ("samplers", "learner") if steps > frames else ("learner", "samplers")
        return f"more of the cores' time goes to the {gains} than when it was measured, and less to the {loses}"
    side = _slow_side(window, config, steps, frames)
    if side == "updates":
        return _updates(window)
    resets = _resets(window, sampling, -steps)
    if side == "both":
        return resets or "both sides are slower than when they were measured: a lower clock, or memory that others use"
    if resets:
        return resets
    if sampling is not None and sampling.reset_us is not None:
        return "the environment's steps are slower than when they were measured; its resets do not explain it"
    return "the environment is slower than when it was measured: its steps, or its resets"


def _off(real: float, expected: float) -> float:
    """Relative difference; 0 where nothing was predicted."""
    return real / expected - 1 if expected > 0 else 0.0


def _faster(window: Window, wanted: "Prediction") -> str:
    if window.last.values.get("train/compiled") and wanted.executor == "eager":
        return "updates are compiled here, and were not when they were measured"
    return "the machine has more time than when it was measured"


def _machine(window: Window) -> str:
    """What slows everything down: a quota, other processes, heat."""
    before, after = window.before, window.after
    seconds = max(after.at - before.at, 1e-9)
    pauses, paused = after.throttled - before.throttled, after.throttled_s - before.throttled_s
    if pauses > 0 and paused > 0.05 * seconds:
        return f"the CPU quota of this container paused it {pauses} times, {paused / seconds:.0%} of the time"
    busy = max(0.0, after.busy_s - before.busy_s) / seconds
    others = busy - window.own_cores
    if others > FOREIGN_CORES and busy > FULL * window.cores:
        waiting = max(0.0, after.pressure_s - before.pressure_s) / seconds
        also = f", and somebody waited for a core {waiting:.0%} of the time" if waiting > 0.1 else ""
        return f"other processes use {others:.1f} of the {window.cores} cores{also}"
    if (hot := after.hot - before.hot) > 0:
        return f"the CPU is too hot and has slowed its cores down meanwhile ({hot:,} times, all cores together)"
    clocks = [(seen.clock_mhz, seen.most_mhz) for seen in (before, after)]
    if all(clock is not None and most is not None and clock < LOW_CLOCK * most for clock, most in clocks):
        return (
            f"the CPU's clock is low, {after.clock_mhz:,.0f} MHz of {after.most_mhz:,.0f}: heat, a power limit, or a "
            "setting that saves power"
        )
    return ""


def _learner(window: Window, wanted: "Prediction", config: "RunConfig", cards: "Callable[[list[str]], Cards]") -> str:
    """What slows updates down and is no matter of speed: the executor, the GPU."""
    if config.compile and wanted.executor != "eager" and not window.last.values.get("train/compiled"):
        return "updates are not compiled here (logs/events.log says why)"
    if not (used := [name for name in config.devices or (config.device,) if name.startswith("cuda")]):
        return ""
    seen = cards(used)
    if seen.users:
        return f"{seen.users} other process{'es use' if seen.users > 1 else ' uses'} the GPU"
    return seen.slowed


def _slow_side(window: Window, config: "RunConfig", steps: float, frames: float) -> str:
    """Whose rate is off; held at a replay ratio both are, and the side that does not wait is the slow one."""
    if config.replay().ratio is None:  # nobody waits for anybody
        if (steps < -TOLERANCE) != (frames < -TOLERANCE):
            return "environment" if steps < frames else "updates"
        return "both"
    samplers, learner = (
        window.of(does, lambda one: one.waits.get("limiter", 0.0)) for does in ("env_steps", "updates")
    )
    if max(samplers, learner) < WAITS:
        return "both"
    return "environment" if learner > samplers else "updates"


def _updates(window: Window) -> str:
    rows = window.of("updates", lambda one: one.waits.get("batch", 0.0))
    if rows > WAITS:
        return f"the learner waits for rows of the replay buffer, {rows:.0%} of the time"
    return "updates are slower than when they were measured: a lower clock, or memory that others use"


def _resets(window: Window, sampling: "Sampling | None", missing: float) -> str:
    """Whether resets explain at least half of the env steps that are missing (a part of those expected)."""
    if sampling is None or sampling.reset_us is None or not sampling.episode_length:
        return ""
    share = window.of("env_steps", lambda one: one.resets)
    steps = window.of("env_steps", lambda one: one.env_steps_per_s)
    episodes = window.of("env_steps", lambda one: one.episodes_per_s)
    usual = steps / sampling.episode_length * sampling.reset_us.mean / 1e6
    if not episodes or share - usual < missing / 2:
        return ""
    took, length = 1e6 * share / episodes, steps / episodes
    slow = f"{took:,.0f} us instead of {sampling.reset_us.mean:,.0f}"
    short = f"episodes have {length:,.0f} steps instead of {sampling.episode_length:,.0f}"
    reason = slow if took / sampling.reset_us.mean > sampling.episode_length / length else short
    return f"resets of the environment take {share:.0%} of the samplers' time: {reason}"
