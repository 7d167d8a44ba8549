"""For all tests: signals work in child processes, no test changes the arithmetic of the next ones, and runs are not
planned with profiles that this user has measured."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest_plugins = ["support.quick"]

# Children inherit what is ignored: SIGINT in the background jobs of a shell, SIGHUP under nohup.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Processes that tests start find `support` as well.
os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
os.environ["RLZ_PROFILES"] = "/nonexistent/rlz-profiles"


@pytest.fixture(autouse=True)
def _denormals() -> Iterator[None]:
    """Take back what a learner in this process, which is meant for a process of its own, sets for good."""
    yield
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_flush_denormal(False)
