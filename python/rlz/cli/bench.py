"""`rlz bench WORKLOAD`."""

from pathlib import Path
from typing import Annotated, Literal

import typer

EPILOG = """[bold]Examples[/bold]

  rlz bench train --env Ant-v4 --peers sb3 --rounds 5
  rlz bench train --env HalfCheetah-v5 --peers sb3,sbx --output result.json
  rlz bench replay
  rlz bench sampling --env Ant-v4"""

app = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)


@app.command(epilog=EPILOG)
def bench(
    workload: Annotated[
        Literal["train", "replay", "sampling"],
        typer.Argument(help="What to measure: whole training, the replay buffer, or sampling with an idle learner."),
    ],
    env: Annotated[str, typer.Option(metavar="ID", help="Gymnasium id.")] = "Ant-v4",
    peers: Annotated[
        str,
        typer.Option(metavar="A,B", help="Libraries to measure beside rlz, each in its own environment: sb3, sbx."),
    ] = "",
    rounds: Annotated[int, typer.Option(metavar="INT", min=1, help="Interleaved rounds.")] = 3,
    seconds: Annotated[float, typer.Option(metavar="S", min=1, help="Seconds measured per round and contestant.")] = 20,
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help=r"Write result, machine, versions and command as JSON. [dim]\[default: none][/dim]",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Measure in interleaved rounds; show medians, spread and ratios."""
    from rlz.bench import run_bench

    names = [name for name in peers.split(",") if name]
    run_bench(workload, env=env, peers=names, rounds=rounds, seconds=seconds, output=output)
