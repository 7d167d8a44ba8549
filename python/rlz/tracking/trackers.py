"""Experiment trackers with W&B's API, as sinks: wandb and trackio. Imported when a run asks for one."""

import contextlib
import importlib
import threading
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rlz.tracking.sinks import Evaluation, Sink


def missing(tracker: str) -> str:
    """What to say where the package of a tracker is not installed."""
    extra = {"wandb": "track"}.get(tracker, tracker)
    return f"{tracker} is not installed, so this run is not tracked there. To install it: uv sync --extra {extra}"


class TrackerSink:
    """A run there. Run it inside `InThread`: its start and its calls may take long, and may fail.

    Parameters
    ----------
    run_dir : run folder; its name is the run's there.
    config : of the run; `tracker` names the package.
    """

    def __init__(self, run_dir: Path, config: Any) -> None:
        package = importlib.import_module(config.tracker)
        given: dict[str, Any] = {
            "project": config.wandb_project_name,
            "name": run_dir.name,
            "config": config.model_dump(),
            "resume": "allow",
        }
        self._wandb = config.tracker == "wandb"
        if self._wandb:
            identity = run_dir / "wandb-id"  # so that a resumed run goes on in the same run there
            if not identity.exists():
                identity.write_text(uuid.uuid4().hex)
            given |= {"dir": str(run_dir), "id": identity.read_text()}
        self._run = package.init(**given)
        if self._wandb:
            self._run.define_metric("env_steps")
            self._run.define_metric("*", step_metric="env_steps")

    def log(self, step: int, wall_s: float, updates: int, scalars: Mapping[str, float]) -> None:
        """Send a log line; x is `env_steps`."""
        self._send(step, {**scalars, "time/wall_s": wall_s, "train/updates": updates})

    def evaluation(self, evaluation: Evaluation) -> None:
        """Send an evaluation at its own env steps."""
        self._send(evaluation.env_steps, evaluation.scalars())

    def note(self, text: str) -> None:
        """Events stay in the run folder."""

    def close(self) -> None:
        """Finish the run there."""
        self._run.finish()

    def _send(self, step: int, scalars: Mapping[str, float]) -> None:
        # W&B's own steps may only grow, and evaluations come late; trackio has no other axis.
        self._run.log({**scalars, "env_steps": step}, **({} if self._wandb else {"step": step}))


class InThread:
    """Runs a sink in a daemon thread behind a bounded queue: the caller never waits, the oldest record is dropped."""

    def __init__(self, make: Callable[[], Sink], *, capacity: int = 256) -> None:
        self._make = make
        self._queue: deque[tuple[str, tuple[Any, ...]]] = deque(maxlen=capacity)
        self._wake = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._work, name="rlz-sink", daemon=True)
        self._thread.start()

    def log(self, step: int, wall_s: float, updates: int, scalars: Mapping[str, float]) -> None:
        """Queue a log line."""
        self._put("log", step, wall_s, updates, dict(scalars))

    def evaluation(self, evaluation: Evaluation) -> None:
        """Queue an evaluation."""
        self._put("evaluation", evaluation)

    def note(self, text: str) -> None:
        """Queue an event."""
        self._put("note", text)

    def close(self, timeout: float = 15.0) -> None:
        """Let the thread empty its queue and close the sink; give up after `timeout` seconds."""
        with contextlib.suppress(Exception):
            self._put("close")
        self._thread.join(timeout)

    def _put(self, method: str, *arguments: Any) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        self._queue.append((method, arguments))
        self._wake.set()

    def _work(self) -> None:
        try:
            sink = self._make()
            while True:
                self._wake.wait()
                self._wake.clear()
                while self._queue:
                    method, arguments = self._queue.popleft()
                    getattr(sink, method)(*arguments)
                    if method == "close":
                        return
        except Exception as error:
            self._error = error
