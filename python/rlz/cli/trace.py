"""`rlz trace RUN`."""

from pathlib import Path
from typing import Annotated

import typer

from rlz.cli.runs_argument import NamesRuns, Run, RunsDir

EPILOG = """[bold]Examples[/bold]

  rlz trace last
  rlz trace runs/NAME --seconds 5 --output trace.json"""

app = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)


@app.command(epilog=EPILOG, cls=NamesRuns)
def trace(
    run: Run = "last",
    runs_dir: RunsDir = Path("runs"),
    seconds: Annotated[float, typer.Option(metavar="S", min=0.1, max=600, help="How long to follow the run.")] = 5.0,
    output: Annotated[Path, typer.Option(metavar="FILE", help="File to write.")] = Path("trace.json"),
) -> None:
    """Write the time line of every worker: ui.perfetto.dev and chrome://tracing show it. The run does not notice."""
    from rlz.records.runs import find_run
    from rlz.watch.trace import trace as follow

    found = follow(find_run(run, runs_dir), seconds, output.absolute())
    missed = f", {found.missed:,} were missed" if found.missed else ""
    typer.echo(f"{output}: {found.phases:,} phases of {found.workers} workers{missed}")
