"""The argument that names a run, of the commands that look into one."""

from pathlib import Path
from typing import Annotated, Any

import typer

from rlz.cli.command import Command


class NamesRuns(Command):
    """A command whose arguments may be -1, the newest run, which no option is called."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Let -1 through to the arguments; a misspelt option beside it is then refused as an argument."""
        ctx.ignore_unknown_options = "-1" in args
        return super().parse_args(ctx, args)


Run = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="Run folder or its name in runs/, a folder of runs (its newest run), last or -1: the newest in runs/.",
    ),
]
RunsDir = Annotated[Path, typer.Option(metavar="DIR", help="Folder that holds run folders.")]
