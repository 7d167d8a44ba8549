"""Names of the numbers on the stats board, and a worker's own row of it."""

from collections.abc import Mapping, Sequence
from enum import IntEnum, auto
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlz._native import PhaseClock, StatsBoard

EVENT_WIDTH = 13
"""Numbers per event, without those of the last info (`at_end_names`).

A sampler's event is an episode: return, length, global index of its last env step + 1, env slot, monotonic time (s).
An evaluator's: version, env_steps, updates, mean, standard deviation, minimum and maximum return, mean and standard
deviation of the length, episodes, wall time (s), 1 when it is the best so far. Missing numbers are 0.
"""

SUCCESS = "is_success"
"""Key in an episode's last info that says whether it was a success; logged without being asked for."""


def at_end_keys(log_info: Sequence[str]) -> tuple[str, ...]:
    """Keys of the numbers in an episode's last info that every event ends with; NaN where there is no such number."""
    return (SUCCESS, *log_info)


def at_end_names(log_info: Sequence[str]) -> tuple[str, ...]:
    """Their names in tags and columns."""
    return ("success_rate", *(f"info/{key}" for key in log_info))


EVENT_CAPACITY = 256
"""Events that a slot keeps; a reader that comes later than that misses the oldest."""


class Stat(IntEnum):
    """A number of a worker's row. Counters only grow, over restarts too; gauges hold the newest value."""

    @staticmethod
    def _generate_next_value_(name: str, start: int, count: int, last_values: list[int]) -> int:
        return count

    ENV_STEPS = auto()
    """Counter: env steps of this sampler."""
    EPISODES = auto()
    """Counter: finished episodes."""
    RETURN_SUM = auto()
    """Counter: sum of their undiscounted returns."""
    LENGTH_SUM = auto()
    """Counter: sum of their lengths in env steps."""
    POLICY_LAG_SUM = auto()
    """Counter: sum over transitions of (newest version - version used)."""
    POLICY_LAG_COUNT = auto()
    """Counter: transitions in that sum."""
    WAIT_LIMITER_S = auto()
    """Counter: seconds waited for the replay ratio; a wait that is open is not in it yet."""
    WAIT_PARAMETERS_S = auto()
    """Counter: seconds waited for parameters."""
    WAIT_BATCH_S = auto()
    """Counter: seconds the learner waited for a batch, the inference server for requests."""
    WAIT_ANSWER_S = auto()
    """Counter: seconds a sampler waited for the answers of the inference server."""
    RESET_S = auto()
    """Counter: seconds a sampler's environments took to reset after their episodes."""
    ACT_S = auto()
    """Counter: seconds in which a sampler chose actions."""
    ENVIRONMENT_S = auto()
    """Counter: seconds in steps of a sampler's environments."""
    COPY_S = auto()
    """Counter: seconds in which a sampler wrote rows and counted them."""
    DRAW_S = auto()
    """Counter: seconds in which the learner drew batches; a wait for one is not in it."""
    UPDATE_S = auto()
    """Counter: seconds in updates."""
    EVALUATE_S = auto()
    """Counter: seconds in evaluations."""
    OTHER_S = auto()
    """Counter: seconds of a worker between all those; in serial mode those of the others' turns as well."""
    WAITING_FOR = auto()
    """Gauge: what the worker waits for right now, a `Waiting`."""
    WAITING_SINCE = auto()
    """Gauge: since when, `time.monotonic()`; meaningful while WAITING_FOR is not NOTHING."""
    UPDATES = auto()
    """Counter: updates of this learner."""
    FRAMES = auto()
    """Counter: rows of those updates."""
    ROWS_WRITTEN = auto()
    """Counter: rows committed to the replay buffer; of the inference server, answers."""
    BATCHES = auto()
    """Counter: batches that the inference server answered."""
    STEPS_OFFSET = auto()
    """Gauge: env steps of this sampler's lanes before a resume; the limiter's counts of its lanes begin at 0 then."""
    ROWS_OFFSET = auto()
    """Gauge: rows written to its lanes before a resume, less those that lay in the buffer when it went on."""
    ROWS_PENDING = auto()
    """Gauge: env steps whose rows are not written yet (n-step windows)."""
    POLICY_VERSION = auto()
    """Gauge: parameter version in use."""
    ACTOR_STALENESS = auto()
    """Gauge: mean updates by which the actor that the critics saw was behind (two devices)."""
    LEARNING_RATE = auto()
    """Gauge: learning rate in use."""
    SEGMENT_LAG = auto()
    """Gauge: mean versions by which the segments of the newest rollout were behind when they were learned from."""
    SEGMENTS_DROPPED = auto()
    """Counter: segments whose policy was older than the run allows."""
    PRIORITY_BETA = auto()
    """Gauge: exponent of the importance weights in use (prioritised replay)."""
    PRIORITIES_STALE = auto()
    """Counter: new priorities that came after their row had left the buffer."""
    BATCH_SIZE = auto()
    """Gauge: rows of an update."""
    ROW_USES = auto()
    """Gauge: environments that step."""
    TRYING = auto()
    """Gauge: 1 while throughput mode compares another setting, or compiles for it."""
    THREADS = auto()
    """Gauge: torch threads in use."""
    COMPILED = auto()
    """Gauge: 1 when the compiled executor runs."""
    PUBLISH_S = auto()
    """Counter: seconds spent publishing."""
    CHECKPOINTS = auto()
    """Counter: checkpoints written."""
    CHECKPOINTS_ASKED = auto()
    """Counter: checkpoints that somebody has asked for; the controller counts them in the sink's row."""
    EVALUATIONS = auto()
    """Counter: evaluations finished."""
    EVALUATIONS_SKIPPED = auto()
    """Counter: evaluations that were due while one was running."""
    READY_S = auto()
    """Gauge: `time.monotonic()` of the first step or update of this process, 0 before."""
    RESTARTS = auto()
    """Counter: how often the controller restarted this worker."""
    HEARTBEAT = auto()
    """Gauge: `time.monotonic()` of the newest sign of life. For people: nobody is declared dead by it."""
    RUN_BEGAN = auto()
    """Gauge: `time.monotonic()` when the run would have begun had it never been interrupted; the same in every row."""


PHASES: Mapping[str, Stat] = {
    "act": Stat.ACT_S,
    "environment": Stat.ENVIRONMENT_S,
    "reset": Stat.RESET_S,
    "copy": Stat.COPY_S,
    "draw": Stat.DRAW_S,
    "update": Stat.UPDATE_S,
    "publish": Stat.PUBLISH_S,
    "evaluate": Stat.EVALUATE_S,
    "other": Stat.OTHER_S,
}
"""Where a worker's time goes while it works: counters of seconds by name. The waits come on top."""

TRACE_EVENTS = 4096
"""Phases of a worker that the trace keeps: of the fastest one, those of some 50 ms."""

TOTALS = (
    *(Stat.ENV_STEPS, Stat.FRAMES, Stat.ROWS_WRITTEN, Stat.EPISODES, Stat.RETURN_SUM, Stat.LENGTH_SUM),
    *(Stat.POLICY_LAG_SUM, Stat.POLICY_LAG_COUNT, Stat.PRIORITIES_STALE, Stat.SEGMENTS_DROPPED, Stat.PUBLISH_S),
    *(Stat.WAIT_LIMITER_S, Stat.WAIT_PARAMETERS_S, Stat.WAIT_BATCH_S, Stat.WAIT_ANSWER_S, Stat.RESET_S),
    *(Stat.CHECKPOINTS, Stat.EVALUATIONS_SKIPPED, Stat.RESTARTS, Stat.POLICY_VERSION),
)
"""What a checkpoint keeps, for figures that only grow. Updates are the limiter's, evaluations in `evaluations.csv`."""

LEARNERS_OWN = Stat.ROW_USES, Stat.TRYING, Stat.SEGMENT_LAG
"""Gauges that not every learner has; NaN: it has none."""

EPISODE_WINDOW = 100
"""Episodes over which return and length are averaged (SB3's window)."""

STAT_NAMES: tuple[str, ...] = tuple(stat.name.lower() for stat in Stat)
"""Names of the values that every board has, in the order of `Stat`. The metrics of the algorithm follow."""


def metric(index: int) -> int:
    """Column of an algorithm's metric: a gauge. NaN: not measured yet."""
    return len(Stat) + index


class Waiting(IntEnum):
    """What a worker waits for (`Stat.WAITING_FOR`)."""

    NOTHING = 0
    LIMITER = 1
    PARAMETERS = 2
    BATCH = 3
    ANSWER = 4


def make_trace(slots: int, run_id: int = 0) -> StatsBoard:
    """Make the board on which workers keep the time line of their newest phases (`rlz._native.PhaseClock`)."""
    return StatsBoard.create(
        slots=slots, names=("phase", "since"), event_width=3, event_capacity=TRACE_EVENTS, run_id=run_id
    )


class LaneCounts(NamedTuple):
    """Env steps and rows of a sampler's lanes over the whole run."""

    env_steps: int
    rows: int

    @staticmethod
    def of(
        row: NDArray[np.float64], lanes: Sequence[int], steps: Sequence[int], committed: Sequence[int]
    ) -> "LaneCounts":
        """Count them.

        Parameters
        ----------
        row : the sampler's row of the board [len(Stat)].
        lanes : its lanes.
        steps, committed : counts of every lane, by the limiter and by the replay buffer.
        """
        return LaneCounts(
            sum(steps[lane] for lane in lanes) + int(row[Stat.STEPS_OFFSET]),
            sum(committed[lane] for lane in lanes) + int(row[Stat.ROWS_OFFSET]),
        )


class StatsRow:
    """A worker's own row of the board.

    Parameters
    ----------
    board : the run's stats board.
    slot : row; one worker writes it.
    trace : for the time line of the worker's phases (`make_trace`).

    Attributes
    ----------
    enter : ends the phase that the worker is in, and begins another: the counter of its seconds, a `Stat`.
    """

    __slots__ = ("_board", "_slot", "enter")

    def __init__(self, board: StatsBoard, slot: int, trace: StatsBoard | None = None) -> None:
        self._board = board
        self._slot = slot
        self.enter = PhaseClock(board, slot, trace).enter

    def set(self, stat: int, value: float) -> None:
        """Set a gauge."""
        self._board.set(self._slot, stat, value)

    def add(self, stat: int, value: float) -> None:
        """Add to a counter."""
        self._board.add(self._slot, stat, value)

    def push_event(self, values: Sequence[float], at_end: Sequence[float]) -> None:
        """Append an event: at most `EVENT_WIDTH` numbers, missing ones are 0, and those of `at_end_names`."""
        self._board.push_event(self._slot, [*values, *([0.0] * (EVENT_WIDTH - len(values))), *at_end])
