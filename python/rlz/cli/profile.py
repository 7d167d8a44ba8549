"""`rlz profile`."""

import json
from typing import Annotated

import typer

EPILOG = """[bold]Examples[/bold]

  rlz profile
  rlz profile --env Ant-v4
  rlz profile --env Ant-v4 --budget 60
  rlz profile --env Ant-v4 --json > profile.json"""

app = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)


@app.command(epilog=EPILOG)
def profile(
    env: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            help=r"Gymnasium id to measure rates for. [dim]\[default: hardware only][/dim]",
            show_default=False,
        ),
    ] = None,
    budget: Annotated[float, typer.Option(metavar="S", min=1, help="Seconds to spend on measuring.")] = 20,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON (keys: docs/profile.md) instead of tables.")
    ] = False,
) -> None:
    """Show the hardware; with --env, also the sampling, replay and update rates measured on it."""
    from rich.console import Console

    from rlz.hardware import profile as measure

    progress = Console(stderr=True, highlight=False)
    found = measure(env, budget, progress=lambda text: progress.print(text, style="dim", markup=False))
    if as_json:
        typer.echo(json.dumps(found, indent=2))
    else:
        from rlz.hardware.report import show

        show(found, Console(highlight=False))
