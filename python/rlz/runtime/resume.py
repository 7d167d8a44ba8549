"""Going on with a run from its newest checkpoint, in the same run folder."""

import uuid
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlz.errors import CheckpointError, ConfigError
from rlz.options.names import as_typed, flag
from rlz.options.option import Panel, metadata
from rlz.planning.planned import planned_again
from rlz.records.checkpoint import Checkpoint, checkpoints_newest_first, read_checkpoint, step_folders
from rlz.records.policy_files import read_description
from rlz.records.run_directory import RunDirectory, named_problems, open_run_directory, write_config
from rlz.records.salvage import SALVAGE, with_salvaged_rows
from rlz.records.sources import changed_sources
from rlz.runtime.train import Launch, launch, make_job, make_streams, private_files, updates_resume_at
from rlz.system.descendants import orphans_come_here
from rlz.system.device import check_device
from rlz.system.files import remove_temporary
from rlz.tracking.rewind import History, rewind
from rlz.transport.stats import Stat

if TYPE_CHECKING:
    from rlz.config import RunConfig
    from rlz.envs.spaces import EnvSpec
    from rlz.runtime.train import Beside
    from rlz.transport import Streams
    from rlz.workers.job import Job

STARTED = ("ent_coef", "batch_size")
"""Options whose form auto_X says where something that the run adapts begins: the checkpoint has where it is."""

TOLD = (Panel.PROBLEM, Panel.LEARNING, Panel.NETWORK, Panel.EVALUATION)
"""Groups of options whose changes a resumed run says."""


def resume(
    run: str | Path,
    overrides: Mapping[str, Any] | None = None,
    *,
    given: Collection[str] = (),
    quiet: bool = False,
    workers: Mapping[str, str] | None = None,
    beside: "Beside | None" = None,
) -> int:
    """Go on with a run and return its exit status, as `train` does.

    Counters, networks, optimisers, schedules, replay buffer and random streams go on. The environments of asynchronous
    runs start new episodes; those that were open at the checkpoint are marked as truncated in the buffer.

    Parameters
    ----------
    run : run folder.
    overrides : options by name that differ now, for instance {"total_timesteps": 200_000} (the new total).
    given : names of the options that the user gave for this start, for the plan.
    workers, beside : as in `train`.

    Raises
    ------
    CheckpointError
        No such run, no checkpoint that can be read, the run is running, its spaces are others now, or the system
        refuses something within its folder.
    ConfigError
        An option cannot be changed, or no env steps are left to do.
    """
    from rlz import envs
    from rlz.config import read_config
    from rlz.envs.limits import start_notes

    with (
        orphans_come_here(),
        private_files(),
        closing(open_run_directory(Path(run))) as run_dir,
        named_problems(run_dir.path),
    ):
        before = read_config(run_dir.config)
        config = resumed_config(run_dir, overrides or {})
        placed = planned_again(run_dir.path, config, given)
        config = placed.config
        notes = list(placed.notes)
        env_spec = envs.inspect_env(config, on_note=notes.append)
        notes += start_notes(env_spec)
        for device in config.learner_devices():
            check_device(device)
        job = make_job(config, env_spec, workers)
        own, checkpoint, streams = _restore(run_dir, job, notes)
        with closing(streams):
            # Nothing in the folder was changed until here, where everything is known to fit.
            remove_temporary(run_dir.path)
            _put_aside(checkpoint)
            run_dir.count_start()
            history = rewind(run_dir.path, own.env_steps, own.updates, start=run_dir.starts)
            write_config(run_dir.path, config)
            notes += (
                _announcement(config, checkpoint)
                + _hold(job, checkpoint)
                + history.notes
                + _best(own)
                + changes(before, config)
                + changed_sources(run_dir.path, config)
            )
            _go_on_after(history, streams, job)
            # Lines of the same env steps may have been written after the cut.
            wall_s = max(checkpoint.totals.wall_s, history.wall_s)
            start = Launch(
                job=job,
                run_dir=run_dir,
                notes=notes,
                resume=checkpoint,
                quiet=quiet,
                wall_s=wall_s,
                cut=own.env_steps,
                plan=placed.plan,
                beside=beside,
            )
            return launch(start, streams).said()


def _restore(run_dir: RunDirectory, job: "Job", notes: list[str]) -> "tuple[Checkpoint, Checkpoint, Streams]":
    """Find the newest checkpoint that is whole, and make streams that hold its rows.

    Returns
    -------
    The checkpoint as it was written; what the run goes on from, which may have rows and env steps that were saved
    after it; the streams.

    Raises
    ------
    CheckpointError, ConfigError
        There is none, its rows are missing or damaged, or it is of another run than the configuration says.
    """
    config, env_spec = job.config, job.env_spec
    problems: list[str] = []
    own = next(checkpoints_newest_first(run_dir.path, problems, read_checkpoint))
    rows_problems: list[str] = []
    salvaged = with_salvaged_rows(own)
    for checkpoint in [salvaged, own] if salvaged is not own else [own]:
        _check_precision(config, checkpoint)
        _check_spaces(checkpoint, env_spec)
        if config.total_timesteps <= checkpoint.env_steps:
            raise ConfigError(
                f"--total-timesteps {config.total_timesteps} is no more than the {checkpoint.env_steps} that "
                f"{run_dir.path} has done. Give a larger total, such as --total-timesteps {2 * checkpoint.env_steps}."
            )
        try:
            streams = make_streams(job, checkpoint)
        except CheckpointError as error:
            rows_problems.append(str(error))
        else:
            notes += [f"NOT USED, because it is damaged: {problem}" for problem in problems + rows_problems]
            if checkpoint.replay is None:
                notes.append(
                    "NOT RESTORED: the replay buffer, which was not saved (--no-save-replay). It fills up again"
                )
            return own, checkpoint, streams
    if config.save_replay:
        raise CheckpointError("\n".join([rows_problems[-1], *_ways_out(job, own)]))
    notes += [f"NOT USED, because it is damaged: {problem}" for problem in problems]
    notes.append(f"NOT RESTORED: {rows_problems[-1]}. It fills up again")
    bare = replace(own, replay=None, priorities=None)
    return own, bare, make_streams(job, bare)


def _ways_out(job: "Job", own: Checkpoint) -> Iterator[str]:
    """Say how to go on from a checkpoint that is whole, but for its rows."""
    yield f"Nothing was changed, and {own.path.name} itself is whole. To go on:"
    yield f"- put what is missing or damaged in {own.run_dir / 'replay'} back; or"
    yield "- add --no-save-replay: networks, optimisers and counters go on with an empty buffer, which fills up again"
    folders = step_folders(own.path.parent)
    for path in reversed(folders[: folders.index(own.path)]):
        with suppress(CheckpointError):
            older = read_checkpoint(path)
            if older.env_steps > 0:
                make_streams(job, older).close()
                yield f"- or move every checkpoint that is newer than {path.name}, which is whole, out of {path.parent}"
                return


def _go_on_after(history: History, streams: "Streams", job: "Job") -> None:
    """Let the evaluator go on after the newest evaluation, as the successor of a killed one does."""
    for place in job.places:
        if place.node.progress == "episodes" and history.evaluations:
            streams.stats.set(place.slot, Stat.EVALUATIONS, float(len(history.evaluations)))
            streams.stats.push_event(place.slot, history.evaluations[-1].event(job.config.log_info))


def resumed_config(run_dir: RunDirectory, overrides: Mapping[str, Any]) -> "RunConfig":
    """Return the run's configuration with the changes; ConfigError shows both sides of one that is refused."""
    from rlz.config import read_config, run_config

    old = read_config(run_dir.config)
    new = run_config({**old.model_dump(), **overrides})
    if new.name not in (None, old.name, run_dir.path.name):
        raise ConfigError(f"--name {new.name}: the run is {run_dir.path}, and keeps its folder. Leave --name out.")
    for name in STARTED:
        before, after = getattr(old, name, None), getattr(new, name, None)  # None: not every algorithm has both
        if before != after and str(after).startswith("auto_") and (name == "ent_coef" or _is_auto(before)):
            raise ConfigError(
                f"{as_typed(name, after)}: a resumed run goes on from the value that it has reached (until here "
                f"{as_typed(name, before)}), and takes no other to start with. Use {flag(name)} auto, or a number, "
                "which stays as it is."
            )
    for name, field in type(new).model_fields.items():
        before, after = getattr(old, name, None), getattr(new, name)  # None: another algorithm's
        if before != after and metadata(field).get("fixed"):
            raise ConfigError(
                f"{as_typed(name, after)}: the run was trained with {as_typed(name, before)}, and a resumed run cannot "
                "change that. Leave it out, or start a new run."
            )
    return new


def _is_auto(value: object) -> bool:
    return isinstance(value, str) and value.startswith("auto")


def changes(before: "RunConfig", after: "RunConfig") -> list[str]:
    """Lines about options of learning and evaluation that differ from now on; the new total is shown elsewhere."""
    return [
        f"from now on {as_typed(name, getattr(after, name))}, until here {as_typed(name, getattr(before, name))}"
        for name, field in type(after).model_fields.items()
        if metadata(field)["panel"] in TOLD and name != "total_timesteps"
        if getattr(before, name) != getattr(after, name)
    ]


def _check_precision(config: "RunConfig", checkpoint: Checkpoint) -> None:
    """Refuse another precision than the run has had; what auto stands for, the learner checks on its device."""
    saved = checkpoint.extra.get("precision", config.precision)
    if config.precision not in ("auto", saved):
        raise ConfigError(
            f"--precision {config.precision}: the run was trained in {saved}, and a resumed run cannot change that. "
            "Leave it out, or start a new run."
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


def _best(own: Checkpoint) -> list[str]:
    """Say so when the best policy is of env steps that the run goes back behind; its score is true all the same."""
    best = read_description(own.path.parent / "best")
    if best is None or best["env_steps"] <= own.env_steps:
        return []
    score = f"return {best['evaluation']['return_mean']:,.2f} at {best['env_steps']:,} env steps"
    return [f"checkpoints/best is from beyond the checkpoint ({score}). It stays until a better one is found"]


def _hold(job: "Job", checkpoint: Checkpoint) -> list[str]:
    """Say so when updates wait for rows."""
    until = updates_resume_at(job, checkpoint)
    if until <= max(checkpoint.env_steps, job.graph.rule.starts):
        return []
    return [
        f"updates go on at {until:,} env steps, when the replay buffer has as many rows as learning began with "
        "(--learning-starts); those that fall out are not made up"
    ]


def _announcement(config: "RunConfig", checkpoint: Checkpoint) -> list[str]:
    notes = [f"resumed from {checkpoint.path.name}: {checkpoint.env_steps:,} env steps, {checkpoint.updates:,} updates"]
    states = [state for worker in checkpoint.workers.values() for state in worker.get("environments", [])]
    if config.mode != "serial" or not states or None in states:
        notes.append(
            f"not restored: the states of the environments ({config.env}). Episodes that were open at the checkpoint "
            "count as truncated"
        )
    return notes
