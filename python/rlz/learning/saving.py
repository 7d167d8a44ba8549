"""Checkpoints written in a thread, so that updates go on."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Background:
    """Runs one job at a time in a thread; an error is raised at the next call."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    @property
    def busy(self) -> bool:
        """A job is running."""
        return self._thread is not None and self._thread.is_alive()

    def run(self, job: Callable[[], None]) -> None:
        """Start a job, after the one before it has ended."""
        self.wait()
        self._thread = threading.Thread(target=self._guard, args=(job,), name=self._name)
        self._thread.start()

    def check(self) -> None:
        """Raise the error of a job that has ended, if any."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def wait(self) -> None:
        """Wait for the job; raises its error."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.check()

    def _guard(self, job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as error:
            self._error = error
