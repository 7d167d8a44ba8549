"""The command group: loads a subcommand when it is called, and turns every error into a message and an exit status.

Exit statuses: 0 done, 1 an `RlzError`, 2 a command line that cannot be used, 130 interrupted; `train` has its own.
"""

import errno
import io
import os
import sys
import sysconfig
import traceback
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand
from typer.exceptions import TyperException

from rlz.algorithms.default import DEFAULT
from rlz.cli.command import Group
from rlz.errors import RlzError, UsageError, check_platform

# One line each here, so that `rlz --help` imports no subcommand.
COMMANDS = {
    "train": "Train an agent; the main job.",
    "eval": "Play episodes with the policy of a run; make a video.",
    "watch": "Show a run in the browser: curves, where the time goes, video.",
    "top": "Show a run in the terminal.",
    "trace": "Write the time line of a live run's workers.",
    "runs": "List runs; explain one, also while it hangs.",
    "plot": "Draw learning curves of runs and of groups of seeds.",
    "study": "Make many runs: seeds, settings, a search.",
    "bench": "Measure training, replay and sampling, beside other libraries.",
    "profile": "Show the hardware, and what sampling, replay and updates reach on it.",
}

EPILOG = f"""[bold]Examples[/bold]

  rlz train {DEFAULT} --env Ant-v4
  rlz train {DEFAULT} --env Pendulum-v1 -n 20000 --seed 2
  rlz runs
  rlz eval runs/NAME --episodes 10
  rlz train --help"""


class _Commands(Group):
    """Shows `COMMANDS` in the help, and imports a subcommand's module once it is the one to run."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = {name: TyperCommand(name, help=text) for name, text in COMMANDS.items()}

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        if name in COMMANDS:
            module = import_module(f"rlz.cli.{name}")
            command = typer.main.get_command(module.command(rest) if hasattr(module, "command") else module.app)
            command.name = name
        return name, command, rest


app = typer.Typer(
    cls=_Commands, no_args_is_help=True, rich_markup_mode="rich", pretty_exceptions_enable=False, epilog=EPILOG
)


def _show_version(wanted: bool) -> None:
    if wanted:
        import rlz

        print(f"rlz {rlz.__version__}")
        raise typer.Exit


@app.callback(help="Train deep-RL agents as fast as the machine allows.")
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show it and exit.")
    ] = False,
) -> None:
    del version


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line (default: that of the process) and return its exit status.

    No error shows a traceback, unless RLZ_TRACEBACK=1 is set.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without Unicode shows "?" for what it does not have
    try:
        if sys.platform != "linux":
            check_platform()
        status = typer.main.get_command(app).main(
            args=None if argv is None else list(argv), prog_name="rlz", standalone_mode=False
        )
        return status if isinstance(status, int) else 0
    except BrokenPipeError:
        # The reader (head, less) has gone: no error, and nothing more to say when the interpreter flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if os.environ.get("RLZ_TRACEBACK") == "1":
            raise
        return _report(error)


def entry() -> NoReturn:
    """Run this process as the `rlz` command."""
    status = main()
    if status > 128:
        from rlz.runtime.at_once import exit_process

        # Stopped by a signal, and all is closed: a second one must not meet the interpreter in its teardown.
        exit_process(status)
    sys.exit(status)


def _report(error: Exception) -> int:
    if isinstance(error, typer.Abort):
        return 130
    if isinstance(error, RlzError):
        _say(str(error))
        return 2 if isinstance(error, UsageError) else 1
    if isinstance(error, ImportError) and error.name == "rlz._native":
        try:
            check_platform()
        except RlzError as reason:
            return _report(reason)
    if isinstance(error, TyperException):
        if type(error).__name__ != "NoArgsIsHelpError":  # its message was the help
            from rlz.cli.hints import explain

            _say(explain(error))
        return error.exit_code
    if isinstance(error, OSError) and error.errno is not None:
        _say(f"{error.filename}: {error.strerror}" if error.filename is not None else _refused(error))
        return 1
    if isinstance(error, MemoryError):
        _say(f"There is not enough memory{f': {error}' if str(error) else ''}.")
        return 1
    what, guest = f"{type(error).__name__}: {error}", _guest(error)
    where = "This is a bug in rlz." if guest is None else f"It arose in {guest}, which is not rlz's."
    _say(f"{what}\n{where} Set RLZ_TRACEBACK=1 to see the way there.")
    return 1


def _refused(error: OSError) -> str:
    """What the system refused, without a file's name, and what helps."""
    fixes = {
        errno.ENOENT: "The current folder does not exist any more: change to another one.",
        errno.EMFILE: "Too many files are open: raise the limit (ulimit -n), or use fewer --samplers.",
        errno.EAGAIN: "No process or thread can be added: raise the limit (ulimit -u), or use fewer --samplers.",
        errno.ENOMEM: "There is not enough memory: use fewer --samplers or a smaller --buffer-size.",
    }
    return fixes.get(error.errno or 0, f"{error.strerror}.")


def _guest(error: BaseException) -> str | None:
    """Where code of the user (not of rlz, Python or an installed package) raised an error; None: nowhere."""
    ours = (os.path.dirname(os.path.dirname(__file__)), *sysconfig.get_paths().values(), "<")  # noqa: PTH120
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith(ours):
            return f"{frame.filename}, line {frame.lineno}"
        if frame.filename.startswith(ours[0]):
            return None
    return None


def _say(text: str) -> None:
    typer.secho("error: ", fg=typer.colors.RED, bold=True, nl=False, err=True)
    typer.echo(text, err=True)
