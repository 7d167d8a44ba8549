import os

import pytest

from rlz._native import StatsBoard
from rlz.errors import TransportError
from rlz.transport.stats import EVENT_CAPACITY, EVENT_WIDTH, STAT_NAMES, Stat, StatsRow


def make() -> StatsBoard:
    return StatsBoard.create(
        slots=3, names=STAT_NAMES, event_width=EVENT_WIDTH, event_capacity=EVENT_CAPACITY, run_id=1
    )


def test_names_follow_the_enum() -> None:
    assert list(Stat) == list(range(len(Stat)))
    assert STAT_NAMES[Stat.ENV_STEPS] == "env_steps"
    assert STAT_NAMES[Stat.WAIT_LIMITER_S] == "wait_limiter_s"
    assert len(set(STAT_NAMES)) == len(STAT_NAMES)


def test_a_row_writes_its_slot_only() -> None:
    board = make()
    row = StatsRow(board, 1)
    row.set(Stat.LEARNING_RATE, 0.5)
    row.add(Stat.ENV_STEPS, 3)
    row.add(Stat.ENV_STEPS, 4.0)
    values = board.read()
    assert values[1][Stat.LEARNING_RATE] == 0.5
    assert values[1][Stat.ENV_STEPS] == 7.0
    values[1][[Stat.LEARNING_RATE, Stat.ENV_STEPS]] = 0.0
    assert not values.any()


def test_events_are_padded() -> None:
    board = make()
    row = StatsRow(board, 2)
    row.push_event((-5.0, 200.0, 1_000), ())
    row.push_event(range(EVENT_WIDTH), ())
    following, events = board.events(2, 0)
    assert following == 2
    assert events[0].tolist() == [-5.0, 200.0, 1_000.0, *[0.0] * (EVENT_WIDTH - 3)]
    assert events[1].tolist() == list(range(EVENT_WIDTH))
    assert board.events(1, 0)[1].shape == (0, EVENT_WIDTH)


def test_a_board_behind_a_read_only_descriptor_can_only_be_read() -> None:
    board = make()
    fd = os.open(f"/proc/self/fd/{board.fd}", os.O_RDONLY)
    view = StatsBoard.attach(fd)
    os.close(fd)
    StatsRow(board, 1).set(Stat.LEARNING_RATE, 0.5)
    assert view.read()[1][Stat.LEARNING_RATE] == 0.5
    with pytest.raises(TransportError, match="read-only"):
        StatsRow(view, 1).set(Stat.LEARNING_RATE, 0.5)
