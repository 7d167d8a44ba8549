"""The process that plays (`viewer`), as the server holds it."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Self

from rlz.watch.viewer import GO, HEADER, PAUSE


class Player:
    """A viewer's process, for the length of an `async with` block.

    Parameters
    ----------
    run : run folder.
    file : to record to; None: it plays.
    """

    def __init__(self, run: Path, file: Path | None = None) -> None:
        self._command = (
            sys.executable,
            "-P",
            "-m",
            "rlz.watch.viewer",
            str(run),
            *([] if file is None else [str(file)]),
        )

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        self.end()
        await self._process.wait()

    async def messages(self) -> AsyncIterator[tuple[bytes, bytes]]:
        """What it sends, until it ends: see `viewer`."""
        assert self._process.stdout is not None
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                kind, size = HEADER.unpack(await self._process.stdout.readexactly(HEADER.size))
                yield kind, await self._process.stdout.readexactly(size)

    def pause(self) -> None:
        """Have it wait where it is."""
        self._tell(PAUSE)

    def go_on(self) -> None:
        """Let it go on."""
        self._tell(GO)

    def end(self) -> None:
        """End it, with all that the environment has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _tell(self, word: bytes) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(ConnectionError):
            self._process.stdin.write(word)
