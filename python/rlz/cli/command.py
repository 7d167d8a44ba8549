"""Subcommands whose help shows an option that is on or off as `--[no-]name`, in one column and without a type."""

from typing import Any

from typer.core import TyperCommand, TyperGroup


class _PlainFlags:
    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Show the help; the process does nothing else afterwards, so its options may change."""
        for param in self.get_params(ctx):  # type: ignore[attr-defined]
            if getattr(param, "is_flag", False):
                param.metavar = ""
                if param.secondary_opts:
                    param.opts, param.secondary_opts = [f"--[no-]{param.opts[0].removeprefix('--')}"], []
        super().format_help(ctx, formatter)  # type: ignore[misc]


class Command(_PlainFlags, TyperCommand):
    """A subcommand."""


class Group(_PlainFlags, TyperGroup):
    """A command with subcommands."""
