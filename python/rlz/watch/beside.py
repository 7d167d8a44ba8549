"""`rlz train --watch`: a server in a session of its own beside a run. Imports nothing that the run would pay for."""

import os
import select
import subprocess
import sys
import time
from pathlib import Path

START_S = 20.0
LINES = 3
"""What a server prints at its start."""


def start_beside(run: Path) -> None:
    """Start a server for a run and print what it says; the run goes on where there is none.

    The server outlives the run, and ends by itself some time later when nobody looks. The lines stay out of the
    run's events: those are shown by the page, and one of the tokens is not for everybody who may look.
    """
    command = [sys.executable, "-P", "-m", "rlz", "watch", str(run), "--leave"]
    log = run / "logs" / "watch.txt"
    with log.open("ab") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=output, start_new_session=True
        )
    assert process.stdout is not None
    text, until = b"", time.monotonic() + START_S
    while text.count(b"\n") < LINES and (left := until - time.monotonic()) > 0:
        if select.select([process.stdout], [], [], left)[0]:
            new = os.read(process.stdout.fileno(), 4096)
            if not new:
                break
            text += new
    process.stdout.close()
    if text.count(b"\n") < LINES:
        process.kill()
        process.wait()
        print(f"the page of --watch did not start, see {log}; the run goes on without it", flush=True)
        return
    process.returncode = 0  # nobody will wait for it, and that is meant so: no warning
    print(text.decode(errors="replace"), end="", flush=True)
    print(f"the page outlives the run; to end it: kill {process.pid}", flush=True)
