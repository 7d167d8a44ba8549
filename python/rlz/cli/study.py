"""`rlz study FILE`."""

from pathlib import Path
from typing import Annotated

import typer

from rlz.algorithms.default import DEFAULT
from rlz.cli.command import Command

EPILOG = f"""[bold]seeds.toml[/bold]

  cores_per_run = 2
  \\[run]
  algo = "{DEFAULT}"
  env = "Pendulum-v1"
  \\[grid]
  seed = \\[1, 2, 3]
  \\[search]
  trials = 20
  \\[search.space]
  learning_rate = {{ low = 1e-4, high = 1e-2, log = true }}

[bold]Examples[/bold]

  rlz study seeds.toml
  rlz study seeds.toml --retry-failed
  rlz runs --runs-dir runs/seeds"""

app = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)


@app.command(epilog=EPILOG, cls=Command)
def study(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What to run, as TOML.", show_default=False)],
    runs_dir: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the folder of the study's runs.")] = Path(
        "runs"
    ),
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Try runs again that failed before.")] = False,
) -> int:
    """Make many runs: a grid of options, or a search; as many side by side as cores and memory allow.

    Call it again to go on after a stop, a crash or a change of the grid: what is completed stays, what was interrupted
    is resumed. Ctrl-C stops all runs with a checkpoint each.
    """
    from rlz.studies.conduct import conduct

    return conduct(file, runs_dir, retry_failed=retry_failed)
