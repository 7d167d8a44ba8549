"""What the controller saves when the learner has died: the rows of the replay buffer, which outlive it in memory."""

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rlz.runtime.checkpoint import Checkpoint
from rlz.runtime.files import replace_file
from rlz.runtime.replay_files import ReplaySaver, SavedReplay

if TYPE_CHECKING:
    from rlz.transport import Streams

SALVAGE = "salvage.json"


def save_replay(run_dir: Path, streams: "Streams") -> int:
    """Save the rows of a run whose workers are gone; returns how many.

    Raises
    ------
    OSError
        The disk is full, or the folder cannot be written.
    """
    committed = streams.replay.committed()
    saved = ReplaySaver(run_dir, streams.replay).save(committed)
    value = {"env_steps": streams.limiter.env_steps, "replay": saved.to_json()}
    replace_file(run_dir / SALVAGE, (json.dumps(value, indent=1) + "\n").encode())
    return sum(file.last - file.first + 1 for files in saved.lanes for file in files)


def with_salvaged_rows(checkpoint: Checkpoint) -> Checkpoint:
    """Return the checkpoint with the rows and the env steps that came after it, where they were saved.

    The learner then makes the updates that it owes for them before the samplers go on: the replay ratio stays exact.
    """
    try:
        value = json.loads((checkpoint.run_dir / SALVAGE).read_text())
        saved = SavedReplay.from_json(value["replay"])
        env_steps = int(value["env_steps"])
        whole = all((checkpoint.run_dir / path).stat().st_size for path in saved.paths())
    except (OSError, ValueError, KeyError, TypeError):
        return checkpoint
    if not whole or env_steps <= checkpoint.env_steps:
        return checkpoint
    return replace(checkpoint, env_steps=env_steps, replay=saved, workers={})
