"""The page of `rlz watch` and what it asks for."""

import asyncio
import contextlib
import json
import os
import signal
import tempfile
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from rlz.errors import ConfigError, TransportError
from rlz.records.runs import is_running, list_runs
from rlz.runtime.live import Live
from rlz.runtime.signals import CHECKPOINT_SIGNAL
from rlz.watch.access import Guard, Tokens
from rlz.watch.settings import read_plan, read_settings
from rlz.watch.source import Cursor, Source
from rlz.watch.video import MEDIA_TYPE, Recording, Viewer, multipart

PAGE = Path(__file__).parent / "page"
PERIOD_S = 1.0
"""Seconds between two messages to a page."""

MOST_RUNS = 8
"""Runs that are kept open at once; the one that was asked for longest ago goes first."""


class Server:
    """What the page asks for, of all runs in one folder.

    Parameters
    ----------
    run : shown first; the others are those beside it.
    tokens : see `access`.
    """

    def __init__(self, run: Path, tokens: Tokens) -> None:
        self._run = run
        self._tokens = tokens
        self._lock = threading.Lock()
        self._sources: dict[str, Source] = {}
        self._viewers: dict[str, Viewer] = {}
        self._recordings: dict[str, Recording] = {}
        self._files = tempfile.TemporaryDirectory(prefix="rlz-watch-")
        self.looking = 0
        """Pages that are open now."""
        self.ending: Callable[[], bool] = lambda: False
        """Whether streams are to end, because the server does."""

    def app(self) -> Starlette:
        """The server as an ASGI application."""
        return Starlette(
            routes=[
                Route("/", self._page),
                Route("/api/runs", self._runs),
                Route("/api/run", self._about),
                Route("/api/stream", self._stream),
                Route("/api/history", self._history),
                Route("/api/recording", self._recording),
                Route("/api/evaluation.mp4", self._recorded),
                Route("/api/video", self._video),
                Route("/api/video/now", self._playing),
                Route("/api/stop", self._stop, methods=["POST"]),
                Route("/api/checkpoint", self._checkpoint, methods=["POST"]),
                Mount("/assets", StaticFiles(directory=PAGE)),
            ],
            middleware=[Middleware(Guard, tokens=self._tokens)],
        )

    def close(self) -> None:
        """Let go of every run."""
        with self._lock:
            for source in self._sources.values():
                source.close()
            self._sources.clear()
        self._files.cleanup()

    def alive(self) -> bool:
        """Whether the run that is shown first lives."""
        return is_running(self._run)

    def _folder(self, request: Request) -> Path:
        """The run that a request names: a folder of a run beside the first one, by its bare name."""
        name = request.query_params.get("run") or self._run.name
        if name == self._run.name:
            return self._run
        # Compared with what there is, never joined to a path.
        known = {child.name: child for child in self._run.parent.iterdir() if (child / "config.toml").is_file()}
        if name not in known:
            raise HTTPException(404, "there is no such run")
        return known[name]

    def _source(self, request: Request) -> Source:
        folder = self._folder(request)
        with self._lock:
            source = self._sources.pop(folder.name, None)
            if source is None:
                try:
                    source = Source(folder)
                except (OSError, ConfigError) as error:
                    raise HTTPException(422, f"the run cannot be read: {type(error).__name__}") from error
            self._sources[folder.name] = source
            while len(self._sources) > MOST_RUNS:
                self._sources.pop(next(iter(self._sources))).close()
        return source

    async def _page(self, _: Request) -> Response:
        return FileResponse(PAGE / "index.html")

    def _runs(self, _: Request) -> Response:
        runs = [asdict(run) | {"path": ""} for run in list_runs(self._run.parent)]
        return JSONResponse({"shown": self._run.name, "runs": runs})

    def _about(self, request: Request) -> Response:
        source = self._source(request)
        plan = read_plan(source.run)
        return JSONResponse(
            {
                "name": source.run.name,
                "title": source.title,
                "settings": [setting._asdict() for setting in read_settings(source.run, source.config)],
                "plan": {name: plan.get(name) for name in ("basis", "machine", "facts", "prediction")},
            }
        )

    def _history(self, request: Request) -> Response:
        source = self._source(request)
        view = source.look()
        return JSONResponse({"view": view.to_json(), **source.news(Cursor())[1]})

    async def _stream(self, request: Request) -> Response:
        source = await asyncio.to_thread(self._source, request)
        return StreamingResponse(self._messages(request, source), media_type="text/event-stream")

    async def _messages(self, request: Request, source: Source) -> AsyncIterator[str]:
        cursor = Cursor()
        self.looking += 1
        try:
            while not self.ending() and not await request.is_disconnected():
                cursor, text = await asyncio.to_thread(_message, source, cursor)
                yield f"data: {text}\n\n"
                await asyncio.sleep(PERIOD_S)
        finally:
            self.looking -= 1

    def _viewer(self, request: Request) -> Viewer:
        folder = self._folder(request)
        return self._viewers.setdefault(folder.name, Viewer(folder, lambda: self.ending()))

    async def _video(self, request: Request) -> Response:
        return StreamingResponse(multipart(self._viewer(request).frames()), media_type=MEDIA_TYPE)

    async def _playing(self, request: Request) -> Response:
        viewer = self._viewer(request)
        return JSONResponse({"playing": viewer.playing, "problem": viewer.problem})

    def _recording_of(self, request: Request) -> Recording:
        folder = self._folder(request)
        file = Path(self._files.name) / f"{len(self._recordings)}.mp4"
        return self._recordings.setdefault(folder.name, Recording(folder, file))

    async def _recording(self, request: Request) -> Response:
        recording = self._recording_of(request)
        if "begin" in request.query_params:
            recording.begin()
        return JSONResponse(recording.look())

    async def _recorded(self, request: Request) -> Response:
        recording = self._recording_of(request)
        if not recording.file.exists():
            raise HTTPException(404, "nothing has been recorded")
        name = f"{self._folder(request).name}.mp4"
        return FileResponse(recording.file, media_type="video/mp4", filename=name)

    def _stop(self, request: Request) -> Response:
        return self._signal(request, signal.SIGINT, "a checkpoint is written, then the run ends")

    def _checkpoint(self, request: Request) -> Response:
        return self._signal(request, CHECKPOINT_SIGNAL, "a checkpoint is written; the run goes on")

    def _signal(self, request: Request, number: signal.Signals, said: str) -> Response:
        try:
            # Asked anew: it is the run's own process that answers at this moment.
            with Live(self._folder(request)) as live, contextlib.ExitStack() as stack:
                process = os.pidfd_open(live.pid)
                stack.callback(os.close, process)
                signal.pidfd_send_signal(process, number)
        except (TransportError, OSError) as error:
            raise HTTPException(409, f"the run does not live, or does not answer: {error}") from error
        return JSONResponse({"said": said})


def _message(source: Source, cursor: Cursor) -> tuple[Cursor, str]:
    view: dict[str, Any] = source.look().to_json()
    cursor, news = source.news(cursor)
    return cursor, json.dumps({"view": view, **news}, separators=(",", ":"))
