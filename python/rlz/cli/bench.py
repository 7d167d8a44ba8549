"""`rlz bench [WORKLOAD]`."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from rlz.algorithms.default import DEFAULT
from rlz.cli.command import Command
from rlz.errors import UsageError

EPILOG = """[bold]Examples[/bold]

  rlz bench
  rlz bench --setup-peers --peers sb3,sbx
  rlz bench train --env HalfCheetah-v5 --rounds 5 --output results
  rlz bench train --env Ant-v4 -- --samplers 2 --no-compile
  rlz bench replay --peers cpprb,torchrl
  rlz bench score --env Pendulum-v1 --rounds 10
  rlz bench all --quick --compare results/report.json"""

app = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)


@app.command(epilog=EPILOG, cls=Command)
def bench(
    workload: Annotated[
        Literal["transport", "replay", "sampling", "inference", "update", "train", "score", "all"] | None,
        typer.Argument(
            metavar="WORKLOAD",
            help="transport (queue, parameters), replay (the buffer), sampling (learner idle), inference (the policy), "
            "update (the learner alone), train (all of it), score (time to a return), or all. "
            "Without one: a little of each but score, in one table, within three minutes.",
            show_default=False,
        ),
    ] = None,
    options: Annotated[
        list[str] | None,
        typer.Argument(metavar="TRAIN_OPTIONS", help="After --: options of rlz train.", show_default=False),
    ] = None,
    env: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            help=r"Gymnasium id. [dim]\[default: Ant-v4; of score Pendulum-v1][/dim]",
            show_default=False,
        ),
    ] = None,
    algo: Annotated[str, typer.Option(metavar="NAME", help="Algorithm.")] = DEFAULT,
    peers: Annotated[
        str,
        typer.Option(
            metavar="A,B",
            help="Libraries to measure beside rlz, each in an environment of its own: names, none, or auto (those that "
            "are set up).",
        ),
    ] = "auto",
    setup_peers: Annotated[
        bool, typer.Option("--setup-peers", help="Make the environments of --peers (auto: of all) with uv, and exit.")
    ] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Short measurements, one round, one variant of each peer.")
    ] = False,
    rounds: Annotated[
        int | None,
        typer.Option(
            metavar="INT",
            min=1,
            help=r"Interleaved rounds; of score a seed each. [dim]\[default: 3; quick 1][/dim]",
            show_default=False,
        ),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            metavar="S",
            min=0.1,
            help="Seconds of one measurement, of score of a run. "
            r"[dim]\[default: 3 to 20 by workload, of score 60][/dim]",
            show_default=False,
        ),
    ] = None,
    score: Annotated[
        float | None,
        typer.Option(
            metavar="RETURN",
            help=r"Mean return that score waits for. [dim]\[default: that of the environment][/dim]",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help=r"Write report.json, report.md and report.html there. [dim]\[default: none][/dim]",
            show_default=False,
        ),
    ] = None,
    compare: Annotated[
        Path | None,
        typer.Option(
            metavar="OLD.json",
            help=r"Show what has changed since that report. [dim]\[default: none][/dim]",
            show_default=False,
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the report as JSON instead of tables.")] = False,
) -> int:
    """Measure in interleaved rounds, beside limits and other libraries; show medians, spread, ratios and intervals."""
    from rlz.bench import QUICK, WORKLOADS, run_bench, set_up_peers
    from rlz.bench.overview import show_overview

    names = [name.strip() for name in peers.split(",") if name.strip()]
    chosen = None if names == ["auto"] else [] if names == ["none"] else names
    if setup_peers:
        if workload is not None:
            raise UsageError("--setup-peers measures nothing: leave out the workload")
        return 1 if set_up_peers(chosen, lambda line: typer.echo(line, err=True)) else 0
    alone = workload is None
    wanted = QUICK if alone else WORKLOADS if workload == "all" else (str(workload),)
    if score is not None and "score" not in wanted:
        raise UsageError("--score is of the workload score: rlz bench score")
    if options and not {"train", "score"} & set(wanted):
        raise UsageError(f"rlz bench {workload} takes no options of rlz train: leave out {' '.join(options)}")
    run_bench(
        wanted,
        env=env,
        algo=algo,
        peers=chosen,
        quick=quick or alone,
        rounds=rounds,
        seconds=seconds,
        score=score,
        output=output,
        compare=compare,
        options=options or [],
        view=(lambda report, console: print_json(report)) if json else show_overview if alone else None,
    )
    return 0


def print_json(report: object) -> None:
    """Print a report."""
    import json

    typer.echo(json.dumps(report, indent=1))
