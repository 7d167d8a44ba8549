"""How one option of a run is stated: default, range, help."""

from collections.abc import Callable
from copy import copy
from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field
from pydantic.fields import FieldInfo

from rlz.options import values


class Panel(StrEnum):
    """Group of an option in `rlz train --help`."""

    PROBLEM = "Problem"
    LEARNING = "Learning (never changed for speed, unless auto is given)"
    NETWORK = "Networks"
    PLACEMENT = "Workers and devices"
    EVALUATION = "Evaluation"
    OUTPUT = "Run folder, checkpoints and tracking"


Integer = Annotated[int, BeforeValidator(values.integral)]
Number = Annotated[float, BeforeValidator(values.finite)]


def option(
    default: Any = ...,
    *,
    help: str,
    panel: Panel = Panel.LEARNING,
    expects: str | None = None,
    metavar: str | None = None,
    flags: tuple[str, ...] = (),
    shown: str | None = None,
    needs: str | None = None,
    fixed: bool | None = None,
    factory: Callable[[dict[str, Any]], Any] | None = None,
    **limits: Any,
) -> Any:
    """One option of a run.

    Parameters
    ----------
    default, factory
        Default value, or a function of the fields before this one.
    panel, help, metavar, flags, shown
        How `rlz train --help` shows it: group, text, placeholder of the value, further flags such as `-n`, and the text
        of the default where the value alone would not say it.
    needs
        Another option without which this one has no effect; the help begins with it.
    fixed
        A resumed run cannot change it: it is part of what was learned, or says which run it is. Default: options of
        the problem and of the networks.
    expects
        What is allowed, for error messages; made from type and limits where not given.
    limits
        `ge`, `gt`, `le`, `lt`, as in pydantic.
    """
    extra: dict[str, Any] = {
        "panel": str(panel),
        "expects": expects,
        "metavar": metavar,
        "flags": list(flags),
        "shown": shown,
        "needs": needs,
        "fixed": panel in (Panel.PROBLEM, Panel.NETWORK) if fixed is None else fixed,
    }
    if factory is not None:
        return Field(default_factory=factory, description=help, json_schema_extra=extra, **limits)
    return Field(default, description=help, json_schema_extra=extra, **limits)


def changed(
    settings: type[BaseModel], name: str, default: Any, *, help: str | None = None, shown: str | None = None
) -> Any:
    """An option of other settings, with another default, and where given another help text."""
    field = copy(settings.model_fields[name])
    field.default = default
    field.description = help or field.description
    field.json_schema_extra = {**metadata(field), "shown": shown}
    return field


def of_networks(field: FieldInfo) -> bool:
    """The option decides how networks look."""
    return bool(metadata(field).get("panel") == Panel.NETWORK)


def metadata(field: FieldInfo) -> dict[str, Any]:
    """Return what `option` was told beyond type, limits and help: panel, expects, metavar, flags and so on."""
    extra = field.json_schema_extra
    return extra if isinstance(extra, dict) else {}
