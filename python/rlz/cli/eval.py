"""`rlz eval RUN`."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from rlz.cli.runs_argument import NamesRuns, Run

EPILOG = """[bold]Examples[/bold]

  rlz eval runs/sac__Ant-v4__s1__20250101-120000
  rlz eval last --episodes 100 --checkpoint latest
  rlz eval runs/NAME --episodes 1 --video ant.mp4"""

app = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)


@app.command(epilog=EPILOG, cls=NamesRuns)
def evaluate(
    run: Run,
    episodes: Annotated[int, typer.Option(metavar="INT", min=1, help="Episodes to play.")] = 10,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help=r"best, latest, or the name of a folder in checkpoints/. [dim]\[default: best, else latest][/dim]",
            show_default=False,
        ),
    ] = None,
    seeds: Annotated[
        Literal["held-out", "training"],
        typer.Option(
            help="Reset seeds: held-out ones, which no evaluation in training used, or those of training, which give "
            "its very figures. The best policy was chosen by the latter, so only held-out ones say how good it is."
        ),
    ] = "held-out",
    max_episode_steps: Annotated[
        int | None,
        typer.Option(
            metavar="STEPS",
            min=1,
            help=r"Env steps after which an episode is truncated. [dim]\[default: as in training][/dim]",
            show_default=False,
        ),
    ] = None,
    video: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help=r"Write a video of the episodes. [dim]\[default: none][/dim]", show_default=False
        ),
    ] = None,
) -> int:
    """Play whole episodes with the deterministic policy of a run, by the code that evaluates during training.

    Prints mean, standard deviation, range and lengths of the returns, and the version that was scored.
    """
    from rlz.runtime.evaluate import evaluate as play

    return play(
        run, episodes=episodes, checkpoint=checkpoint, seeds=seeds, max_episode_steps=max_episode_steps, video=video
    )
