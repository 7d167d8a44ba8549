"""`rlz top [RUN]`."""

from pathlib import Path
from typing import Annotated

import typer

from rlz.algorithms.default import DEFAULT
from rlz.cli.runs_argument import NamesRuns, Run, RunsDir

EPILOG = f"""[bold]Examples[/bold]

  rlz top
  rlz top runs/{DEFAULT}__Ant-v4__s1__20250101-120000"""

app = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)


@app.command(epilog=EPILOG, cls=NamesRuns)
def top(
    run: Run = "last",
    runs_dir: RunsDir = Path("runs"),
    once: Annotated[bool, typer.Option("--once", help="Show it once and exit.")] = False,
) -> None:
    """Show a run in the terminal, once a second: rates, where each worker's time goes, machine, events."""
    from rlz.records.runs import find_run
    from rlz.watch.top import top as show

    show(find_run(run, runs_dir), once=once)
