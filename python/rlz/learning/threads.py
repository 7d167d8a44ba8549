"""How many CPU threads an update uses: measured beside the running samplers, and watched. How they wait.

Two threads that spin at every barrier are the best choice on an idle machine, and 5 to 20 times slower than one
beside a busy process (`benches/results`). So a run starts with one thread, measures real updates with more of them,
keeps the best number, and goes back to one as soon as updates become slow. Imports neither torch nor numpy.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean, quantiles

from rlz.system.cores import ladder

CONTENDED = 1.6
"""Time per update, relative to one thread, at which a number that was asked for is given up."""

SLOWER = 1.25
"""The same for a number that was chosen. Above 1: what is a little slower for a moment is not worth a change, which
lasts for 20 seconds; a busy neighbour makes updates of two threads 2 to 20 times slower."""

WORTHWHILE = 0.93
"""Time per update, relative to fewer threads, that makes more threads worth their cores."""

BLOCK_S = 0.25
BLOCK_UPDATES = 8
SETTLE_UPDATES = 2
ABORT_UPDATES = 3
ABORT_S = 0.1
ROUNDS = 2
WATCH_S = 0.5
"""More threads than one are judged by the mean over so long: a controller that logs or a sampler that resets takes a
core for some milliseconds, which slows a few updates in a row and is no reason to give up a core for 20 seconds."""
PAUSE_S = 20.0
LONGEST_PAUSE_S = 320.0


MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}
"""The C library keeps the memory of an update's temporary tensors for the next update (up to 32 MiB each, its most). It
would give it back to the kernel, which then zeroes it again page by page: a third of the time at batch 8192."""


def learner_environment(spin_count: int) -> dict[str, str]:
    """Variables of a learner process that are read when it starts; what the user has set is kept.

    `spin_count`: turns that a waiting thread spins before it sleeps (GNU OpenMP).
    """
    variables = {name: value for name, value in MEMORY.items() if name not in os.environ}
    if "OMP_WAIT_POLICY" not in os.environ and "GOMP_SPINCOUNT" not in os.environ:
        variables["GOMP_SPINCOUNT"] = str(spin_count)
    return variables


def tuner(threads: int | str, available: int) -> ThreadTuner:
    """For the option `--threads`: a number to keep, "auto", or "auto_N", where N was found good before."""
    if isinstance(threads, int):
        return ThreadTuner(candidates(threads, available), preferred=threads)
    guess = 1 if threads == "auto" else int(threads.removeprefix("auto_"))
    guess = min(guess, available)
    return ThreadTuner(sorted({*candidates("auto", available), guess}), guess=guess)


def candidates(threads: int | str, available: int) -> list[int]:
    """Numbers of threads to choose from, 1 first: powers of two and all cores for "auto", 1 and N for N."""
    if isinstance(threads, str):
        return ladder(available)
    return sorted({1, threads})


class ThreadTuner:
    """Chooses the number of threads from the times of real updates.

    Parameters
    ----------
    numbers
        To choose from, ascending, 1 first.
    preferred
        A number to use unless it is `CONTENDED` times slower than one thread; None takes the fastest.
    guess
        The number that others must beat by enough.
    clock
        Seconds; for tests.
    """

    def __init__(
        self,
        numbers: Iterable[int],
        *,
        preferred: int | None = None,
        guess: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._numbers = list(numbers)
        self._preferred = preferred
        self._guess = guess
        self._clock = clock
        self.threads = 1
        self._chosen = 1
        self._said: int | None = None
        self._pause = PAUSE_S
        self._reference = self._limit = float("inf")
        self._begin()

    @property
    def most(self) -> int:
        """Largest number that it may choose."""
        return self._numbers[-1]

    @property
    def settled(self) -> bool:
        """It is not measuring."""
        return not self._plan

    def restart(self) -> None:
        """Measure again soon, because the executor changed."""
        self._pause = PAUSE_S
        self._begin()

    def record(self, seconds: float) -> str | None:
        """Tell the time of one update made with `threads`; returns a line to log: the first choice, and each change.

        Read `threads` again before the next update.
        """
        if len(self._numbers) == 1:
            return None
        if self._settle > 0:
            self._settle -= 1
            return None
        self._block.append(seconds)
        return self._probe() if self._plan else self._watch()

    def _begin(self) -> None:
        self._times: dict[int, list[float]] = {}
        self._plan = self._numbers * ROUNDS if len(self._numbers) > 1 else []
        self._use(self._numbers[0])

    def _use(self, threads: int) -> None:
        self.threads = threads
        self._settle = SETTLE_UPDATES
        self._block: list[float] = []

    def _probe(self) -> str | None:
        block = self._block
        base = _undisturbed(self._times[1]) if 1 in self._times else float("inf")
        tried = len(block) >= ABORT_UPDATES and sum(block) >= ABORT_S
        hopeless = tried and self.threads > 1 and _undisturbed(block) > CONTENDED * base
        if not hopeless and (len(block) < BLOCK_UPDATES or sum(block) < BLOCK_S):
            return None
        self._times.setdefault(self.threads, []).extend(block)
        del self._plan[0]
        if hopeless:
            self._plan = [number for number in self._plan if number < self.threads]
            if all(number == 1 for number in self._plan) and len(self._times[1]) >= BLOCK_UPDATES:
                self._plan = []  # nothing left to compare
        if self._plan:
            self._use(self._plan[0])
            return None
        return self._decide()

    def _decide(self) -> str | None:
        times = {number: _undisturbed(values) for number, values in self._times.items()}
        choice = 1
        if self._preferred is not None:
            if times.get(self._preferred, float("inf")) <= CONTENDED * times[1]:
                choice = self._preferred
        else:
            choice = self._guess if self._guess in times else 1
            for number, seconds in sorted(times.items()):
                if seconds < WORTHWHILE * times[choice]:
                    choice = number
        same, self._chosen = choice == self._chosen, choice
        if same:
            self._pause = min(2 * self._pause, LONGEST_PAUSE_S)
        self._reference = times[choice]
        self._limit = times[1] * (SLOWER if self._preferred is None else CONTENDED)
        self._again = self._clock() + self._pause
        self._use(choice)
        if choice == self._said:
            return None
        self._said = choice
        measured = ", ".join(f"{number}: {1 / seconds:.0f}/s" for number, seconds in sorted(times.items()))
        if choice == 1:
            return f"threads: 1; more gain too little beside the other processes (updates by threads: {measured})"
        return f"threads: {choice} (updates by threads: {measured})"

    def _watch(self) -> str | None:
        if sum(self._block) >= WATCH_S:
            now = fmean(self._block)
            self._block.clear()
            if self.threads > 1 and now > self._limit:
                line = (
                    f"threads: {self.threads} became slow ({1 / self._reference:.0f} to {1 / now:.0f} updates/s; the "
                    f"cores are busy), using 1; next measurement in {self._pause:.0f} s"
                )
                self._chosen = self._said = 1
                self._again = self._clock() + self._pause
                self._pause = min(2 * self._pause, LONGEST_PAUSE_S)
                self._use(1)
                return line
        if self._clock() >= self._again:
            if self.threads > 1:
                self._pause = PAUSE_S  # more threads have lasted
            self._begin()
        return None


def _undisturbed(times: Sequence[float]) -> float:
    """Lower quartile: what updates take while nobody else happens to need a core. Lasting company shows in all."""
    return quantiles(times, n=4)[0]
