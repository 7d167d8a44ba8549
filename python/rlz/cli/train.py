"""`rlz train ALGO --env ID`."""

import inspect
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from rlz.algorithms.default import DEFAULT
from rlz.algorithms.registry import BUILT_IN, is_own
from rlz.cli.command import Command
from rlz.cli.options import given, run_parameters
from rlz.config import Resolved, RunConfig, resolve_with_origins
from rlz.config.overrides import PLANNED
from rlz.errors import UsageError

EPILOG = f"""[bold]Examples[/bold]

  rlz train {DEFAULT} --env Ant-v4
  rlz train {DEFAULT} --env Pendulum-v1 -n 20000 --seed 2
  rlz train {DEFAULT} --env HalfCheetah-v5 --samplers 4 --replay-ratio free
  rlz train {DEFAULT} --env my_pkg:MyEnv-v0 --env-kwargs speed=2 --wrapper my_pkg:Scaled
  rlz train {DEFAULT} --env Ant-v4 --mode serial --eval-every 0
  rlz train {DEFAULT} --env Ant-v4 --print-config > ant.toml
  rlz train --config ant.toml --seed 3
  rlz train --resume runs/NAME --total-timesteps 2000000"""


def train(
    algo: str | None,
    config: Path | None,
    resume: str | None,
    print_config: bool,
    show_graph: str | None,
    watch: bool,
    **options: Any,
) -> int:
    """Train an agent, and keep everything about the run in its folder.

    Values are taken from: defaults, the preset of the environment, --config, options; the last one wins.
    Ctrl-C once writes a checkpoint and stops, twice stops now.
    """
    if resume is not None:
        if config is not None:
            raise UsageError("--resume takes the configuration of its run: leave out --config.")
        from rlz.records.runs import find_run

        run_dir = find_run(resume)
        config = run_dir / "config.toml"
    resolved = resolve_with_origins(algo, None, given(options), config)
    if resume is not None:
        if show_graph is not None:
            return _show_graph(resolved.config, show_graph)
        if print_config:
            typer.echo(resolved.render(), nl=False)
            return 0
        from rlz.runtime.resume import resume as go_on

        return go_on(run_dir, resolved.config.model_dump(), given=given(options), beside=_beside(watch))
    from rlz.planning.planned import planned

    plan = planned(resolved.config, resolved.given())
    if print_config:
        basis = {"profile": "by the profile of this machine", "file": f"of {plan.config.plan}"}
        origin = f"{PLANNED} {basis.get(plan.plan.basis, 'without a profile')}"
        typer.echo(
            Resolved(plan.config, resolved.origins | dict.fromkeys(plan.plan.choices, origin)).render(), nl=False
        )
        return 0
    if show_graph is not None:
        return _show_graph(plan.config, show_graph)
    from rlz.runtime.train import train as run

    return run(plan.config, plan=plan.plan, notes=plan.notes, beside=_beside(watch))


def _beside(watch: bool) -> Callable[[Path], None] | None:
    if not watch:
        return None
    from rlz.watch.beside import start_beside

    return start_beside


def _show_graph(config: RunConfig, form: str) -> int:
    """Print the graph of a run; nothing is started but the environment, once."""
    from rich.console import Console

    from rlz import envs
    from rlz.cli.drawing import mermaid, tree
    from rlz.workers.job import Job

    job = Job.of(config, envs.inspect_env(config))
    if form == "mermaid":
        typer.echo(mermaid(job.graph, job.placement))
    else:
        Console(highlight=False).print(tree(f"{config.algo} on {config.env}", job.graph, job.placement))
    return 0


_OWN: dict[str, Any] = {
    "algo": Annotated[
        str | None,
        typer.Argument(
            metavar="ALGO",
            help=f"Algorithm: {', '.join(BUILT_IN)}, or file.py:Class. May be left out when --config names it.",
            show_default=False,
        ),
    ],
    "config": Annotated[
        Path | None,
        typer.Option(
            help="TOML file with option names, underscores for dashes, such as a run's config.toml. "
            r"[dim]\[default: none][/dim]",
            metavar="FILE",
            show_default=False,
        ),
    ],
    "resume": Annotated[
        str | None,
        typer.Option(
            help="Run to go on with (folder, name, last), from its newest checkpoint; --total-timesteps is the new "
            r"total. [dim]\[default: none][/dim]",
            metavar="RUN",
            show_default=False,
        ),
    ],
    "print_config": Annotated[bool, typer.Option("--print-config", help="Show every value and its origin, and exit.")],
    "show_graph": Annotated[
        Literal["tree", "mermaid"] | None,
        typer.Option(
            help="Show workers and streams, and exit; mermaid: as a chart for documents.",
            metavar="tree|mermaid",
            show_default=False,
        ),
    ],
    "watch": Annotated[
        bool, typer.Option("--watch", help="Serve a page of the run beside it, as rlz watch does; it outlives the run.")
    ],
}
_DEFAULTS = {"algo": None, "config": None, "resume": None, "print_config": False, "show_graph": None, "watch": False}


def command(arguments: Sequence[str]) -> typer.Typer:
    """The command as it is for these arguments: its options are those of the algorithm that they name."""
    first = next(iter(arguments), "-")
    algo = first if first in BUILT_IN or is_own(first) else None
    # Typer reads a signature: ours names every option of a run, so that help, parsing and checking share one source.
    own = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=_DEFAULTS[name], annotation=annotation)
        for name, annotation in _OWN.items()
    ]
    wrapped = wraps(train)(lambda **options: train(**options))
    wrapped.__signature__ = inspect.Signature(own + run_parameters(algo))  # type: ignore[attr-defined]
    app = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)
    app.command(epilog=EPILOG, cls=type("Train", (_Train,), {"algo": algo}))(wrapped)
    return app


class _Train(Command):
    """Lets `--show-graph` stand alone: its value is then `tree`. Knows whose options it has, for errors."""

    algo: str | None = None

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        given = list(args)
        for place in [place for place, word in enumerate(given) if word == "--show-graph"][::-1]:
            if given[place + 1 : place + 2] not in (["tree"], ["mermaid"]):
                given.insert(place + 1, "tree")
        return super().parse_args(ctx, given)
