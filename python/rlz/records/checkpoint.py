"""Checkpoints: everything that a run needs to go on, as folders that are whole or absent (`checkpointer.py` writes).

`<run>/checkpoints/step-<env steps>/` holds

- `state.json`: counters, random streams, rows that belong to it, checksums of the other files (`checkpoint_state.py`);
- `learner.safetensors`: networks, optimisers and whatever else the learner calls its state;
- `priorities.safetensors`: priorities of the rows, where they are drawn by priority (`priorities.py`);
- `policy.safetensors` and `policy.json`: the actor, as `rlz.load` reads it.

`latest` is a symbolic link to the newest. Rows of the replay buffer are in `<run>/replay` (`replay_files.py`). Nothing
is ever pickled. A folder gets its name only after every file in it is on the disk and every number in it is finite.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from rlz.errors import CheckpointError, TransportError
from rlz.records.checkpoint_state import read_state
from rlz.records.policy_files import DESCRIPTION, TENSORS
from rlz.records.replay_files import SavedReplay, check_rows
from rlz.records.totals import Totals

if TYPE_CHECKING:
    from rlz._native import Replay

LEARNER = "learner.safetensors"
PRIORITIES = "priorities.safetensors"
LATEST = "latest"
NAME = re.compile(r"step-(\d{12,})(?:-(\d+))?")
"""Of a checkpoint's folder."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint read back and checked.

    Attributes
    ----------
    path : its folder.
    env_steps, updates : counters of the run at the cut.
    counters, rng, extra : as they were given to `Checkpointer.save`.
    workers : states of workers by name (those that took turns), else empty.
    learner : the learner's tensors by name.
    replay : where the rows are; None when they were not saved.
    priorities : of the rows (`rlz.records.priorities`); None without.
    totals : what the run had counted.
    """

    path: Path
    env_steps: int
    updates: int
    counters: dict[str, Any]
    rng: Mapping[str, str]
    extra: dict[str, Any]
    workers: dict[str, Any]
    learner: dict[str, NDArray[Any]]
    replay: SavedReplay | None
    priorities: dict[str, NDArray[Any]] | None = None
    totals: Totals = field(default_factory=Totals)

    @property
    def run_dir(self) -> Path:
        """Run folder that it belongs to."""
        return self.path.parent.parent

    @property
    def version(self) -> int:
        """Newest version of the parameters at the cut."""
        return int(self.counters.get("version", 0))

    def restore_replay(self, replay: "Replay", *, worker: int, open_episodes: bool = False) -> int:
        """Append the saved rows to an empty buffer whose lanes nobody owns; returns how many.

        With the same number of lanes each lane gets its own rows back; with another number they are dealt to the lanes
        in turn, in order of age (see `rlz._native.Replay.load`).

        Parameters
        ----------
        replay : the buffer of the resumed run.
        worker : id to write with.
        open_episodes : the environments go on where they were; otherwise the newest row of each lane is marked as
            truncated, because its episode ends there.

        Raises
        ------
        CheckpointError
            Rows were not saved, are of another layout, or a file is broken.
        """
        if self.replay is None:
            return 0
        files = [self.run_dir / file.path for lane in self.replay.lanes for file in lane]
        try:
            check_rows(self.run_dir, self.replay)
            return replay.load(files, worker=worker, open_episodes=open_episodes) if files else 0
        except (OSError, TransportError, CheckpointError) as error:
            raise CheckpointError(f"the replay buffer of {self.path} cannot be restored: {error}") from error


def step_folders(checkpoints: Path) -> list[Path]:
    """Finished checkpoints, oldest first."""
    found = []
    for path in checkpoints.glob("step-*"):
        match = NAME.fullmatch(path.name)
        if match and path.is_dir():
            found.append((int(match[1]), int(match[2] or 0), path))
    return [path for *_, path in sorted(found)]


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint folder (or link) and check that it is whole, its rows included (but for their contents).

    Raises
    ------
    CheckpointError
        As in `read_checkpoint`, or a file of rows is missing or has another size.
    """
    checkpoint = read_checkpoint(path)
    if checkpoint.replay is not None:
        check_rows(checkpoint.run_dir, checkpoint.replay)
    return checkpoint


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint folder (or link) and check that its own files are whole; the rows lie elsewhere.

    Raises
    ------
    CheckpointError
        Something is missing, broken, or of another format; says what.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load

    path = path.resolve()
    state = read_state(path)
    data = {name: state.read(path / name) for name in sorted({LEARNER, TENSORS, DESCRIPTION, *state.files})}
    try:
        learner = load(data[LEARNER])
        priorities = load(data[PRIORITIES]) if PRIORITIES in data else None
    except SafetensorError as error:
        raise CheckpointError(f"checkpoint {path} cannot be read: {error}") from error
    return Checkpoint(
        path=path,
        env_steps=state.env_steps,
        updates=state.updates,
        counters=state.counters,
        rng=state.rng.model_dump(),
        extra=state.extra,
        workers=state.workers,
        learner=learner,
        replay=state.replay,
        priorities=priorities,
        totals=state.totals,
    )


def newest_checkpoint(run_dir: Path) -> Checkpoint:
    """Read the newest checkpoint of a run that is whole, but for the records in its row files.

    Raises
    ------
    CheckpointError
        There is none; gives the reason for every broken one.
    """
    return next(checkpoints_newest_first(run_dir, [], load_checkpoint))


def checkpoints_newest_first(
    run_dir: Path, problems: list[str], load: Callable[[Path], Checkpoint]
) -> Iterator[Checkpoint]:
    """Read the checkpoints of a run as long as somebody asks for an older one; never ends without an error.

    Parameters
    ----------
    run_dir : run folder.
    problems : gets the reason for every broken one.
    load : `load_checkpoint` or `read_checkpoint`.

    Raises
    ------
    CheckpointError
        There is none any more; gives all problems.
    """
    for path in reversed(step_folders(run_dir / "checkpoints")):
        try:
            checkpoint = load(path)
        except CheckpointError as error:
            problems.append(str(error))
        else:
            yield checkpoint
    if problems:
        raise CheckpointError(f"{run_dir} has no checkpoint that can be read:\n" + "\n".join(problems))
    raise CheckpointError(f"{run_dir} has no checkpoint")
