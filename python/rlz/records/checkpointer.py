"""Writing checkpoints: one moment of a run as a folder, whole or absent (`checkpoint.py` says what is in it)."""

import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlz.errors import CheckpointError
from rlz.records.checkpoint import LATEST, LEARNER, NAME, PRIORITIES, step_folders
from rlz.records.checkpoint_state import FORMAT, STATE, Checksum, State, read_state
from rlz.records.policy_files import PolicyFiles, check_finite
from rlz.records.replay_files import ReplaySaver, remove_unused
from rlz.records.totals import Totals
from rlz.system.files import new_folder, point_to, write_file
from rlz.system.notices import notice

if TYPE_CHECKING:
    from rlz.answers import PolicySpec
    from rlz.config import RunConfig
    from rlz.envs.spaces import EnvSpec
    from rlz.transport import Streams

KEEP = 3
"""Newest checkpoints that are kept (and the best policy, always)."""

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
            config=self._config,
            env_spec=self._env_spec,
            parameters=policy,
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


def _free_name(folder: Path, env_steps: int) -> str:
    """Name that sorts after every other of the same env steps (a removed one's is not used again)."""
    name = f"step-{env_steps:012d}"
    matches = (NAME.fullmatch(path.name) for path in folder.glob(f"{name}*"))
    number = max((int(match[2] or 1) for match in matches if match), default=0) + 1
    return name if number == 1 else f"{name}-{number}"
