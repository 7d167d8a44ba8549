"""Presets: one TOML file per algorithm in `rlz/configs`, with a section per environment."""

import tomllib
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib.resources import files
from typing import Any


@dataclass(frozen=True)
class Preset:
    """Values of one section and where they stand, such as `preset ALGO.toml [env."Ant-v*"]`."""

    origin: str
    values: dict[str, Any]


def presets(algo: str, env: str) -> list[Preset]:
    """Sections that apply to an environment, weakest first: the algorithm's defaults, then the environment's.

    An exact id wins over a pattern, an earlier pattern over a later one. The module prefix of the id does not count.
    """
    name = f"{algo}.toml"
    file = files("rlz").joinpath("configs", name)
    if ":" in algo or not file.is_file():  # an algorithm of a user's own; one without a name is too long for a file's
        return []
    content = tomllib.loads(file.read_text(encoding="utf-8"))
    found = [Preset(f"preset {name} [defaults]", content.get("defaults", {}))]
    sections: dict[str, dict[str, Any]] = content.get("env", {})
    bare = env.rpartition(":")[2]
    if "-v" not in bare:
        bare += "-v0"  # Gymnasium takes the newest version of an id without one
    match = bare if bare in sections else next((key for key in sections if fnmatchcase(bare, key)), None)
    if match is not None:
        found.append(Preset(f'preset {name} [env."{match}"]', sections[match]))
    return found
