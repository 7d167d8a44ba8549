"""`rlz profile`."""

import json
from typing import Annotated

import typer

EPILOG = """[bold]Examples[/bold]

  rlz profile
  rlz profile --env Ant-v4
  rlz profile --env Ant-v4 --budget 60 > profile.json"""

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
) -> None:
    """Show the hardware as JSON; with --env, also the sampling, replay and update rates measured on it."""
    from rlz.hardware import profile as measure

    typer.echo(json.dumps(measure(env, budget), indent=2))
