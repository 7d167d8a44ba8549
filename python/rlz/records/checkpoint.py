"""Checkpoints: everything that a run needs to go on, as folders that are whole or absent.

`<run>/checkpoints/step-<env steps>/` holds

- `state.json`: counters, random streams, rows that belong to it, checksums of the other files (`checkpoint_state.py`);
- `learner.safetensors`: networks, optimisers and whatever else the learner calls its state;
- `priorities.safetensors`: priorities of the rows, where they are drawn by priority (`priorities.py`);
- `policy.safetensors` and `policy.json`: the actor, as `rlz.load` reads it.

`latest` is a symbolic link to the newest. Rows of the replay buffer are in `<run>/replay` (`replay_files.py`). Nothing
is ever pickled. A folder gets its name only after every file in it is on the disk and every number in it is finite.
"""

import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlz.errors import CheckpointError, TransportError
from rlz.records.checkpoint_state import FORMAT, STATE, Checksum, State, read_state
from rlz.records.policy_files import DESCRIPTION, TENSORS, PolicyFiles, check_finite
from rlz.records.replay_files import ReplaySaver, SavedReplay, check_rows, remove_unused
from rlz.records.totals import Totals
from rlz.system.files import new_folder, point_to, write_file
from rlz.system.notices import notice

if TYPE_CHECKING:
    from rlz._native import Replay
    from rlz.answers import PolicySpec
    from rlz.config import RunConfig
    from rlz.envs.spaces import EnvSpec
    from rlz.transport import Streams

KEEP = 3
"""Newest checkpoints that are kept (and the best policy, always)."""

LEARNER = "learner.safetensors"
PRIORITIES = "priorities.safetensors"
LATEST = "latest"
_NAME = re.compile(r"step-(\d{12,})(?:-(\d+))?")
_CUT_TRIES = 1000


class Cut(NamedTuple):
    """One moment of a run: env steps, updates, rows committed to each lane, states of workers (serial mode), totals."""

    env_steps: int
    updates: int
    committed: list[int]
    workers: dict[str, Any]
    totals: Totals


_states: dict[str, Callable[[], Any]] = {}
"""Give the states of the workers that take turns with the one that writes the checkpoints, by name."""


def save_states(states: Mapping[str, Callable[[], Any]]) -> None:
    """From now on, put these states (JSON values, by worker) into every checkpoint that this process writes.

    Only of workers that are between two steps whenever a cut is taken: those that take turns in one process.
    """
    _states.clear()
    _states.update(states)


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


class Checkpointer:
    """Writes the checkpoints of a run (used by the learner: its update is the barrier of the cut).

    Parameters
    ----------
    run_dir : run folder.
    streams : the run's streams; only read.
    config, env_spec, acts : for `policy.json`, as in `PolicyFiles.of`.
    """

    def __init__(
        self,
        run_dir: Path,
        streams: "Streams",
        config: "RunConfig",
        env_spec: "EnvSpec",
        acts: "PolicySpec | None" = None,
    ) -> None:
        self._acts = acts
        self._run_dir = Path(run_dir)
        self._folder = self._run_dir / "checkpoints"
        self._streams = streams
        self._config = config
        self._env_spec = env_spec
        rows = streams.learned_from
        self._replay = ReplaySaver(self._run_dir, rows) if config.save_replay and rows is not None else None
        self._last: tuple[Any, Path] | None = None

    def save(
        self,
        learner_state: Mapping[str, Any],
        policy: NDArray[np.uint8],
        counters: Mapping[str, Any],
        rng: Mapping[str, str],
        extra: Mapping[str, Any] | None = None,
        cut: Cut | None = None,
        priorities: Mapping[str, NDArray[Any]] | None = None,
    ) -> Path | None:
        """Write a checkpoint of this moment.

        Parameters
        ----------
        learner_state : tensors (numpy arrays or CPU torch tensors) by name.
        policy : the packed actor, as published.
        counters : the learner's counters, JSON values.
        rng : states of the random streams "replay" and "learner", as hexadecimal text.
        extra : further JSON values.
        cut : the moment (see `cut`) that the rest belongs to, when it has passed; None: now.
        priorities : of the replay buffer's rows, where they are drawn by priority.

        Returns
        -------
        Its folder, or None when it could not be written (disk full): the previous checkpoints stay and the run goes on.

        Raises
        ------
        NonFiniteError
            A tensor holds a number that is not finite; nothing was written.
        """
        tensors = {name: as_array(value) for name, value in learner_state.items()}
        check_finite(tensors, "learner")
        env_steps, updates, committed, workers, totals = self.cut() if cut is None else cut
        mark = (env_steps, updates, tuple(committed))
        if self._last is not None and self._last[0] == mark and self._last[1].is_dir():
            return self._last[1]
        version = int(counters.get("version", self._streams.parameters.version()))
        files = PolicyFiles.of(
            *(self._config, self._env_spec, policy),
            version=version,
            env_steps=env_steps,
            updates=updates,
            acts=self._acts,
        )
        state = {
            "format": FORMAT,
            "created": time.time(),
            "env_steps": env_steps,
            "updates": updates,
            "counters": {**counters, "learning_starts": self._streams.limiter.learning_starts},
            "rng": dict(rng),
            "extra": dict(extra or {}),
            "workers": workers,
            "totals": totals,
        }
        try:
            path = self._write(tensors, files, state, committed, priorities)
        except OSError as error:
            notice(
                f"CHECKPOINT NOT WRITTEN at {env_steps:,} env steps: {error.strerror or error}. The run goes on; the "
                f"previous checkpoints stay. Make room on the disk of {self._run_dir}"
            )
            return None
        self._last = (mark, path)
        return path

    def cut(self) -> Cut:
        """Counters of this moment, for a later `save` (in a thread, while updates go on).

        Samplers go on meanwhile (until the replay ratio holds them), so both are read until nothing moved between.
        """
        limiter, rows = self._streams.limiter, self._streams.learned_from
        for _ in range(_CUT_TRIES):
            before = limiter.lane_steps()
            written = self._streams.committed()
            committed = [] if rows is None else rows.committed()
            if limiter.lane_steps() == before:
                break
        workers = {name: state() for name, state in _states.items()}
        env_steps, updates = limiter.env_steps, limiter.updates
        # After the steps: no line of the log that stays at a resume is ahead of these.
        totals = Totals.of(self._streams, steps=before, committed=written, writing=1)
        return Cut(env_steps, updates, committed, workers, totals)

    def _write(
        self,
        tensors: dict[str, NDArray[Any]],
        files: PolicyFiles,
        state: dict[str, Any],
        committed: list[int],
        priorities: Mapping[str, NDArray[Any]] | None,
    ) -> Path:
        from safetensors.numpy import save

        saved = self._replay.save(committed) if self._replay is not None else None
        state["replay"] = saved
        path = self._folder / _free_name(self._folder, state["env_steps"])
        with new_folder(path) as temporary:
            write_file(temporary / LEARNER, save(tensors))
            if priorities is not None and saved is not None:
                write_file(temporary / PRIORITIES, save(dict(priorities)))
            files.write(temporary)
            sums = {file.name: Checksum.of(file.read_bytes()) for file in sorted(temporary.iterdir())}
            checked = State.model_validate({**state, "files": sums})
            write_file(temporary / STATE, (checked.model_dump_json(indent=1) + "\n").encode())
        point_to(self._folder / LATEST, path.name)
        self._remove_old()
        return path

    def _remove_old(self) -> None:
        kept = step_folders(self._folder)
        for path in kept[:-KEEP]:
            shutil.rmtree(path, ignore_errors=True)
        needed = []
        for path in kept[-KEEP:]:
            try:
                saved = read_state(path).replay
            except CheckpointError:
                continue
            if saved is not None:
                needed.append(saved)
        remove_unused(self._run_dir, needed)


def as_array(value: Any) -> NDArray[Any]:
    """Give a tensor (numpy, or torch without importing it) as a C-contiguous numpy array."""
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    return np.asarray(value, order="C")


def step_folders(checkpoints: Path) -> list[Path]:
    """Finished checkpoints, oldest first."""
    found = []
    for path in checkpoints.glob("step-*"):
        match = _NAME.fullmatch(path.name)
        if match and path.is_dir():
            found.append((int(match[1]), int(match[2] or 0), path))
    return [path for *_, path in sorted(found)]


def _free_name(folder: Path, env_steps: int) -> str:
    """Name that sorts after every other of the same env steps (a removed one's is not used again)."""
    name = f"step-{env_steps:012d}"
    matches = (_NAME.fullmatch(path.name) for path in folder.glob(f"{name}*"))
    number = max((int(match[2] or 1) for match in matches if match), default=0) + 1
    return name if number == 1 else f"{name}-{number}"


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
