"""The settings of a run with where each came from, and the reasons of its plan; read from its folder."""

import tomllib
from pathlib import Path
from typing import Any, NamedTuple

from pydantic.fields import FieldInfo

from rlz.algorithms.registry import BUILT_IN
from rlz.config import RunConfig
from rlz.config.model import config_type
from rlz.config.presets import presets
from rlz.references import label


class Setting(NamedTuple):
    """One option of a run. `reason`: of the plan, where that chose it."""

    name: str
    value: str
    origin: str
    reason: str = ""


def read_settings(run: Path, config: dict[str, Any]) -> list[Setting]:
    """Every option of a run that has a value, in the order of its `config.toml`.

    The folder does not say where a value came from, so that is found again: from the plan, the presets, the defaults.
    """
    plan = read_plan(run)
    chosen, reasons = plan.get("choices", {}), plan.get("reasons", {})
    algo = str(config.get("algo"))
    # A user's own file is not asked: it may be gone, and it is not to be run for a look.
    fields = (config_type(algo) if algo in BUILT_IN else RunConfig).model_fields
    layered = {name: (_usual(name, field, config), "default") for name, field in fields.items()}
    for preset in presets(algo, str(config.get("env"))):
        layered |= {name: (value, preset.origin) for name, value in preset.values.items()}
    found = []
    for name, value in config.items():
        usual, origin = layered.get(name, (None, "algorithm or given"))
        if name in ("algo", "env"):
            origin = "given"
        elif name in chosen:
            origin = "plan"
        elif name in plan.get("given", ()) or (name in layered and not _same(value, usual)):
            origin = "given"
        found.append(Setting(name, _shown(value), origin, str(reasons.get(name, ""))))
    return found


def read_plan(run: Path) -> dict[str, Any]:
    """Contents of `plan.toml`; {} without one."""
    try:
        return tomllib.loads((run / "plan.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def _usual(name: str, field: FieldInfo, config: dict[str, Any]) -> Any:
    """Default of an option; one that follows from others is taken to be what it is."""
    return field.default if field.default_factory is None else config.get(name)


def _same(value: Any, usual: Any) -> bool:
    return _shown(value) == _shown(list(usual) if isinstance(usual, tuple) else usual)


def _shown(value: Any) -> str:
    return label(value) if isinstance(value, str) else str(value)
