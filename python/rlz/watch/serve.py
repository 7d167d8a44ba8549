"""`rlz watch`: the server's process."""

import os
import signal
import socket
import threading
import time
import webbrowser
from contextlib import closing, suppress
from pathlib import Path

import uvicorn

from rlz.errors import RlzError
from rlz.system.priority import give_way
from rlz.watch.access import Tokens
from rlz.watch.server import Server

HOST = "127.0.0.1"
MOST_CONNECTIONS = 64
LOOK_S = 5.0
PATIENCE_S = 600.0
"""A server that was started beside a run (`--watch`) ends so long after the run when nobody looks."""


def watch(run: Path, *, port: int = 0, open_page: bool = False, leave: bool = False) -> None:
    """Serve the page of a run until Ctrl-C.

    Parameters
    ----------
    run : run folder.
    port : on 127.0.0.1; 0: a free one.
    open_page : in the browser of this machine.
    leave : end `PATIENCE_S` after the run when nobody looks.

    Raises
    ------
    RlzError
        The port is taken.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((HOST, port))
        except OSError as error:
            raise RlzError(f"--port {port} on {HOST}: {error.strerror}. Leave it out for a free one") from error
        listening.listen()  # before the address is printed: whoever is quick waits, and is not refused
        port = listening.getsockname()[1]
        tokens = Tokens()
        with closing(Server(run, tokens)) as server:
            give_way()
            for line in announcement(run, port, tokens):
                print(line, flush=True)
            settings = uvicorn.Config(
                server.app(),
                log_level="warning",
                access_log=False,
                lifespan="off",
                server_header=False,
                limit_concurrency=MOST_CONNECTIONS,
                timeout_graceful_shutdown=3,
                ws="none",
            )
            running = uvicorn.Server(settings)
            server.ending = lambda: running.should_exit
            if open_page:
                threading.Timer(0.5, webbrowser.open, [address(port, tokens)]).start()
            if leave:
                threading.Thread(target=_leave, args=(server, running), daemon=True).start()
            signal.signal(signal.SIGTERM, signal.default_int_handler)  # uvicorn raises it again: clean up first
            with suppress(KeyboardInterrupt):
                running.run(sockets=[listening])


def address(port: int, tokens: Tokens) -> str:
    """The page's address, with the token for looking."""
    return f"http://{HOST}:{port}/?token={tokens.look}"


def announcement(run: Path, port: int, tokens: Tokens) -> list[str]:
    """What is printed at the start."""
    user, host = os.environ.get("USER") or os.environ.get("LOGNAME") or "USER", socket.gethostname()
    return [
        f"{run.name}: {address(port, tokens)}",
        f"from another machine: ssh -N -L {port}:{HOST}:{port} {user}@{host}   (then open the same address there)",
        f"to stop the run from the page, or have it write a checkpoint: {tokens.control}",
    ]


def _leave(server: Server, running: uvicorn.Server) -> None:
    since = time.monotonic()
    while not running.should_exit:
        time.sleep(LOOK_S)
        if server.looking or server.alive():
            since = time.monotonic()
        running.should_exit = time.monotonic() - since >= PATIENCE_S
