"""`rlz profile`."""

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from rlz.algorithms.default import DEFAULT
from rlz.cli.command import Command

EPILOG = """[bold]Examples[/bold]

  rlz profile
  rlz profile --env Ant-v4
  rlz profile --env Ant-v4 --budget 2m --fresh
  rlz profile --env Ant-v4 --explain
  rlz profile --config runs/NAME/config.toml
  rlz profile --env Ant-v4 --json > profile.json"""

app = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)


def seconds(value: str | float) -> float:
    """Accept 60, 60s, 2m, 1.5m. Raises typer's error for anything else."""
    text = str(value)
    units = {"s": 1.0, "m": 60.0}
    number, unit = (text[:-1], units[text[-1]]) if text[-1:] in units else (text, 1.0)
    try:
        found = float(number) * unit
    except ValueError:
        found = 0.0
    if not 5 <= found <= 3600:
        raise typer.BadParameter(f"{text}: expected a time from 5s to 60m, such as 60s or 2m")
    return found


@app.command(epilog=EPILOG, cls=Command)
def profile(
    env: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            help=r"Gymnasium id to measure for. [dim]\[default: the machine alone][/dim]",
            show_default=False,
        ),
    ] = None,
    algo: Annotated[
        str | None,
        typer.Option(metavar="NAME", help=rf"Algorithm. [dim]\[default: {DEFAULT}][/dim]", show_default=False),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="TOML file with options of the run to measure for (networks, batch size, ...), such as a run's "
            r"config.toml. [dim]\[default: the preset][/dim]",
            show_default=False,
        ),
    ] = None,
    budget: Annotated[
        float,
        typer.Option(
            parser=seconds,
            metavar="TIME",
            help=r"Time to spend on measuring. [dim]\[default: 60s][/dim]",
            show_default=False,
        ),
    ] = 60.0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON (keys: docs/profile.md) instead of tables.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also write the JSON to a file.", show_default=False),
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Measure again, whatever was measured before.")] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Also show the plan that `rlz train` makes of it, with reasons.")
    ] = False,
) -> None:
    """Show and measure the machine; with --env, what it reaches there: kept, so that `rlz train` plans with it."""
    from rich.console import Console

    from rlz.planning.planner import plan as make_plan
    from rlz.planning.report import show, show_plan

    if output is not None:
        _check_output(output)
    errors = Console(stderr=True, highlight=False)
    needs = {"--algo": algo is not None, "--fresh": fresh, "--explain": explain}
    resolved = _resolved(env, algo, config, [name for name, is_given in needs.items() if is_given])
    run = None if resolved is None else resolved.config
    found = _measure(run, budget, fresh, errors)
    plan = make_plan(resolved.config, resolved.given(), found) if explain else None
    values = found.to_json()
    if plan is not None:
        values["plan"] = plan.model_dump(mode="json")
    text = json.dumps(values, indent=2)
    if output is not None:
        output.write_text(text + "\n", encoding="utf-8")
    if as_json:
        typer.echo(text)
        return
    console = Console(highlight=False)
    show(found, console)
    if plan is not None:
        show_plan(plan, console)


def _check_output(path: Path) -> None:
    """Refuse a file that cannot be written, before anything is measured."""
    from rlz.errors import ConfigError

    folder = path.absolute().parent
    if path.is_dir():
        raise ConfigError(f"{path} cannot be written: it is a folder. Give a file, such as {path / 'profile.json'}")
    if not folder.is_dir():
        raise ConfigError(f"{path} cannot be written: there is no folder {folder}")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise ConfigError(f"{path} cannot be written: its permissions do not let you")


def _resolved(env: str | None, algo: str | None, config: Path | None, needs: list[str]) -> Any:
    """The run to measure for, with the origins of its options; None where no environment is named.

    `needs`: options that were given and make no sense without one.
    """
    from rlz.answers import Replay
    from rlz.config import resolve_with_origins
    from rlz.errors import UsageError
    from rlz.references import label

    if env is None and config is None:
        if needs:
            raise UsageError(f"{needs[0]} needs an environment: give --env, for instance --env Ant-v4, or --config")
        return None
    resolved = resolve_with_origins(algo or (DEFAULT if config is None else None), env, {}, config)
    if not isinstance(resolved.config.data(), Replay):
        raise UsageError(
            f"{label(resolved.config.algo)} learns from rollouts, whose plan follows from the number of cores: there "
            "is nothing to measure for it, and `rlz train` says what it chose. `rlz profile` alone measures the "
            "machine; with --env it measures an algorithm that has a replay buffer, such as --algo " + DEFAULT
        )
    return resolved


def _measure(run: Any, budget: float, fresh: bool, errors: Any) -> Any:
    """The profile from the cache, or a new one that is kept there."""
    from rlz.planning import cache
    from rlz.planning import profile as measure

    if run is not None and not fresh:
        kept = cache.load(run)
        if kept.note:
            errors.print(kept.note, style="dim", markup=False)
        if kept.profile is not None:
            made = kept.profile.date.replace("T", " ").rstrip("Z")
            errors.print(f"measured before ({made} UTC); --fresh measures again", style="dim", markup=False)
            return kept.profile
    if run is not None:
        from rlz.config.model import ask
        from rlz.envs import inspect_env

        ask(
            run, inspect_env(run, on_note=lambda _: None)
        )  # what cannot be made or does not fit is said before the wait
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=errors, transient=True) as bar:
        task = bar.add_task("", total=1.0)
        found = measure(run, budget, progress=lambda text, part: bar.update(task, completed=part, description=text))
    if run is None:
        return found
    if not found.enough:
        note = "not kept for `rlz train`: there are too few figures for a plan. Give more time with --budget"
        errors.print(note, style="yellow", markup=False)
        return found
    try:
        cache.save(found)
    except OSError as error:
        errors.print(f"the profile is not kept: {error.filename}: {error.strerror}", style="dim", markup=False)
    return found
