"""Settings as a description that travels as JSON: for a process that must not import the file that states them."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Literal, get_args, get_origin

from pydantic import create_model
from pydantic.fields import FieldInfo

from rlz.algorithms.settings import Settings
from rlz.options.option import Integer, Number, metadata, option

_PLAIN: Mapping[str, Any] = {"int": Integer, "float": Number, "bool": bool, "str": str}


def description(kind: type[Settings]) -> dict[str, Any]:
    """The classes of rlz that settings derive from, and the options of their own."""
    ours = [base for base in kind.__mro__ if base.__module__.startswith("rlz.")]
    inherited = {name: field for base in reversed(ours) for name, field in base.model_fields.items()}  # type: ignore[attr-defined]
    own = {name: field for name, field in kind.model_fields.items() if _differs(field, inherited.get(name))}
    # The most derived of them: what they derive from comes with them.
    bases = [base for base in ours if not any(base is not other and issubclass(other, base) for other in ours)]
    return {
        "bases": [f"{base.__module__}:{base.__qualname__}" for base in bases],
        "options": {name: _option(field) for name, field in own.items()},
    }


def settings_class(found: Mapping[str, Any]) -> type[Settings]:
    """A class with the same options: the same names, defaults, help and, where they are plain, types and ranges.

    Values of other types pass as they are: the algorithm checks them itself before the run.
    """
    bases = tuple(
        getattr(import_module(module), name) for module, _, name in (b.partition(":") for b in found["bases"])
    )
    fields: dict[str, Any] = {}
    for name, stated in found["options"].items():
        kind = Literal[tuple(stated["choices"])] if stated["choices"] else _PLAIN.get(stated["type"], Any)
        if stated["optional"]:
            kind = kind | None
        fields[name] = kind, option(stated["default"], help=stated["help"], **stated["shown"], **stated["limits"])
    made: type[Settings] = create_model("Settings", __base__=bases, **fields)
    return made


def _option(field: FieldInfo) -> dict[str, Any]:
    kind, optional = field.annotation, False
    if type(None) in get_args(kind):
        rest = [part for part in get_args(kind) if part is not type(None)]
        kind, optional = rest[0] if len(rest) == 1 else None, True
    default = field.get_default(call_default_factory=True, validated_data={})
    shown = {
        key: value for key, value in metadata(field).items() if key in ("expects", "metavar", "shown", "panel", "needs")
    }
    return {
        "type": getattr(kind, "__name__", ""),
        "choices": list(get_args(kind)) if get_origin(kind) is Literal else [],
        "optional": optional,
        "default": list(default) if isinstance(default, tuple) else default,
        "help": field.description or "",
        "shown": shown,
        "limits": {
            name: getattr(rule, name)
            for rule in field.metadata
            for name in ("ge", "gt", "le", "lt")
            if hasattr(rule, name)
        },
    }


def _differs(field: FieldInfo, other: FieldInfo | None) -> bool:
    if other is None:
        return True
    return (field.annotation, field.default, field.description) != (other.annotation, other.default, other.description)
