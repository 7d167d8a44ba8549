"""The options of `rlz train`, generated from the fields of a run's configuration: there is no second list of them."""

import inspect
from typing import Any, Literal, get_args, get_origin

import typer
from pydantic.fields import FieldInfo

from rlz.algorithms.registry import BUILT_IN
from rlz.config.model import config_type
from rlz.config.overrides import known_options
from rlz.options.names import flag
from rlz.options.option import Panel, metadata


def run_parameters(algo: str | None) -> list[inspect.Parameter]:
    """One keyword parameter per field except `algo`, for the signature of a Typer command.

    Booleans arrive as bool, repeatable options as lists, all else as the text that was typed: `rlz.config` checks and
    converts them, and says what is wrong with them. None or an empty list: not given.

    Parameters
    ----------
    algo : whose settings are options; None: those of every algorithm of rlz, each with its owners.
    """
    fields = known_options() if algo is None else config_type(algo).model_fields
    panels = [str(panel) for panel in Panel]
    ordered = sorted(fields.items(), key=lambda item: panels.index(metadata(item[1])["panel"]))
    return [_parameter(name, field, owners(name) if algo is None else "") for name, field in ordered if name != "algo"]


def owners(name: str) -> str:
    """Which algorithms alone have an option, in words; empty: all of them."""
    found = [algo for algo in BUILT_IN if name in config_type(algo).model_fields]
    return "" if len(found) == len(BUILT_IN) else f" Only {', '.join(found)}."


def given(options: dict[str, Any]) -> dict[str, Any]:
    """Options that were on the command line."""
    return {name: value for name, value in options.items() if value is not None and value not in ([], ())}


def _parameter(name: str, field: FieldInfo, only: str) -> inspect.Parameter:
    extra = metadata(field)
    kind: Any = str | None
    names = [flag(name), *extra["flags"]]
    metavar = extra["metavar"]
    if field.annotation is bool:
        kind, names, metavar = bool | None, [f"{flag(name)}/--no-{flag(name)[2:]}"], None
    elif name in ("env_kwargs", "wrapper", "log_info"):
        kind = list[str] | None
    elif get_origin(field.annotation) is Literal:
        metavar = "|".join(get_args(field.annotation))
    option = typer.Option(
        None,
        *names,
        help=_help(field, extra["shown"], only),
        metavar=metavar,
        rich_help_panel=extra["panel"],
        show_default=False,
    )
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=option, annotation=kind)


def _help(field: FieldInfo, shown: str | None, only: str) -> str:
    """Text and default. Typer cannot show the default itself: its own default is 'not given', for the origins."""
    text = (field.description or "").replace("[", r"\[") + only
    if field.is_required() and shown is None:
        return text
    if shown is None:
        on_off = {True: "on", False: "off"}
        shown = on_off[field.default] if isinstance(field.default, bool) else f"{field.default}"
    return rf"{text} [dim]\[default: {shown}][/dim]"
