"""What the page shows and offers of episodes: a stream of pictures while somebody watches, and a recording."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from rlz.watch.player import Player

BOUNDARY = "frame"
MEDIA_TYPE = f"multipart/x-mixed-replace; boundary={BOUNDARY}"

LINGER_S = 20.0
"""A viewer that nobody watches is held so long before it ends: its start takes seconds of a core."""

ASKED_S = 90.0
"""A recording that nobody has asked for so long is given up; a page in the background may ask but once a minute."""

CRASHED = "the viewer has ended: its environment may have crashed"


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
        self._player: Player | None = None
        self._reading: asyncio.Task[None] | None = None
        self._lingering: asyncio.TimerHandle | None = None
        self.playing = self.problem = ""

    async def frames(self) -> AsyncIterator[bytes]:
        """The newest picture, again and again, as a JPEG; ends when there will be none."""
        self._watching += 1
        if self._lingering is not None:
            self._lingering.cancel()
        if self._reading is None or self._reading.done():
            self._frame, self.playing, self.problem = b"", "", ""
            self._reading = asyncio.create_task(self._read())
        elif self._player is not None:
            self._player.go_on()
        reading, seen = self._reading, 0
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
                if self._player is None or self._ending():
                    reading.cancel()
                else:
                    self._player.pause()
                    self._lingering = asyncio.get_running_loop().call_later(LINGER_S, reading.cancel)

    async def _read(self) -> None:
        """Start the process, and take what it gives until it ends."""
        async with Player(self._run) as self._player:
            try:
                async for kind, data in self._player.messages():
                    if kind == b"F":
                        self._frame = data
                        self._count += 1
                    elif kind == b"T":
                        self.playing = data.decode()
                    else:
                        self.problem = data.decode()
                    async with self._news:
                        self._news.notify_all()
                self.problem = self.problem or CRASHED
            finally:
                self._player = None


class Recording:
    """The video of a run's last evaluation, made while somebody asks for it.

    Parameters
    ----------
    run : run folder.
    file : where to write it.
    """

    def __init__(self, run: Path, file: Path) -> None:
        self._run = run
        self.file = file
        self._recording: asyncio.Task[None] | None = None
        self._asked = 0.0
        self._said = self._problem = ""

    def begin(self) -> None:
        """Record anew, unless it is being done."""
        if self._recording is None or self._recording.done():
            self._said = self._problem = ""
            self.file.unlink(missing_ok=True)
            self._recording = asyncio.create_task(self._record())

    def look(self) -> dict[str, str | bool]:
        """How far it is, in words; why it cannot be; whether the file is whole."""
        self._asked = time.monotonic()
        return {"said": self._said, "problem": self._problem, "ready": self.file.exists()}

    async def _record(self) -> None:
        self._asked = time.monotonic()
        part = self.file.with_name(f"part-{self.file.name}")
        async with Player(self._run, part) as player:
            asking = asyncio.create_task(self._while_asked(player))
            try:
                async for kind, data in player.messages():
                    if kind == b"D":
                        part.replace(self.file)
                    elif kind == b"T":
                        self._said = data.decode()
                    else:
                        self._problem = data.decode()
            finally:
                asking.cancel()
                part.unlink(missing_ok=True)
        if not self.file.exists():
            self._problem = self._problem or CRASHED

    async def _while_asked(self, player: Player) -> None:
        while time.monotonic() - self._asked < ASKED_S:
            await asyncio.sleep(ASKED_S / 20)
        self._problem = "given up: the page has gone"
        player.end()


async def multipart(frames: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Pictures as browsers show them in one place (`MEDIA_TYPE`)."""
    async with contextlib.aclosing(frames):  # type: ignore[type-var]
        async for frame in frames:
            yield f"--{BOUNDARY}\r\nContent-Type: image/jpeg\r\nContent-Length: {len(frame)}\r\n\r\n".encode()
            yield frame + b"\r\n"
