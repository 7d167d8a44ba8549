"""Priorities of the replay buffer's rows in a checkpoint, and back into a buffer that counts its rows anew.

A weight is priority^alpha of one row. Rows that the file does not know (written after the newest draw) count as new.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rlz.errors import CheckpointError
from rlz.records.replay_files import SavedReplay, open_rows

if TYPE_CHECKING:
    from rlz._native import PrioritizedSampler, Replay
    from rlz.records.checkpoint import Checkpoint

Weights = NDArray[np.float64]


@dataclass(frozen=True)
class Priorities:
    """Weights of the rows of every lane.

    Attributes
    ----------
    first : ticket of the first weight of each lane.
    positions : place of that row among its lane's leaves; draws depend on it.
    weights : of each lane, one per row.
    largest : largest priority so far (before the exponent), which new rows get.
    """

    first: list[int]
    positions: list[int]
    weights: list[Weights]
    largest: float

    @staticmethod
    def of(sampler: "PrioritizedSampler", lanes: int) -> "Priorities":
        """Take them from a sampler, as of its newest draw or update."""
        found = [sampler.weights(lane) for lane in range(lanes)]
        return Priorities(
            [first for first, _, _ in found],
            [position for _, position, _ in found],
            [weights for _, _, weights in found],
            sampler.largest,
        )

    def tensors(self) -> dict[str, NDArray[Any]]:
        """Arrays to be saved."""
        return {
            "first": np.array(self.first, np.uint64),
            "positions": np.array(self.positions, np.uint64),
            "counts": np.array([len(weights) for weights in self.weights], np.uint64),
            "weights": np.concatenate([np.zeros(0), *self.weights]),
            "largest": np.array([self.largest]),
        }

    @staticmethod
    def from_tensors(tensors: Mapping[str, NDArray[Any]]) -> "Priorities":
        """Inverse of `tensors`. CheckpointError for anything else."""
        try:
            counts = tensors["counts"].astype(np.int64)
            weights = np.asarray(tensors["weights"], np.float64)
            shapes = {tensors[name].shape for name in ("first", "positions", "counts")}
            if shapes != {(len(counts),)} or counts.sum() != len(weights) or (counts < 0).any():
                raise ValueError(f"{len(weights)} weights for lanes of {counts.tolist()}")
            return Priorities(
                [int(first) for first in tensors["first"]],
                [int(position) for position in tensors["positions"]],
                np.split(weights, np.cumsum(counts)[:-1]),
                float(tensors["largest"][0]),
            )
        except (KeyError, ValueError, IndexError) as error:
            raise CheckpointError(f"the priorities in the checkpoint are broken: {error}") from error

    def of_rows(self, lane: int, tickets: NDArray[np.int64], *, new: float) -> Weights:
        """Weights of some rows of a lane; `new` for those that are not known."""
        known = self.weights[lane]
        index = tickets - self.first[lane]
        inside = (index >= 0) & (index < len(known))
        result = np.full(len(tickets), new)
        result[inside] = known[index[inside]]
        return result


def restore_priorities(
    sampler: "PrioritizedSampler", checkpoint: "Checkpoint", replay: "Replay", *, alpha: float
) -> int | None:
    """Give the rows that `Checkpoint.restore_replay` put back their priorities; returns how many are in the window.

    Parameters
    ----------
    sampler : of `replay`, before its first draw.
    checkpoint : the one that the rows came from.
    replay : buffer of the resumed run; its number of lanes may be another than before.
    alpha : exponent of the run, the same as before.

    Returns
    -------
    None when the checkpoint has none (the run was not prioritised, or its rows were not saved).

    Raises
    ------
    CheckpointError
        The file, or one with rows, is broken.
    """
    if checkpoint.priorities is None or checkpoint.replay is None:
        return None
    saved = Priorities.from_tensors(checkpoint.priorities)
    by_lane = _in_restored_order(saved, checkpoint.replay, checkpoint, replay.lanes, new=saved.largest**alpha)
    # The row that is the first one now, at the place that it had.
    places = [0] * replay.lanes
    if len(saved.weights) == replay.lanes:
        oldest = [
            files[0].first if files else first
            for files, first in zip(checkpoint.replay.lanes, saved.first, strict=True)
        ]
        moved = zip(saved.positions, saved.first, oldest, strict=True)
        places = [(position - (first - old)) % replay.lane_capacity for position, first, old in moved]
    return sum(
        sampler.restore_weights(lane, 1, places[lane], weights, saved.largest) for lane, weights in enumerate(by_lane)
    )


def _in_restored_order(
    saved: Priorities, replay: SavedReplay, checkpoint: "Checkpoint", lanes: int, *, new: float
) -> list[Weights]:
    """Weights of each lane of the new buffer, in the order in which `Replay.load` appends its rows."""
    if len(saved.weights) != len(replay.lanes):
        raise CheckpointError(
            f"{checkpoint.path} has priorities of {len(saved.weights)} lanes, rows of {len(replay.lanes)}"
        )
    # Of every row that was saved: where it came from, how old it is, and its weight.
    parts = []
    for lane, files in enumerate(replay.lanes):
        for rows in open_rows(checkpoint.run_dir, files):
            tickets = rows["rlz.ticket"].astype(np.int64)
            parts.append((np.full(len(tickets), lane), files[-1].last - tickets, saved.of_rows(lane, tickets, new=new)))
    if not parts:
        return [np.zeros(0)] * lanes
    source, age, weights = (np.concatenate(column) for column in zip(*parts, strict=True))
    if len(replay.lanes) == lanes:
        return [weights[source == lane] for lane in range(lanes)]
    dealt = weights[np.lexsort((source, -age))]
    return [np.ascontiguousarray(dealt[lane::lanes]) for lane in range(lanes)]
