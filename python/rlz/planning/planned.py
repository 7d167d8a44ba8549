"""From `--plan` to the plan of a run: looks for a profile or reads a file, and leaves the choice to the planner."""

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from rlz.answers import Replay
from rlz.errors import ConfigError
from rlz.planning import cache
from rlz.planning.model import Learning
from rlz.planning.plan import CHOICES, Plan
from rlz.planning.planner import options_given, plan
from rlz.planning.profile_model import Workload
from rlz.planning.rollouts import of_rollouts
from rlz.system.detect import detect
from rlz.system.memory import limits

if TYPE_CHECKING:
    from rlz.config import RunConfig

FILE = "plan.toml"
"""In the run folder (`RunDirectory.plan`): what was chosen and why."""


@dataclass(frozen=True)
class Planned:
    """A configuration with the plan's choices in it, the plan, and what there is to say about it."""

    config: "RunConfig"
    plan: Plan
    notes: list[str] = field(default_factory=list)


def planned(config: "RunConfig", given: Collection[str] = ()) -> Planned:
    """Plan a run as its `plan` option says.

    Parameters
    ----------
    config : of the run.
    given : options that the user gave, on the command line or in a file; they are kept.

    Raises
    ------
    ConfigError
        `--plan FILE` cannot be used.
    """
    if config.mode == "serial":
        return Planned(config, plan(config, given))
    if config.plan == "off":
        return Planned(config, Plan(basis="off", given=options_given(config, given)))
    if not isinstance(config.data(), Replay):
        if config.plan != "auto":
            raise ConfigError(f"--plan {config.plan}: runs that learn from rollouts take no file. Give auto or off")
        chosen = of_rollouts(config, options_given(config, given))
        return Planned(chosen.apply(config), chosen)
    if config.plan != "auto":
        return _from_file(config, given, Path(config.plan).expanduser())
    found = cache.load(config)
    memory, cores = None, 1
    if found.profile is not None or config.replay().adapts:
        memory = min((limit.available for limit in limits()), default=None)
    if found.profile is None and config.replay().adapts:
        cores = detect().cores
    chosen = plan(config, given, found.profile, memory=memory, cores=cores)
    return Planned(chosen.apply(config), chosen, [found.note] if found.note else [])


def planned_again(run: Path, config: "RunConfig", given: Collection[str]) -> Planned:
    """The plan of a run that goes on: the one that it has, unless `--plan` is given now.

    `given`: options of this command line. What was given at the run's start stays given.
    """
    notes: list[str] = []
    old: Plan | None = None
    if (run / FILE).is_file():
        try:
            old = Plan.read(run / FILE)
        except ConfigError as error:
            notes.append(f"not used: {error}")
    if "plan" in given:
        # Without its old plan nobody knows what was chosen by whom: then all counts as given.
        kept = set(CHOICES) if old is None else set(old.given)
        again = planned(config, {*given, *kept})
        return Planned(again.config, again.plan, notes + again.notes)
    if old is None:
        return Planned(config, Plan(basis="off", given=CHOICES), notes)
    if not _still_true(old, config):
        old = old.model_copy(update={"prediction": None})
    return Planned(config, old, notes)


def _still_true(old: Plan, config: "RunConfig") -> bool:
    """Whether the prediction of a plan holds for what a run is now: the same choices, task, learning and machine."""
    if old.prediction is None or old.apply(config) != config or old.machine != detect().fingerprint():
        return False
    return Workload.of(config).task == old.task and str(Learning.of(config)) == old.prediction.learning


def _from_file(config: "RunConfig", given: Collection[str], path: Path) -> Planned:
    read = Plan.read(path)
    kept = options_given(config, given)
    # A batch size is part of what is learned: it comes from a plan only where that is asked for.
    fixed = kept if config.replay().plans_batch else (*kept, "batch_size")
    choices = {name: value for name, value in read.choices.items() if name not in fixed}
    choices |= _counts(choices, read, config)
    notes = []
    if read.machine and read.machine != detect().fingerprint():
        notes.append(f"--plan {path} was made for another machine or other versions; `rlz profile` makes one for this")
    chosen = Plan(
        basis="file",
        machine=read.machine,
        task=read.task,
        choices=choices,
        reasons=dict.fromkeys(choices, f"from {path}"),
        given=kept,
        prediction=read.prediction,
    )
    try:
        applied = chosen.apply(config)
    except ValidationError as error:
        reason = error.errors(include_url=False)[0]["msg"].removeprefix("Value error, ")
        raise ConfigError(f"--plan {path} does not fit the other options: {reason}") from error
    # What was predicted was the plan as it was read.
    if choices != read.choices or not _still_true(chosen, applied):
        chosen = chosen.model_copy(update={"prediction": None})
    return Planned(applied, chosen, notes)


def _counts(choices: dict[str, int | bool | str], read: Plan, config: "RunConfig") -> dict[str, int | bool | str]:
    """Samplers or environments of a plan, where the other one of the two was given: as many in each sampler."""
    samplers, envs = read.choices.get("samplers"), read.choices.get("num_envs")
    if not isinstance(samplers, int) or not isinstance(envs, int) or ("samplers" in choices) == ("num_envs" in choices):
        return {}
    if "num_envs" in choices:
        return {"num_envs": max(1, envs // samplers) * config.samplers}
    return {"samplers": min(samplers, config.num_envs)}
