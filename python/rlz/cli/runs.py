"""`rlz runs` and `rlz runs show RUN`."""

import time
from pathlib import Path
from typing import Annotated

import typer

from rlz.algorithms.default import DEFAULT
from rlz.cli.command import Command, Group

EPILOG = """[bold]Examples[/bold]

  rlz runs
  rlz runs --runs-dir /data/runs
  rlz runs show runs/NAME"""

SHOW_EPILOG = f"""[bold]Examples[/bold]

  rlz runs show runs/{DEFAULT}__Ant-v4__s1__20250101-120000
  watch rlz runs show runs/NAME"""

app = typer.Typer(cls=Group, add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)


@app.callback(invoke_without_command=True, epilog=EPILOG)
def runs(
    ctx: typer.Context,
    runs_dir: Annotated[Path, typer.Option(metavar="DIR", help="Folder that holds run folders.")] = Path("runs"),
) -> None:
    """List runs, oldest first: status, steps, speed, and the last and best evaluation, and the best policy on held-out
    starts.
    """
    if ctx.invoked_subcommand is None:
        _list(runs_dir)


@app.command(epilog=SHOW_EPILOG, cls=Command)
def show(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.", show_default=False)],
) -> None:
    """Explain a run, also while it hangs: who waits for what and since when, rates, memory, restarts, last events."""
    from rlz.runtime.show import show as explain

    for line in explain(run):
        typer.echo(line)


def _list(runs_dir: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    from rlz.records.runs import list_runs

    found = list_runs(runs_dir)
    if not found:
        typer.echo(f"No runs in {runs_dir}. Start one: rlz train {DEFAULT} --env Ant-v4")
        return
    table = Table(box=None, pad_edge=False)
    for title in ("run", "status"):
        table.add_column(title, overflow="fold")
    for title in ("steps", "of", "steps/s", "last", "best", "held-out", "started"):
        table.add_column(title, justify="right", no_wrap=True)
    for run in found:
        table.add_row(
            run.name,
            run.status if not run.problem else f"{run.status}: {run.problem}",
            _number(run.env_steps, ","),
            _number(run.total_timesteps, ","),
            _number(run.env_steps_per_s, ",.0f"),
            _number(run.last_return, ".1f"),
            _number(run.best_return, ".1f"),
            _number(run.held_out_return, ".1f"),
            time.strftime("%Y-%m-%d %H:%M", time.localtime(run.started)) if run.started else "",
        )
    Console().print(table, highlight=False, markup=False)


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)
