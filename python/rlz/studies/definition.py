"""What a study is: a TOML file with the runs' common options, a grid, and a space to search."""

from __future__ import annotations

import itertools
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from rlz.config import resolve_with_origins
from rlz.config.schema import RunConfig
from rlz.errors import ConfigError

RESERVED = ("runs_dir", "name")
"""Options that the study itself gives to its runs."""

Point = dict[str, Any]
"""Values by option name that distinguish a run, or a trial, from the others."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Range(_Strict):
    """Numbers from `low` to `high`: whole ones where both are; evenly in the logarithm with `log`."""

    low: int | float
    high: int | float
    log: bool = False

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.low < self.high:
            raise ValueError(f"low {self.low} is not below high {self.high}")
        if self.log and self.low <= 0:
            raise ValueError(f"log needs a low above 0, not {self.low}")
        return self


class Choices(_Strict):
    """One of a few values."""

    choices: Annotated[list[Any], Field(min_length=2)]


class Search(_Strict):
    """Trials: points of a space that a sampler of Optuna proposes, each scored by all runs of the grid.

    Attributes
    ----------
    trials : in all.
    space : by option name.
    score : of a run: mean return on held-out starts, of its best evaluation, or of its last one.
    seed : of the sampler.
    """

    trials: Annotated[int, Field(ge=1, le=100_000)]
    space: Annotated[dict[str, Range | Choices], Field(min_length=1)]
    score: Literal["held-out", "best", "last"] = "held-out"
    seed: int = 0


class _File(_Strict):
    run: dict[str, Any]
    grid: dict[str, Annotated[list[Any], Field(min_length=1)]] = {}
    search: Search | None = None
    cores_per_run: Annotated[int, Field(ge=1)] = 2


@dataclass(frozen=True)
class Study:
    """A study as its file says.

    Attributes
    ----------
    name : of the file, and of the folder that holds its runs.
    run : options of every run.
    grid : values by option; a run for every combination.
    search : None: the grid alone.
    cores_per_run : that a run has to itself.
    """

    name: str
    run: dict[str, Any]
    grid: dict[str, list[Any]]
    search: Search | None
    cores_per_run: int

    @property
    def combinations(self) -> list[Point]:
        """Every combination of the grid; one empty point without a grid."""
        return [dict(zip(self.grid, values, strict=True)) for values in itertools.product(*self.grid.values())]

    def values(self, point: Point) -> dict[str, Any]:
        """What a run is told: the common options and its point."""
        return {**self.run, **point}

    def config(self, point: Point) -> RunConfig:
        """The resolved configuration of a run. Raises ConfigError naming what cannot be used."""
        values = self.values(point)
        algo = values.pop("algo", None)
        return resolve_with_origins(algo, None, values).config


def read_study(file: Path) -> Study:
    """Read a study, and check every option and value of it.

    Raises
    ------
    ConfigError
        Names the file and what cannot be used.
    """
    try:
        given = tomllib.loads(file.read_text(encoding="utf-8"))
        parts = _File.model_validate(given)
    except FileNotFoundError as error:
        raise ConfigError(f"There is no file {file}.") from error
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{file} is no TOML file that can be read: {error}") from error
    except ValidationError as error:
        raise ConfigError(f"{file}: {_in_words(error)}") from error
    study = Study(file.stem, parts.run, parts.grid, parts.search, parts.cores_per_run)
    _check_names(file, study)
    for point in study.combinations:
        for ends in _ends(study.search):
            try:
                study.config({**point, **ends})
            except ConfigError as error:
                raise type(error)(f"{file}, {label(point | ends) or 'its run'}: {error}") from error
    return study


def label(point: Point) -> str:
    """A point as text, that can be the name of a folder."""
    return ",".join(f"{name}={_short(value)}" for name, value in point.items())


def as_toml(values: dict[str, Any]) -> str:
    """Options as a file for `rlz train --config`."""
    return tomli_w.dumps(values)


def _short(value: Any) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return re.sub(r"[^\w.+:-]+", "_", text).strip("_") or "_"


def _ends(search: Search | None) -> list[Point]:
    """Points at which every value of the space that can be wrong by itself appears."""
    if search is None:
        return [{}]
    sides: list[Point] = []
    values = {
        name: [space.low, space.high] if isinstance(space, Range) else space.choices
        for name, space in search.space.items()
    }
    for index in range(max(len(some) for some in values.values())):
        sides.append({name: some[min(index, len(some) - 1)] for name, some in values.items()})
    return sides


def _check_names(file: Path, study: Study) -> None:
    space = {} if study.search is None else study.search.space
    for name in RESERVED:
        if name in study.run or name in study.grid or name in space:
            raise ConfigError(f"{file}: {name} is the study's own: its runs are in a folder named after the file.")
    for name in space:
        if name in study.grid:
            raise ConfigError(f"{file}: {name} is in [grid] and in [search.space]; it can be in one of them.")
    names = [label(point) for point in study.combinations]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ConfigError(f"{file}: [grid] has {twice!r} twice.")


def _in_words(error: ValidationError) -> str:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"] if part not in ("Range", "Choices"))
    if first["type"] == "extra_forbidden":
        return f"unknown key {where}. A study has [run], [grid], [search] and cores_per_run."
    if first["type"] == "missing" and first["loc"] == ("run",):
        return 'it has no section [run] with the options of its runs, such as env = "Ant-v4".'
    return f"{where}: {first['msg']}"
