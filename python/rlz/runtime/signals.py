"""Ctrl-C and its relatives: once means stop in order, twice means stop now."""

import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

CHECKPOINT_SIGNAL = signal.SIGUSR2
"""Asks a run for a checkpoint; it goes on. Whoever has a handler of their own for it keeps that."""

SAME_S = 0.2
"""Signals within this many seconds count as one: a terminal sends SIGINT to a whole group; `uv run` passes it on."""


class StopSignals:
    """Counts stop signals while it is entered (main thread only).

    A thread counts, because Python's own handlers wait until the main thread is back from native code. A signal makes
    `fd` readable, so a loop that polls it wakes at once. SIGHUP stays ignored where it was (nohup).

    Parameters
    ----------
    at_once : called at the second signal, in the thread that counts. It may end the process; `left` tells it whether
        the main thread has got out by itself.

    Attributes
    ----------
    count, first : stop signals so far, and the first of them.
    asked : checkpoints that were asked for so far.
    left : set when the main thread leaves the `with` block.
    """

    def __init__(self, at_once: Callable[[], None] | None = None) -> None:
        self._at_once = at_once
        self.count = self.asked = 0
        self.first: signal.Signals | None = None
        self.left = threading.Event()
        self._old: dict[signal.Signals, Any] = {}
        self._old_wakeup = -1
        self._arrivals, self._kernel = -1, -1
        self._reader, self._writer = -1, -1
        self._thread = threading.Thread(target=self._work, name="rlz-signals", daemon=True)

    @property
    def fd(self) -> int:
        """Descriptor that becomes readable when a signal has been counted."""
        return self._reader

    @property
    def exit_status(self) -> int:
        """128 + the number of the first signal; 0 when there was none."""
        return 0 if self.first is None else 128 + int(self.first)

    @property
    def announcement(self) -> str:
        """What the first signal does, for people."""
        name = "asked to stop" if self.first is None else self.first.name
        return f"{name}: writing a checkpoint and stopping; once more stops at once"

    def __enter__(self) -> Self:
        self._arrivals, self._kernel = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._kernel, False)
        self._reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._thread.start()
        for number in (*STOP_SIGNALS, CHECKPOINT_SIGNAL):
            if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                continue
            if number == CHECKPOINT_SIGNAL and signal.getsignal(number) != signal.SIG_DFL:
                continue
            self._old[number] = signal.signal(number, _leave_it_to_the_thread)
        self._old_wakeup = signal.set_wakeup_fd(self._kernel, warn_on_full_buffer=False)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.left.set()
        signal.set_wakeup_fd(self._old_wakeup)
        for number, handler in self._old.items():
            signal.signal(number, handler)
        self._old.clear()
        os.write(self._kernel, b"\0")  # not its end by closing: a child that was forked may hold it open
        self._thread.join()
        for fd in (self._arrivals, self._kernel, self._reader, self._writer):
            os.close(fd)

    def stop(self) -> None:
        """Stop as after a first signal, without one."""
        if self.count == 0:
            self.count = 1
            os.write(self._writer, b"!")

    def drain(self) -> None:
        """Empty `fd`."""
        try:
            while os.read(self._reader, 512):
                pass
        except BlockingIOError:
            pass

    def _work(self) -> None:
        last = -SAME_S
        while True:
            arrived = os.read(self._arrivals, 512)
            if self.left.is_set():
                return
            # Other signals that Python handles are written there too.
            if CHECKPOINT_SIGNAL in arrived:
                self.asked += 1
                os.write(self._writer, b"!")
            numbers = [number for number in arrived if number in self._old and number != CHECKPOINT_SIGNAL]
            now = time.monotonic()
            if not numbers or (self.count and now - last < SAME_S):
                continue
            last = now
            if self.first is None:
                self.first = signal.Signals(numbers[0])
            self.count += 1
            os.write(self._writer, b"!")
            if self.count == 2 and self._at_once is not None:
                self._at_once()


def _leave_it_to_the_thread(number: int, frame: FrameType | None) -> None:
    """Handler of the stop signals: the kernel's part of it has written to the descriptor already."""
