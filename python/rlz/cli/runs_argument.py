"""The argument that names a run, of the commands that look into one."""

from pathlib import Path
from typing import Annotated

import typer

Run = Annotated[
    str,
    typer.Argument(metavar="RUN", help="Run folder, a folder of runs (its newest run), or last: the newest in runs/."),
]
RunsDir = Annotated[Path, typer.Option(metavar="DIR", help="Folder that holds run folders.")]
