"""`rlz watch [RUN]`."""

from pathlib import Path
from typing import Annotated

import typer

from rlz.algorithms.default import DEFAULT
from rlz.cli.runs_argument import NamesRuns, Run, RunsDir

EPILOG = f"""[bold]Examples[/bold]

  rlz watch
  rlz watch runs/{DEFAULT}__Ant-v4__s1__20250101-120000
  rlz watch /data/runs --open
  rlz train {DEFAULT} --env Ant-v4 --watch"""

app = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)


@app.command(epilog=EPILOG, cls=NamesRuns)
def watch(
    run: Run = "last",
    runs_dir: RunsDir = Path("runs"),
    port: Annotated[int, typer.Option(metavar="PORT", min=0, max=65535, help="On 127.0.0.1; 0: a free one.")] = 0,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in this machine's browser.")] = False,
    leave: Annotated[bool, typer.Option("--leave", hidden=True, help="End some time after the run.")] = False,
) -> None:
    """Serve a page with all of a run: curves, rates, where the time goes, machine, events, video, settings.

    It only reads, at low priority, and may be ended at will (Ctrl-C). Runs that have ended are shown in the same way.
    """
    from rlz.records.runs import find_run
    from rlz.watch.serve import watch as serve

    serve(find_run(run, runs_dir), port=port, open_page=open_page, leave=leave)
