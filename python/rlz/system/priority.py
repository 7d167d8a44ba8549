"""Giving way to everything else on the machine."""

import os
from contextlib import suppress
from pathlib import Path

NICE = 10
"""A tenth of a core where everything else wants it too. At 19 a start would take minutes on a busy machine."""


def give_way() -> None:
    """Lower the priority of this process.

    Linux shares the cores between sessions first (sched(7), autogroup) and looks at `nice` within one alone: a process
    at the head of a session of its own lowers the session's share as well.
    """
    os.nice(NICE)
    if os.getsid(0) == os.getpid():
        with suppress(OSError):  # a kernel without it, or a container that may not
            Path("/proc/self/autogroup").write_text(f"{NICE}\n")
