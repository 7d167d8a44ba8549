"""A plan: how a run is placed, why, and what it is expected to reach. Written as `plan.toml`, and read from one."""

import json
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

import tomli_w
from pydantic import Field, ValidationError

from rlz.errors import ConfigError
from rlz.planning.model import BOUNDS
from rlz.planning.profile_model import Figures

if TYPE_CHECKING:
    from rlz.config import RunConfig

CHOICES = (
    *("samplers", "num_envs", "threads", "spin_count", "pin", "device", "updates_per_launch", "publish_every"),
    *("inference", "batch_size"),
)
"""Options that a plan chooses; the batch size only where that is asked for (`--batch-size auto`), to begin with."""


class Prediction(Figures):
    """What the run is expected to reach once it is warm, per second. `bound`: a key of `BOUNDS`.

    `executor`: of the updates that it was measured with. `learning`: what it is for, `Learning` in words.
    """

    env_steps_per_s: float
    updates_per_s: float
    frames_per_s: float
    bound: str
    evidence: str
    executor: str = ""
    learning: str = ""


class Plan(Figures):
    """How a run is placed. `basis` says where from: a profile, a file, or nothing but defaults.

    Attributes
    ----------
    choices : values of options by name, those in `CHOICES` that the plan decides.
    reasons : in words, by the same names.
    given : options that were given, and so are not the plan's.
    facts : what is not an option, in words, by name.
    """

    basis: Literal["profile", "defaults", "rollouts", "file", "off", "serial"]
    machine: str = ""
    task: str = ""
    choices: dict[str, int | bool | str] = Field(default_factory=dict)
    reasons: dict[str, str] = Field(default_factory=dict)
    given: tuple[str, ...] = ()
    facts: dict[str, str] = Field(default_factory=dict)
    prediction: Prediction | None = None

    def apply(self, config: "RunConfig") -> "RunConfig":
        """The configuration with the plan's choices in it."""
        return type(config).model_validate({**config.model_dump(), **self.choices})

    def headline(self) -> str:
        """One line for the start of a run."""
        origin = {
            "profile": "plan from the profile of this machine",
            "file": "plan from a file",
            "defaults": f"{self.facts.get('profile', 'no profile')}: placed by defaults; threads are measured live",
            "rollouts": "plan by the number of cores",
            "off": "no plan (--plan off)",
            "serial": "serial mode has its fixed plan",
        }[self.basis]
        values = ", ".join(f"{name} {shown(value)}" for name, value in self.choices.items())
        text = origin + (f": {values}" if values else "")
        if self.prediction is not None:
            found = self.prediction
            text += (
                f"; predicted {found.env_steps_per_s:,.0f} env steps/s and {found.frames_per_s:,.0f} frames/s "
                f"({found.bound})"
            )
        return text

    def to_toml(self) -> str:
        """As `plan.toml` of a run folder, which `--plan FILE` reads."""
        values = self.model_dump(mode="json", exclude_none=True)
        comment = "# How rlz placed this run, and why."
        if self.basis != "rollouts":
            comment += " `rlz train --plan FILE` places another one the same way."
        return f"{comment}\n{tomli_w.dumps(values)}"

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a plan.toml.

        Raises
        ------
        ConfigError
            It cannot be read or is no plan; names file and key.
        """
        try:
            values = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"--plan {path}: {error.strerror}. Give auto, off, or the path of a plan.toml") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"--plan {path} is not TOML: {error}") from error
        try:
            found = cls.model_validate_json(json.dumps(values, default=str))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(str(part) for part in first["loc"])
            raise ConfigError(f"--plan {path} is no plan of rlz: {where + ': ' * bool(where)}{first['msg']}") from error
        unknown = sorted(set(found.choices) - set(CHOICES))
        if unknown:
            raise ConfigError(
                f"--plan {path}: a plan cannot choose {unknown[0]}, only {', '.join(CHOICES)}. Give it as an option"
            )
        _check_choices(path, found)
        size = found.choices.get("batch_size")
        if size is not None and not (isinstance(size, str) and size.startswith("auto_")):
            raise ConfigError(
                f"--plan {path}: a plan cannot choose batch_size {size}, only where one begins that chooses by itself, "
                "such as auto_1024. Give --batch-size"
            )
        return found


def _check_choices(path: Path, found: Plan) -> None:
    from rlz.config import RunConfig  # it is large, and most who plan have it

    values = {"env": "any", "num_envs": found.choices.get("samplers", 1), **found.choices}
    values.pop("batch_size", None)  # what it may be is said by `Plan.read`
    try:
        RunConfig.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = str(first["loc"][0]) if first["loc"] else "the whole"
        given = f" {found.choices[name]!r}" if name in found.choices else ""
        raise ConfigError(
            f"--plan {path}: {name}{given} cannot be used: {first['msg'].removeprefix('Value error, ')}"
        ) from error


def shown(value: object) -> str:
    """A choice, for people."""
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)


def explain(found: Plan) -> list[tuple[str, str, str]]:
    """Rows (what, value, reason) for people: choices, what was given, what is no option."""
    rows = [
        (f"--{name.replace('_', '-')}", shown(value), found.reasons.get(name, ""))
        for name, value in found.choices.items()
    ]
    rows += [(f"--{name.replace('_', '-')}", "given", "an option that is given wins") for name in found.given]
    rows += [(name.replace("_", " "), "", text) for name, text in found.facts.items()]
    if found.prediction is not None:
        one = found.prediction
        rows.append(
            (
                "prediction",
                f"{one.env_steps_per_s:,.0f} env steps/s",
                f"{one.frames_per_s:,.0f} frames/s; {one.evidence}",
            )
        )
        rows.append(("limit", one.bound, BOUNDS.get(one.bound, "")))
    return rows
