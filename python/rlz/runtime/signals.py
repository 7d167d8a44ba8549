"""Ctrl-C and its relatives: once means stop in order, twice means stop now."""

import os
import signal
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

SAME_S = 0.2
"""Signals within this many seconds count as one: a terminal sends SIGINT to a whole group; `uv run` passes it on."""


class StopSignals:
    """Counts stop signals while it is entered (main thread only).

    A signal makes `fd` readable, so a loop that polls it wakes at once. SIGHUP stays ignored where it was (nohup).

    Parameters
    ----------
    at_once : called from the handler at the second signal, for a process whose main thread does not poll.
    """

    def __init__(self, at_once: Callable[[], None] | None = None) -> None:
        self._at_once = at_once
        self.count = 0
        self.first: signal.Signals | None = None
        self._last = -SAME_S
        self._old: dict[signal.Signals, Any] = {}
        self._reader, self._writer = -1, -1
        self._old_wakeup = -1

    @property
    def fd(self) -> int:
        """Descriptor that becomes readable at a signal."""
        return self._reader

    @property
    def exit_status(self) -> int:
        """128 + the number of the first signal; 0 when there was none."""
        return 0 if self.first is None else 128 + int(self.first)

    def __enter__(self) -> Self:
        self._reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        for number in STOP_SIGNALS:
            if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                continue
            self._old[number] = signal.signal(number, self._receive)
        self._old_wakeup = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.set_wakeup_fd(self._old_wakeup)
        for number, handler in self._old.items():
            signal.signal(number, handler)
        self._old.clear()
        os.close(self._reader)
        os.close(self._writer)

    def drain(self) -> None:
        """Empty `fd`."""
        try:
            while os.read(self._reader, 512):
                pass
        except BlockingIOError:
            pass

    def _receive(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.count and now - self._last < SAME_S:
            return
        self._last = now
        self.count += 1
        if self.first is None:
            self.first = signal.Signals(number)
        if self.count == 2 and self._at_once is not None:
            self._at_once()
