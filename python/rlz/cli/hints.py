"""Messages for command lines that Typer cannot parse: rlz's names, close matches, where to read on."""

from typing import Any

import typer
from typer.exceptions import TyperException

from rlz.algorithms.default import DEFAULT
from rlz.options.names import hint


def explain(error: TyperException) -> str:
    """Return what was wrong, what was probably meant, and which help to read."""
    ctx: Any = getattr(error, "ctx", None)
    lines = [error.format_message()]
    name = getattr(error, "option_name", None)
    if type(error).__name__ == "NoSuchOption" and ctx is not None and name is not None:
        known = [
            option.lstrip("-").replace("-", "_")
            for parameter in ctx.command.params
            for option in (*parameter.opts, *parameter.secondary_opts)
            if option.startswith("--")
        ]
        algo = getattr(ctx.command, "algo", None)
        lines = [f"No such option {name}.", _of_others(name, algo) or hint(name, known, as_option=True)]
    elif isinstance(error, typer.BadParameter) and isinstance(error.__cause__, ValueError):
        lines = [_bad_value(error, error.__cause__)]
    elif "unexpected extra argument" in lines[0] and ctx is not None and ctx.info_name == "train":
        lines.append(f"The environment and everything else are options: rlz train {DEFAULT} --env Ant-v4")
    if ctx is not None:
        algo = getattr(ctx.command, "algo", None)
        lines.append(f"See {ctx.command_path}{f' {algo}' if algo else ''} --help")
    return "\n".join(line for line in lines if line)


def _of_others(name: str, algo: str | None) -> str:
    """Whose option it is, where another algorithm has it."""
    from rlz.config.overrides import of_others

    return of_others(name.lstrip("-").replace("-", "_"), algo) if algo is not None else ""


def _bad_value(error: typer.BadParameter, cause: ValueError) -> str:
    """Name option, value and rule: Typer's own message leaves out the value."""
    parameter: Any = error.param
    details: Any = getattr(cause, "errors", None)
    if parameter is None or details is None:
        return error.format_message()
    first = details()[0]
    rule = first["msg"].removeprefix("Value error, ")
    name = parameter.opts[0] if parameter.opts[0].startswith("-") else parameter.display_name_raw
    return f"{name} {first['input']}: {rule[0].lower()}{rule[1:].rstrip('.')}."
