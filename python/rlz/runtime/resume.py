"""Going on with a run from its newest checkpoint, in the same run folder."""

import uuid
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlz.errors import CheckpointError, ConfigError
from rlz.hardware.device import check_device
from rlz.runtime.checkpoint import Checkpoint, checkpoints_newest_first, step_folders
from rlz.runtime.files import remove_temporary, replace_file
from rlz.runtime.graph import MODULES
from rlz.runtime.memory import check_memory
from rlz.runtime.policy_files import read_description
from rlz.runtime.run_directory import RunDirectory, named_problems, open_run_directory
from rlz.runtime.salvage import SALVAGE, with_salvaged_rows
from rlz.runtime.train import Launch, launch, make_streams, private_files

if TYPE_CHECKING:
    from rlz.config import RunConfig
    from rlz.envs.spaces import EnvSpec
    from rlz.transport import Streams

FIXED = (
    *("algo", "env", "env_kwargs", "wrapper", "obs_dtype", "seed", "gamma", "replay_ratio", "learning_starts"),
    *("n_step_return", "prioritized", "priority_alpha", "priority_epsilon"),
    *("hidden", "activation", "layer_norm", "n_critics", "runs_dir", "name"),
)
"""Options that a resumed run cannot change: they are part of what was learned, or say which run it is."""


def resume(
    run: str | Path,
    overrides: Mapping[str, Any] | None = None,
    *,
    quiet: bool = False,
    modules: Mapping[str, str] = MODULES,
) -> int:
    """Go on with a run and return its exit status, as `train` does.

    Counters, networks, optimisers, schedules, replay buffer and random streams go on. The environments of asynchronous
    runs start new episodes; those that were open at the checkpoint are marked as truncated in the buffer.

    Parameters
    ----------
    run : run folder.
    overrides : options by name that differ now, for instance {"total_timesteps": 200_000} (the new total).

    Raises
    ------
    CheckpointError
        No such run, no checkpoint that can be read, the run is running, its spaces are others now, or the system
        refuses something within its folder.
    ConfigError
        An option cannot be changed, or no env steps are left to do.
    """
    from rlz import envs
    from rlz.config import RunConfig

    with (
        private_files(),
        closing(open_run_directory(Path(run))) as run_dir,
        named_problems(run_dir.path),
    ):
        before = RunConfig.from_toml(run_dir.config)
        config = resumed_config(run_dir, overrides or {})
        notes: list[str] = []
        env_spec = envs.inspect_env(config, on_note=notes.append)
        for device in config.learner_devices():
            check_device(device)
        check_memory(config, env_spec)
        checkpoint, streams = _restore(run_dir, config, env_spec, notes)
        with closing(streams):
            # Nothing in the folder was changed until here, where everything is known to fit.
            remove_temporary(run_dir.path)
            _put_aside(checkpoint)
            run_dir.count_start()
            replace_file(run_dir.config, config.to_toml().encode())
            notes += _announcement(config, checkpoint) + changes(before, config)
            return launch(Launch(config, env_spec, run_dir, notes, checkpoint, quiet, modules), streams)


def _restore(
    run_dir: RunDirectory, config: "RunConfig", env_spec: "EnvSpec", notes: list[str]
) -> "tuple[Checkpoint, Streams]":
    """Find the newest checkpoint that is whole, rows included, and make streams that hold its rows.

    Raises
    ------
    CheckpointError, ConfigError
        There is none, or it is of another run than the configuration says.
    """
    problems: list[str] = []
    for own in checkpoints_newest_first(run_dir.path, problems):
        salvaged = with_salvaged_rows(own)
        for checkpoint in [salvaged, own] if salvaged is not own else [own]:
            _check_precision(config, checkpoint)
            _check_spaces(checkpoint, env_spec)
            if config.total_timesteps <= checkpoint.env_steps:
                raise ConfigError(
                    f"{run_dir.path} has done {checkpoint.env_steps:,} of {config.total_timesteps:,} env steps. Give a "
                    f"larger total, such as --total-timesteps {2 * checkpoint.env_steps}"
                )
            try:
                streams = make_streams(config, env_spec, checkpoint)
            except CheckpointError as error:
                problems.append(str(error))
            else:
                notes += [f"NOT USED, because it is damaged: {problem}" for problem in problems]
                return checkpoint, streams
    raise AssertionError("unreachable: no checkpoint is an error")


def resumed_config(run_dir: RunDirectory, overrides: Mapping[str, Any]) -> "RunConfig":
    """Return the run's configuration with the changes; ConfigError shows both sides of one that is refused."""
    from rlz.config import RunConfig

    old = RunConfig.from_toml(run_dir.config)
    new = RunConfig.model_validate({**old.model_dump(), **overrides})
    for name in FIXED:
        before, after = getattr(old, name), getattr(new, name)
        if before != after:
            option = name.replace("_", "-")
            raise ConfigError(
                f"--{option} {after}: the run was trained with {before}, and a resumed run cannot change that. "
                "Leave it out, or start a new run"
            )
    return new


def changes(before: "RunConfig", after: "RunConfig") -> list[str]:
    """Lines about options of the optimiser that differ from now on."""
    return [
        f"from now on --{name.replace('_', '-')} {getattr(after, name)}, until here {getattr(before, name)}"
        for name in ("batch_size", "learning_rate", "scale_learning_rate")
        if getattr(before, name) != getattr(after, name)
    ]


def _check_precision(config: "RunConfig", checkpoint: Checkpoint) -> None:
    """Refuse another precision than the run has had; what auto stands for, the learner checks on its device."""
    saved = checkpoint.extra.get("precision", config.precision)
    if config.precision not in ("auto", saved):
        raise ConfigError(
            f"--precision {config.precision}: the run was trained in {saved}, and a resumed run cannot change that. "
            "Leave it out, or start a new run"
        )


def _check_spaces(checkpoint: Checkpoint, env_spec: "EnvSpec") -> None:
    description = read_description(checkpoint.path)
    saved = None if description is None else description.get("env_spec")
    now = env_spec.to_json()
    if saved != now:
        raise CheckpointError(
            f"the environment has changed since {checkpoint.path} was written.\nthen: {saved}\nnow:  {now}"
        )


def _put_aside(checkpoint: Checkpoint) -> None:
    """Rename what is later than the checkpoint, and damaged: it would count as the newest."""
    folders = step_folders(checkpoint.path.parent)
    later = folders[folders.index(checkpoint.path) + 1 :]
    if with_salvaged_rows(checkpoint) is not checkpoint:  # they were offered, and not taken
        later.append(checkpoint.run_dir / SALVAGE)
    for path in later:
        path.rename(path.with_name(f"broken-{path.name}-{uuid.uuid4().hex[:6]}"))


def _announcement(config: "RunConfig", checkpoint: Checkpoint) -> list[str]:
    notes = [f"resumed from {checkpoint.path.name}: {checkpoint.env_steps:,} env steps, {checkpoint.updates:,} updates"]
    states = [state for worker in checkpoint.workers.values() for state in worker["environments"]]
    if config.mode != "serial" or not states or None in states:
        notes.append("not restored: the environments' states. Episodes that were open count as truncated")
    if checkpoint.replay is None:
        notes.append("NOT RESTORED: the replay buffer, which was not saved (--no-save-replay). It fills up again")
    return notes
