"""Start of every worker process: `python -m rlz.workers CLASS --spec-fd N --parent PID`.

The process is tied to its parent before it imports anything heavy: torch takes seconds, and a controller that is killed
meanwhile must leave nothing behind. `bind_to_parent` of the native module follows and covers the whole process group.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Tie the process to its parent, then run the worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    path, _, spec_fd, _, parent = sys.argv[1:]
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):
        os._exit(1)  # it died before we asked to be told

    from rlz.workers.base import run_worker

    run_worker(path, int(spec_fd))


if __name__ == "__main__":
    main()
