"""`rlz bench WORKLOAD`."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from rlz.cli.command import Command
from rlz.errors import UsageError

EPILOG = """[bold]Examples[/bold]

  rlz bench
  rlz bench train --env Ant-v4 --peers sb3 --rounds 5
  rlz bench train --env HalfCheetah-v5 --peers sb3,sbx --output result.json
  rlz bench train --env Ant-v4 -- --samplers 2 --no-compile
  rlz bench replay --peers sb3,cpprb,torchrl
  rlz bench transport --peers faster-fifo
  rlz bench sampling --env Ant-v4"""

app = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)


@app.command(epilog=EPILOG, cls=Command)
def bench(
    workload: Annotated[
        Literal["train", "sampling", "replay", "transport"] | None,
        typer.Argument(
            metavar="WORKLOAD",
            help="train (all of it), sampling (learner idle), replay (the buffer) or transport (queue, parameters). "
            "Without one: some figures of each in a few minutes, beside the peers that are installed.",
            show_default=False,
        ),
    ] = None,
    options: Annotated[
        list[str] | None,
        typer.Argument(metavar="TRAIN_OPTIONS", help="After --: options of rlz train, for train.", show_default=False),
    ] = None,
    env: Annotated[str, typer.Option(metavar="ID", help="Gymnasium id.")] = "Ant-v4",
    peers: Annotated[
        str,
        typer.Option(
            metavar="A,B",
            help="Libraries to measure beside rlz, each in its own environment: sb3, sbx, cpprb, torchrl, faster-fifo. "
            r"[dim]\[default: none][/dim]",
            show_default=False,
        ),
    ] = "",
    rounds: Annotated[
        int | None,
        typer.Option(
            metavar="INT",
            min=1,
            help=r"Interleaved rounds. [dim]\[default: 3; without a workload 1][/dim]",
            show_default=False,
        ),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            metavar="S",
            min=1,
            help=r"Seconds of one measurement. [dim]\[default: 20 for train, else 8][/dim]",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write result, machine, versions and command as JSON; FILE.md: as Markdown, and JSON beside it. "
            r"[dim]\[default: none][/dim]",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Measure in interleaved rounds; show medians, spread and ratios."""
    if workload is None:
        if peers or seconds is not None or output is not None or options:
            raise UsageError("--peers, --seconds, --output and options of rlz train need a WORKLOAD: rlz bench train")
        from rlz.bench.overview import overview

        overview(env, rounds=rounds or 1)
        return
    from rlz.bench import run_bench

    names = [name.strip() for name in peers.split(",") if name.strip()]
    run_bench(workload, env=env, peers=names, rounds=rounds or 3, seconds=seconds, output=output, options=options or [])
