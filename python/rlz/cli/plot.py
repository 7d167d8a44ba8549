"""`rlz plot RUN...`."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from rlz.cli.runs_argument import NamesRuns, RunsDir

EPILOG = """[bold]Examples[/bold]

  rlz plot last --output curve.svg
  rlz plot runs/a runs/b runs/c --x time --output curves.png
  rlz plot runs/* --group-by replay_ratio --output ratios.svg
  rlz plot runs/a SB3=logs/progress.csv tb/run --output beside.svg"""

app = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)


@app.command(epilog=EPILOG, cls=NamesRuns)
def plot(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN...",
            help="Runs as elsewhere (folder, name, last); monitor.csv or progress.csv of Stable-Baselines3, a CSV file "
            "with env steps or global_step, TensorBoard event files or their folder. LABEL= in front names one.",
            show_default=False,
        ),
    ],
    output: Annotated[Path, typer.Option(metavar="FILE", help="FILE.svg or FILE.png.", show_default=False)],
    x: Annotated[Literal["steps", "time"], typer.Option("--x", help="Env steps, or seconds of the run.")] = "steps",
    metric: Annotated[
        str | None,
        typer.Option(
            metavar="TAG",
            help="Any tag of metrics.jsonl, or eval/... of evaluations.csv. "
            r"[dim]\[default: eval/return_mean, else rollout/return_mean][/dim]",
            show_default=False,
        ),
    ] = None,
    group_by: Annotated[
        str | None,
        typer.Option(
            metavar="A,B",
            help="Settings that tell groups of rlz's runs apart; all others (seed) are alike in a group. "
            r"[dim]\[default: algo, and env where there are several][/dim]",
            show_default=False,
        ),
    ] = None,
    runs_dir: RunsDir = Path("runs"),
) -> None:
    """Draw learning curves: every seed and the mean of a group; of 10 runs or more the interquartile mean with its
    bootstrap interval.
    """
    from rlz.curves.drawing import check_output, draw
    from rlz.curves.groups import common_metric, grouped
    from rlz.curves.reading import read_sources

    check_output(output)
    sources = read_sources(runs, runs_dir)
    metric = common_metric(sources, metric)
    groups = grouped(sources, [name.strip() for name in (group_by or "").split(",") if name.strip()])
    draw(groups, metric, x, output)
    shown = ", ".join(f"{name} ({len(found)})" for name, found in groups.items())
    typer.echo(f"{output}: {metric} of {shown}")
