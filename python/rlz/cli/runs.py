"""`rlz runs`, `rlz runs show RUN` and `rlz runs diff A B`."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from rlz.algorithms.default import DEFAULT
from rlz.cli.command import Group
from rlz.cli.runs_argument import NamesRuns, Run, RunsDir
from rlz.errors import CheckpointError

EPILOG = f"""[bold]Examples[/bold]

  rlz runs
  rlz runs --runs-dir /data/runs
  rlz runs --sort best --where algo={DEFAULT} --where "steps>=100000"
  rlz runs diff runs/A last
  rlz runs show last"""

SHOW_EPILOG = f"""[bold]Examples[/bold]

  rlz runs show runs/{DEFAULT}__Ant-v4__s1__20250101-120000
  watch rlz runs show last"""

DIFF_EPILOG = """[bold]Examples[/bold]

  rlz runs diff runs/A runs/B
  rlz runs diff runs/A last"""

app = typer.Typer(cls=Group, add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)


@app.callback(invoke_without_command=True, epilog=EPILOG)
def runs(
    ctx: typer.Context,
    sort: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="A column, or any setting or metric; the largest first. "
            r"[dim]\[default: by start, the newest last][/dim]",
            show_default=False,
        ),
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="Only runs of which this is true; also != < <= > >=. May be given several times.",
            show_default=False,
        ),
    ] = None,
    runs_dir: RunsDir = Path("runs"),
) -> None:
    """List runs: status, steps, speed, the last and best evaluation, and the best policy on held-out starts."""
    if ctx.invoked_subcommand is None:
        _list(runs_dir, sort, where or [])


@app.command(epilog=SHOW_EPILOG, cls=NamesRuns)
def show(run: Run, runs_dir: RunsDir = Path("runs")) -> None:
    """Explain a run, also while it hangs: who waits for what and since when, rates, memory, restarts, last events."""
    from rlz.records.runs import find_run
    from rlz.runtime.show import show as explain

    for line in explain(find_run(run, runs_dir)):
        typer.echo(line)


@app.command(epilog=DIFF_EPILOG, cls=NamesRuns)
def diff(
    a: Annotated[str, typer.Argument(metavar="A", help="A run, as in other commands.", show_default=False)],
    b: Annotated[str, typer.Argument(metavar="B", help="Another one.", show_default=False)],
    runs_dir: RunsDir = Path("runs"),
) -> None:
    """Show the settings in which two runs differ, and what came of them."""
    import tomllib

    from rlz.records.runs import find_run, read_run
    from rlz.records.selection import COLUMNS, differences, value_of

    paths = [find_run(run, runs_dir) for run in (a, b)]
    one, other = (read_run(path) for path in paths)
    for info in (one, other):
        if info.problem:
            raise CheckpointError(f"{info.path} is {info.status}: {info.problem}")
    settings = [name for path in paths for name in tomllib.loads((path / "config.toml").read_text("utf-8"))]
    found = differences(one, other, list(dict.fromkeys(settings)))
    table = _table(["setting", one.name, other.name], [])
    for name, left, right in found or [("no setting differs", "", "")]:
        table.add_row(name, _text(left), _text(right))
    table.add_section()
    for name in ("status", *COLUMNS):
        table.add_row(name, _text(value_of(one, name)), _text(value_of(other, name)))
    _print(table)


def _list(runs_dir: Path, sort: str | None, conditions: Sequence[str]) -> None:
    from rlz.records.runs import list_runs
    from rlz.records.selection import COLUMNS, key_of, sort_runs, value_of, where

    if not runs_dir.is_dir() and runs_dir != Path("runs"):
        raise CheckpointError(f"--runs-dir {runs_dir}: there is no such folder.")
    found = list_runs(runs_dir)
    if not found:
        typer.echo(f"No runs in {runs_dir}. Start one: rlz train {DEFAULT} --env Ant-v4")
        return
    chosen = where(found, conditions)
    if sort is not None:
        chosen = sort_runs(chosen, sort)
    if not chosen:
        typer.echo(f"None of the {len(found)} runs in {runs_dir}: --where {' --where '.join(conditions)}")
        return
    asked = [name for name in [*map(key_of, conditions), *([sort] if sort else [])] if not _is_shown(name)]
    more = list(dict.fromkeys(asked))
    table = _table(["run", "status"], [*COLUMNS, "started", *more])
    for run in chosen:
        numbers = [
            _number(value_of(run, name), ".1f" if "return" in field else ",.0f") for name, field in COLUMNS.items()
        ]
        started = time.strftime("%Y-%m-%d %H:%M", time.localtime(run.started)) if run.started else ""
        table.add_row(run.name, run.status, *numbers, started, *(_text(value_of(run, name)) for name in more))
    _print(table)
    for run in chosen:
        if run.problem:
            typer.echo(f"{run.name} is {run.status}: {run.problem}")


def _is_shown(name: str) -> bool:
    from rlz.records.selection import COLUMNS

    return name in (*COLUMNS, *COLUMNS.values(), "run", "name", "status", "started")


def _table(texts: Sequence[str], numbers: Sequence[str]) -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for title in texts:
        table.add_column(title, overflow="fold", min_width=9)
    for title in numbers:
        table.add_column(title, justify="right", no_wrap=True)
    return table


def _print(table: Any) -> None:
    from rich.console import Console

    Console().print(table, highlight=False, markup=False)


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return "" if value is None else str(value)
