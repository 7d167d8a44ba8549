"""Throughput mode: which batch size, and how many env steps, measured beside each other while the run goes on.

What is learned in a second is decided by frames/s, and both sides want the same cores. So the batch size is the
smallest at the knee of frames/s (Spreeze, arXiv 2312.06126, takes the largest; larger ones than the knee only learn
less from each frame). Env steps are taken as long as the learner does not feel it: each row is learned from as few
times as leave frames/s at the knee, and never fewer than the user wants (`--min-replay-ratio`). A run begins with one
update of the usual batch per env step, and goes down from there. Imports neither torch nor numpy.

What is tried may be worse, for learning too (fewer updates of larger batches), and what needs no more than a minute
should not be spent on it. So a run works with other settings than its own for a tenth of its time at most, as it does
with evaluations, and has its feet before it begins to compare.

It does not oscillate: two settings are compared by turns, so that what others do to the machine meanwhile hits both; a
change must be worth more than a margin in either direction, which grows when a choice is taken back, and be confirmed
by a second look; and after each look it waits twice as long for the next one, up to half an hour.

The thresholds below are choices and derived from nothing. What comes out with them on two cores is in
`docs/bench/plan.md`; `tests/learner/test_learner_adaptation.py` lets them work on simulated machines.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TypeVar

from rlz.algorithms.settings import REFERENCE_BATCH

KNEE = 0.9
"""Part of the best frames/s that the smallest batch at the knee reaches."""

GROWS = 1.03
"""Frames/s of twice the batch, relative to the batch, with which still larger ones are worth a look."""

BINDS = 1.2
"""Uses of each row beyond those that samplers wait for, relative to them, with which they did not wait."""

HYSTERESIS = 1.05
"""How much better than what is in use another setting must be; so much more each time that a choice was taken back."""

MOST_HYSTERESIS = 1.3

ROUNDS = 5
"""Windows of each of two settings that are compared."""

WINDOW_S = 1.0
WINDOW_UPDATES = 4
"""A window lasts at least so long, and so many updates."""

TRIED = 0.1
"""Part of the time since the first update in which settings are in use that are only tried."""

SETTLE_S = 0.3
SETTLE_LIMIT_S = 15.0
"""A window begins when threads and caches have settled, by this time at the latest."""

LONGEST_WINDOW_S = 20.0

ROWS_PER_BATCH = 4
"""Env steps before a batch is tried, by its rows: it should not be the same rows over and over."""

PAUSE_S = 120.0
LONGEST_PAUSE_S = 1920.0
"""From one look at all settings to the next; doubled each time."""

LARGEST_BATCH = 65_536


@dataclass(frozen=True)
class Operation:
    """What the run works with: rows of an update, and how often each row is learned from before samplers go on."""

    batch_size: int
    row_uses: float

    def having(self, name: str, value: float) -> Operation:
        """Give the operation with another batch_size or row_uses."""
        return replace(self, batch_size=int(value)) if name == "batch_size" else replace(self, row_uses=value)

    def __str__(self) -> str:
        return f"batch size {self.batch_size} with {self.row_uses:g} uses of each row"


_WORDS = {"batch_size": "batch size", "row_uses": "uses of each row"}


@dataclass(frozen=True)
class Seen:
    """Counts of the run at an instant (s). `settled`: executor and threads of the batch size in use stay as they are.

    `ready`: the batch size in `Adaptation.wanted` can be used.
    """

    at: float
    env_steps: int
    updates: int
    frames: int
    settled: bool
    ready: bool


@dataclass(frozen=True)
class Pace:
    """Rates of one window, or medians of several, per second."""

    env_steps: float
    frames: float

    @property
    def row_uses(self) -> float:
        """Times that each row was learned from."""
        return self.frames / max(self.env_steps, 1e-9)

    def __str__(self) -> str:
        return f"{self.env_steps:,.0f} env steps/s and {self.frames:,.0f} frames/s"


@dataclass(frozen=True)
class Knee:
    """A value to choose, and why: frames/s of each relative to the one in use, and what was measured."""

    choice: float
    frames: Mapping[float, float]
    paces: Mapping[float, Pace]

    def __str__(self) -> str:
        most = max(self.frames.values())
        return ", ".join(f"{value:g}: {rate / most:.0%}" for value, rate in sorted(self.frames.items()))


class Margin:
    """How much better than what is in use another value must be. Grows when a value comes back that was given up."""

    def __init__(self, first: float) -> None:
        self.value = first
        self._given_up: set[float] = set()

    def note(self, before: float, after: float) -> None:
        """Take note of the choice of one look, which may be to stay."""
        self.value = max(self.value, HYSTERESIS)
        if after != before:
            self._given_up.add(before)
            if after in self._given_up:
                self.value = min(self.value * HYSTERESIS, MOST_HYSTERESIS)


class Refused(Exception):
    """A setting cannot be used; says why."""


Wait = Generator[None, None, None]
Value = TypeVar("Value", bound=float)


class Adaptation:
    """Chooses batch size and uses of each row; never touches either: whoever asks reads `operation` after each `look`.

    Parameters
    ----------
    start : what the run begins with.
    batches, uses : to choose from, ascending.
    """

    def __init__(self, start: Operation, *, batches: Sequence[int], uses: Sequence[float]) -> None:
        self._values: dict[str, list[float]] = {
            "batch_size": sorted({*batches, start.batch_size}),
            "row_uses": sorted({*uses, start.row_uses}),
        }
        self._base = self.operation = start
        self.wanted: int | None = None
        self._seen = Seen(0.0, 0, 0, 0, settled=False, ready=False)
        self._began: float | None = None
        self._tried_s = 0.0
        self._lines: list[str] = []
        self._life = self._live()
        next(self._life)

    @property
    def chosen(self) -> Operation:
        """What the run works with when nothing is being compared."""
        return self._base

    @property
    def trying(self) -> bool:
        """Something else than `chosen` is in use, or being prepared: what may be refused."""
        return self.operation != self._base or self.wanted is not None

    def look(self, seen: Seen) -> list[str]:
        """Take note of the run's counts; returns lines to log. Read `operation` and `wanted` afterwards."""
        self._seen = seen
        if self._began is None and seen.updates > 0:
            self._began = seen.at
        next(self._life)
        return self._said()

    def refuse(self, reason: str) -> list[str]:
        """What is being compared, or prepared for that, does not work here; returns lines to log."""
        self._life.throw(Refused(reason))
        return self._said()

    # -- the course of a run ---------------------------------------------------------------------------------------

    def _live(self) -> Wait:
        margins = {name: Margin(1.0) for name in self._values}  # what a run begins with was chosen by nobody
        pause, first = PAUSE_S, True
        while True:
            for name, margin in margins.items():
                before = getattr(self._base, name)
                yield from self._fit(name, margin.value, sure=not first)
                margin.note(before, getattr(self._base, name))
            first = False
            until = self._seen.at + pause
            pause = min(2 * pause, LONGEST_PAUSE_S)
            while self._seen.at < until:
                yield

    def _fit(self, name: str, margin: float, *, sure: bool) -> Wait:
        """Go to the smallest value of one dimension at the knee; `sure`: a second look must say the same."""
        start, what = getattr(self._base, name), _WORDS[name]
        knees = yield from self._find_knee(name, margin)
        if sure and knees is not None and knees.choice != start:
            again = yield from self._find_knee(name, margin)
            if again is None or (again.choice > start) != (knees.choice > start) or again.choice == start:
                self._say(f"{what} stays {start:g}: a second look does not confirm {knees.choice:g}")
                return
            knees = again
        if knees is None:
            return
        choice, paces = knees.choice, knees.paces
        if choice == start:
            self._say(f"{what} stays {start:g} (part of the most frames/s by {what} {knees}); {paces[start]}")
        else:
            self._say(
                f"{what}: {start:g} -> {choice:g}, the smallest with {KNEE:.0%} of the most frames/s (by {what} "
                f"{knees}); {paces[start]} become {paces[choice]}"
            )
        self._base = self.operation = self._base.having(name, choice)

    def _find_knee(self, name: str, margin: float) -> Generator[None, None, Knee | None]:
        """Compare values, from the one in use up while it pays and down to the knee; None: there is no other."""
        start = getattr(self._base, name)
        frames = {start: 1.0}
        paces: dict[float, Pace] = {}
        for step in (1, -1):
            value = start
            while (other := self._neighbour(self._values[name], value, step)) is not None:
                if step < 0 and frames[value] < KNEE * max(frames.values()):
                    break
                compared = yield from self._compare(self._base.having(name, value), name, other)
                if compared is None:
                    break
                paces[value], paces[other] = compared
                growth = paces[other].frames / max(paces[value].frames, 1e-9)
                frames[other] = frames[value] * growth
                value = other
                if step > 0 and growth < GROWS and not (name == "row_uses" and paces[other].row_uses > BINDS * other):
                    break  # but where samplers need not wait for it, more uses may be worth it
        return Knee(knee(frames, start, margin), frames, paces) if paces else None

    # -- measuring -------------------------------------------------------------------------------------------------

    def _compare(self, one: Operation, name: str, other: float) -> Generator[None, None, tuple[Pace, Pace] | None]:
        """Medians of two settings by turns; None where the other one cannot be used."""
        two = one.having(name, other)
        yield from self._earn(sum(operation != self._base for operation in (one, two)))
        try:
            for size in (one.batch_size, two.batch_size):
                yield from self._prepare(size)
            self._say(f"by turns, to compare them: {one} and {two}")
            windows: dict[Operation, list[Pace]] = {one: [], two: []}
            for _ in range(ROUNDS):
                for operation in (one, two):
                    windows[operation].append((yield from self._window(operation)))
        except Refused as refused:
            self._say(f"{two} cannot be used: {refused}")
            if name == "batch_size":  # nor will what is further away
                up, values = other > one.batch_size, self._values[name]
                self._values[name] = [size for size in values if (size < other if up else size > other)]
            return None
        finally:
            self.wanted, self.operation = None, self._base
        first, second = (
            Pace(median(pace.env_steps for pace in found), median(pace.frames for pace in found))
            for found in windows.values()
        )
        return first, second

    def _earn(self, settings: int) -> Wait:
        """Wait until the run is old enough for so many settings to be tried."""
        cost = settings * ROUNDS * (SETTLE_S + WINDOW_S)
        while self._began is None or self._tried_s + cost > TRIED * (self._seen.at - self._began):
            yield

    def _prepare(self, batch_size: int) -> Wait:
        """Wait until a batch size can be used, and the buffer has rows for it."""
        self.wanted = batch_size
        while True:
            yield
            if self._seen.ready and self._seen.settled and self._seen.env_steps >= ROWS_PER_BATCH * batch_size:
                return

    def _window(self, operation: Operation) -> Generator[None, None, Pace]:
        self.operation = operation
        begin = self._seen.at
        while True:
            yield
            waited = self._seen.at - begin
            if waited >= SETTLE_LIMIT_S or (waited >= SETTLE_S and self._seen.settled):
                break
        first = self._seen
        while True:
            yield
            seconds = self._seen.at - first.at
            enough = seconds >= WINDOW_S and self._seen.updates - first.updates >= WINDOW_UPDATES
            if enough or seconds >= LONGEST_WINDOW_S:
                break
        last = self._seen
        if operation != self._base:
            self._tried_s += last.at - begin
        return Pace((last.env_steps - first.env_steps) / seconds, (last.frames - first.frames) / seconds)

    @staticmethod
    def _neighbour(values: Sequence[float], value: float, step: int) -> float | None:
        index = values.index(value) + step
        return values[index] if 0 <= index < len(values) else None

    def _say(self, text: str) -> None:
        self._lines.append(text)

    def _said(self) -> list[str]:
        lines, self._lines = self._lines, []
        return lines


def knee(frames: Mapping[Value, float], now: Value | None = None, margin: float = 1.0) -> Value:
    """Smallest value with at least `KNEE` of the most frames/s.

    `now` is kept unless it misses that by `margin`; for a smaller one that has it with so much to spare.
    """
    most = KNEE * max(frames.values())
    if now is not None and margin * frames[now] >= most:
        return min(size for size, rate in frames.items() if size == now or (size < now and rate >= margin * most))
    return min(size for size, rate in frames.items() if rate >= most)


def batch_sizes(largest: int) -> list[int]:
    """Twice, four times ... the batch that learning rates are stated for, that one always; at most `largest`."""
    sizes = [REFERENCE_BATCH]
    while 2 * sizes[-1] <= min(largest, LARGEST_BATCH):
        sizes.append(2 * sizes[-1])
    return sizes


def use_counts(least: float) -> list[float]:
    """Uses of each row: the fewest that the user wants, four times as many ... up to one update per env step.

    That is an update of the batch that learning rates are stated for.
    """
    counts = [least] if least > 0 else [0.0, 1.0]  # 0: samplers never wait
    while counts[-1] < REFERENCE_BATCH:
        counts.append(4 * counts[-1])
    return counts
