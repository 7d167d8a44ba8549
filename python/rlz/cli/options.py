"""The options of `rlz train`, generated from the fields of a run's configuration: there is no second list of them."""

import inspect
from typing import Any, Literal, get_args, get_origin

import typer
from pydantic.fields import FieldInfo

from rlz.algorithms.registry import BUILT_IN
from rlz.config.model import config_type
from rlz.config.overrides import known_options
from rlz.options.names import REPEATABLE, flag
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
    return [
        _parameter(name, field, *(("", _default(field)) if algo else (owners(name), _defaults(name))))
        for name, field in ordered
        if name != "algo"
    ]


def owners(name: str) -> str:
    """Which algorithms alone have an option, in words; empty: all of them."""
    found = [algo for algo in BUILT_IN if name in config_type(algo).model_fields]
    return "" if len(found) == len(BUILT_IN) else f" Only {', '.join(found)}."


def given(options: dict[str, Any]) -> dict[str, Any]:
    """Options that were on the command line."""
    return {name: value for name, value in options.items() if value is not None and value not in ([], ())}


def _parameter(name: str, field: FieldInfo, only: str, default: str) -> inspect.Parameter:
    extra = metadata(field)
    kind: Any = str | None
    names = [flag(name), *extra["flags"]]
    metavar = extra["metavar"]
    if field.annotation is bool:
        kind, names, metavar = bool | None, [f"{flag(name)}/--no-{flag(name)[2:]}"], None
    elif name in REPEATABLE:
        kind = list[str] | None
    elif get_origin(field.annotation) is Literal:
        metavar = "|".join(get_args(field.annotation))
    option = typer.Option(
        None,
        *names,
        help=_help(field, only, default),
        metavar=metavar,
        rich_help_panel=extra["panel"],
        show_default=False,
    )
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=option, annotation=kind)


def _help(field: FieldInfo, only: str, default: str) -> str:
    """Text and default. Typer cannot show the default itself: its own default is 'not given', for the origins."""
    needs = metadata(field).get("needs")
    text = (field.description or "") + (f" Only with {flag(needs)}." if needs else "")
    return text.replace("[", r"\[") + only + (rf" [dim]\[default: {default}][/dim]" if default else "")


def _default(field: FieldInfo) -> str:
    """The default in words; "" where there is none."""
    shown = metadata(field)["shown"]
    if shown is not None or field.is_required():
        return shown or ""
    on_off = {True: "on", False: "off"}
    return on_off[field.default] if isinstance(field.default, bool) else f"{field.default}"


def _defaults(name: str) -> str:
    """The default of all algorithms, or each one's."""
    of: dict[str, list[str]] = {}
    for algo in BUILT_IN:
        if (field := config_type(algo).model_fields.get(name)) is not None:
            of.setdefault(_default(field), []).append(algo)
    if len(of) == 1:
        return next(iter(of))
    return "; ".join(f"{', '.join(algos)}: {default}" for default, algos in of.items())
