"""The options of `rlz train`, generated from the fields of `RunConfig`: there is no second list of them."""

import inspect
from typing import Any, Literal, get_args, get_origin

import typer
from pydantic.fields import FieldInfo

from rlz.config.names import flag
from rlz.config.option import metadata
from rlz.config.schema import RunConfig


def run_parameters() -> list[inspect.Parameter]:
    """One keyword parameter per field except `algo`, for the signature of a Typer command.

    Booleans arrive as bool, repeatable options as lists, all else as the text that was typed: `rlz.config` checks and
    converts them, and says what is wrong with them. None or an empty list: not given.
    """
    return [_parameter(name, field) for name, field in RunConfig.model_fields.items() if name != "algo"]


def given(options: dict[str, Any]) -> dict[str, Any]:
    """Options that were on the command line."""
    return {name: value for name, value in options.items() if value is not None and value not in ([], ())}


def _parameter(name: str, field: FieldInfo) -> inspect.Parameter:
    extra = metadata(field)
    kind: Any = str | None
    names = [flag(name), *extra["flags"]]
    metavar = extra["metavar"]
    if field.annotation is bool:
        kind, names, metavar = bool | None, [f"{flag(name)}/--no-{flag(name)[2:]}"], None
    elif name in ("env_kwargs", "wrapper"):
        kind = list[str] | None
    elif get_origin(field.annotation) is Literal:
        metavar = "|".join(get_args(field.annotation))
    option = typer.Option(
        None,
        *names,
        help=_help(field, extra["shown"]),
        metavar=metavar,
        rich_help_panel=extra["panel"],
        show_default=False,
    )
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=option, annotation=kind)


def _help(field: FieldInfo, shown: str | None) -> str:
    """Text and default. Typer cannot show the default itself: its own default is 'not given', for the origins."""
    text = (field.description or "").replace("[", r"\[")
    if only := metadata(field)["only"]:
        text += f" Only {', '.join(only)}."
    if field.is_required() and shown is None:
        return text
    if shown is None:
        on_off = {True: "on", False: "off"}
        shown = on_off[field.default] if isinstance(field.default, bool) else f"{field.default}"
    return rf"{text} [dim]\[default: {shown}][/dim]"
