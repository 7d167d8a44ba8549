"""The thread tuner with a fake clock and made-up update times."""

from collections.abc import Callable
from itertools import cycle, pairwise

import pytest

from rlz.learning.threads import MEMORY, ThreadTuner, candidates, learner_environment, tuner


class Machine:
    """Feeds a tuner with updates whose time depends on the number of threads."""

    def __init__(self, numbers: list[int], preferred: int | None = None, guess: int = 1) -> None:
        self.now = 0.0
        self.lines: list[str] = []
        self.used: list[int] = []
        self.tuner = ThreadTuner(numbers, preferred=preferred, guess=guess, clock=lambda: self.now)

    def run(self, seconds: float, time_of: Callable[[int], float]) -> None:
        end = self.now + seconds
        while self.now < end:
            duration = time_of(self.tuner.threads)
            self.now += duration
            self.used.append(self.tuner.threads)
            line = self.tuner.record(duration)
            if line:
                self.lines.append(line)


def idle(count: int) -> float:
    return 0.01 / count**0.8


def contended(count: int) -> float:
    return 0.01 if count == 1 else 0.3


def test_starts_with_one_and_takes_more_on_an_idle_machine() -> None:
    machine = Machine([1, 2, 4])
    assert machine.tuner.threads == 1
    machine.run(5, idle)
    assert machine.tuner.threads == 4
    assert len(machine.lines) == 1
    assert machine.lines[0].startswith("threads: 4 (updates by threads: 1: 100/s, 2: 174/s")


def test_stays_at_one_beside_busy_processes_at_little_cost() -> None:
    machine = Machine([1, 2, 4])
    machine.run(300, contended)
    assert machine.tuner.threads == 1
    assert len(machine.lines) == 1, "it is said once"
    assert machine.lines[0].startswith("threads: 1; more gain too little")
    lost = sum(0.3 for used in machine.used if used > 1)
    assert lost < 0.05 * 300
    assert 2 in machine.used[1000:], "it looks again later"


def test_gives_up_threads_at_once_when_they_become_slow_and_takes_them_again_later() -> None:
    machine = Machine([1, 2])
    machine.run(5, idle)
    assert machine.tuner.threads == 2
    begin = machine.now
    while machine.tuner.threads == 2:
        machine.run(0.0001, contended)
    assert machine.now - begin < 3.0
    assert "became slow" in machine.lines[-1]
    machine.run(10, contended)
    assert machine.tuner.threads == 1
    machine.run(400, idle)
    assert machine.tuner.threads == 2


def test_a_few_slow_updates_in_a_row_are_no_reason_to_give_up_threads() -> None:
    machine = Machine([1, 2])
    machine.run(5, idle)
    hiccup = iter([0.05] * 6)  # a controller that logs has one of the cores for a moment
    machine.run(1, lambda count: next(hiccup, idle(count)))
    assert machine.tuner.threads == 2
    machine.run(3, lambda count: 1.1 * idle(1))  # a little slower than one for a while
    assert machine.tuner.threads == 2
    machine.run(1, lambda count: 1.5 * idle(1))
    assert machine.tuner.threads == 1


def test_a_measurement_sees_past_moments_in_which_others_need_a_core() -> None:
    busy = cycle([1.0, 1.0, 3.0])  # every third update meets a sampler
    machine = Machine([1, 2])
    machine.run(5, lambda count: idle(count) * (next(busy) if count > 1 else 1.0) ** 0.5)
    assert machine.tuner.threads == 2


def test_threads_that_only_look_good_while_they_are_measured_are_tried_ever_more_rarely() -> None:
    company = cycle([0.6, 0.6, 4.0, 4.0])  # lower quartile better than one thread, mean much worse
    machine = Machine([1, 2])
    machine.run(1200, lambda count: 0.01 if count == 1 else 0.01 * next(company))
    tries = sum(now > before for before, now in pairwise(machine.used))
    assert 3 < tries < 20
    assert machine.now < 1.02 * 0.01 * len(machine.used)


def test_an_explicit_number_is_used_unless_the_machine_is_contended() -> None:
    slightly_worse: Callable[[int], float] = lambda count: 0.01 if count == 1 else 0.012  # noqa: E731
    machine = Machine([1, 3], preferred=3)
    machine.run(5, slightly_worse)
    assert machine.tuner.threads == 3
    machine.run(10, lambda count: 0.01 if count == 1 else 0.3)
    assert machine.tuner.threads == 1
    machine.run(400, slightly_worse)
    assert machine.tuner.threads == 3
    automatic = Machine([1, 3])
    automatic.run(5, slightly_worse)
    assert automatic.tuner.threads == 1


def test_what_a_plan_found_good_is_kept_where_nothing_else_is_worth_a_change() -> None:
    for slower, kept in ((1.05, 2), (1.1, 1), (1.45, 1)):  # two threads beside one: by so much
        by_threads = {1: 0.01, 2: 0.01 * slower, 4: 0.02}
        machine = Machine([1, 2, 4], guess=2)
        machine.run(60, by_threads.__getitem__)
        assert machine.tuner.threads == kept
    machine = Machine([1, 2, 4], guess=1)
    machine.run(5, idle)
    assert machine.tuner.threads == 4, "a plan for one thread is looked at again as well"


def test_measures_again_after_the_executor_changed() -> None:
    machine = Machine([1, 2])
    machine.run(5, contended)
    machine.tuner.restart()
    machine.run(3, idle)
    assert machine.tuner.threads == 2
    said = len(machine.lines)
    machine.tuner.restart()
    machine.run(3, idle)
    assert len(machine.lines) == said, "nothing has changed"


def test_one_core_needs_no_measurement() -> None:
    machine = Machine([1])
    machine.run(5, idle)
    assert set(machine.used) == {1}


@pytest.mark.parametrize(
    ("threads", "available", "most", "settles"),
    [
        *(("auto", 4, 4, 1), ("auto_2", 4, 4, 2), ("auto_3", 4, 4, 3), ("auto_8", 2, 2, 2), ("auto_2", 1, 1, 1)),
        (3, 4, 3, 3),
    ],
)
def test_the_option(threads: int | str, available: int, most: int, settles: int) -> None:
    found = tuner(threads, available)
    assert found.most == most
    for _ in range(400):
        found.record(0.01)
    assert found.threads == settles, "equal times: what was asked for, then what was found good, else one"


def test_candidates() -> None:
    assert candidates("auto", 1) == [1]
    assert candidates("auto", 2) == [1, 2]
    assert candidates("auto", 6) == [1, 2, 4, 6]
    assert candidates(1, 8) == [1]
    assert candidates(3, 2) == [1, 3]


def test_environment_keeps_what_the_user_has_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    for name in MEMORY:
        monkeypatch.delenv(name, raising=False)
    assert learner_environment(2000) == {"GOMP_SPINCOUNT": "2000"} | MEMORY
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    assert learner_environment(2000) == MEMORY
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "0")
    assert set(learner_environment(2000)) == {"MALLOC_MMAP_THRESHOLD_"}
