"""What the controller saves when the learner has died: the rows of the replay buffer, which outlive it in memory."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict

from rlz.records.checkpoint import Checkpoint
from rlz.records.checkpoint_state import Count
from rlz.records.replay_files import ReplaySaver, SavedReplay
from rlz.records.totals import Totals
from rlz.system.files import replace_file

if TYPE_CHECKING:
    from rlz.transport import Streams

SALVAGE = "salvage.json"


class Salvage(BaseModel):
    """Contents of `salvage.json`: rows, the env steps that they stand for, and what was counted until then."""

    model_config = ConfigDict(strict=True)

    env_steps: Count
    replay: SavedReplay
    totals: Totals = Totals()


def save_replay(run_dir: Path, streams: "Streams") -> int:
    """Save the rows that were learned from, of a run whose workers are gone; returns how many.

    Raises
    ------
    OSError
        The disk is full, or the folder cannot be written.
    """
    rows = streams.learned_from
    assert rows is not None, "asked only where there are rows"
    saved = ReplaySaver(run_dir, rows).save(rows.committed())
    totals = Totals.of(streams, steps=streams.limiter.lane_steps(), committed=streams.committed())
    salvage = Salvage(env_steps=streams.limiter.env_steps, replay=saved, totals=totals)
    replace_file(run_dir / SALVAGE, (salvage.model_dump_json(indent=1) + "\n").encode())
    return sum(file.last - file.first + 1 for file in saved.files())


def with_salvaged_rows(checkpoint: Checkpoint) -> Checkpoint:
    """Return the checkpoint with the rows and the env steps that came after it, where they were saved.

    The learner then makes the updates that it owes for them before the samplers go on: the replay ratio stays exact.
    """
    try:
        salvage = Salvage.model_validate_json((checkpoint.run_dir / SALVAGE).read_bytes())
        whole = all((checkpoint.run_dir / file.path).stat().st_size == file.nbytes for file in salvage.replay.files())
    except (OSError, ValueError):
        return checkpoint
    if not whole or salvage.env_steps <= checkpoint.env_steps:
        return checkpoint
    # What learner and evaluator did since is lost, and so are their counts of it.
    totals = Totals(wall_s=salvage.totals.wall_s, workers={**checkpoint.totals.workers, **salvage.totals.steppers()})
    return replace(checkpoint, env_steps=salvage.env_steps, replay=salvage.replay, workers={}, totals=totals)
