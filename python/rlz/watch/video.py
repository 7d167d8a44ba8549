"""The stream of pictures that the page shows: a viewer process for each run that is watched, while it is."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from rlz.watch.viewer import HEADER

BOUNDARY = "frame"
MEDIA_TYPE = f"multipart/x-mixed-replace; boundary={BOUNDARY}"


class Viewer:
    """The pictures of one run, for all who watch it.

    Attributes
    ----------
    playing : what is shown, in words.
    problem : why nothing can be.
    """

    def __init__(self, run: Path, ending: Callable[[], bool]) -> None:
        self._run = run
        self._ending = ending
        self._news = asyncio.Condition()
        self._frame = b""
        self._count = self._watching = 0
        self._reading: asyncio.Task[None] | None = None
        self.playing = self.problem = ""

    async def frames(self) -> AsyncIterator[bytes]:
        """The newest picture, again and again, as a JPEG; ends when there will be none."""
        self._watching += 1
        if self._reading is None or self._reading.done():
            self._frame, self.playing, self.problem = b"", "", ""
            self._reading = asyncio.create_task(self._read())
        reading, seen = self._reading, self._count
        try:
            while not self._ending() and not reading.done():
                async with self._news:
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._news.wait(), 1.0)
                if self._count != seen:
                    seen = self._count
                    yield self._frame
        finally:
            self._watching -= 1
            if not self._watching:
                reading.cancel()

    async def _read(self) -> None:
        """Start the process, and take what it gives until it ends or nobody watches."""
        command = (sys.executable, "-P", "-m", "rlz.watch.viewer", str(self._run))
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
        assert process.stdout is not None
        try:
            while True:
                kind, size = HEADER.unpack(await process.stdout.readexactly(HEADER.size))
                data = await process.stdout.readexactly(size)
                if kind == b"F":
                    self._frame = data
                    self._count += 1
                elif kind == b"T":
                    self.playing = data.decode()
                else:
                    self.problem = data.decode()
                async with self._news:
                    self._news.notify_all()
        except asyncio.IncompleteReadError:
            self.problem = self.problem or "the viewer has ended: its environment may have crashed"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with all that the environment has started
            await process.wait()


async def multipart(frames: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Pictures as browsers show them in one place (`MEDIA_TYPE`)."""
    async with contextlib.aclosing(frames):  # type: ignore[type-var]
        async for frame in frames:
            yield f"--{BOUNDARY}\r\nContent-Type: image/jpeg\r\nContent-Length: {len(frame)}\r\n\r\n".encode()
            yield frame + b"\r\n"
