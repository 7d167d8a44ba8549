"""How a wait looks on the stats board."""

import pytest

from rlz._native import StatsBoard
from rlz.transport.stats import EVENT_CAPACITY, EVENT_WIDTH, STAT_NAMES, Stat, StatsRow, Waiting
from rlz.workers.base import OpenWait, waiting


def test_a_wait_keeps_its_beginning_until_it_ends_and_counts_once() -> None:
    board = StatsBoard.create(
        slots=1, names=STAT_NAMES, event_width=EVENT_WIDTH, event_capacity=EVENT_CAPACITY, run_id=1
    )
    wait = OpenWait(StatsRow(board, 0))
    wait.end()
    assert not board.read().any()
    wait.begin(Waiting.LIMITER, Stat.WAIT_LIMITER_S)
    first = board.read()[0]
    wait.begin(Waiting.LIMITER, Stat.WAIT_LIMITER_S)
    assert (board.read()[0] == first).all()
    assert first[Stat.WAITING_FOR] == Waiting.LIMITER
    assert first[Stat.WAITING_SINCE] > 0
    wait.begin(Waiting.BATCH, Stat.WAIT_BATCH_S)  # another reason: the first wait is over
    row = board.read()[0]
    assert row[Stat.WAITING_FOR] == Waiting.BATCH
    assert row[Stat.WAIT_LIMITER_S] > 0
    wait.end()
    wait.end()
    row = board.read()[0]
    assert row[Stat.WAITING_FOR] == 0
    assert row[Stat.WAIT_BATCH_S] == pytest.approx(row[Stat.HEARTBEAT] - row[Stat.WAITING_SINCE], abs=0.01)


def test_a_wait_that_raises_is_over() -> None:
    board = StatsBoard.create(
        slots=1, names=STAT_NAMES, event_width=EVENT_WIDTH, event_capacity=EVENT_CAPACITY, run_id=1
    )
    try:
        with waiting(StatsRow(board, 0), Waiting.PARAMETERS, Stat.WAIT_PARAMETERS_S):
            assert board.read()[0][Stat.WAITING_FOR] == Waiting.PARAMETERS
            raise TimeoutError
    except TimeoutError:
        pass
    assert board.read()[0][Stat.WAITING_FOR] == 0
