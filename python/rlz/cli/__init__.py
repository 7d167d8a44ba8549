"""The `rlz` command: one file per subcommand, no logic, nothing heavy imported before it is needed."""

from rlz.cli.app import entry, main

__all__ = ["entry", "main"]
