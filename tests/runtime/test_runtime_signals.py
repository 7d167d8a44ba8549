import os
import select
import signal
import subprocess
import sys
import threading
import time

import pytest

from rlz.runtime.signals import SAME_S, StopSignals


def send(number: int) -> None:
    os.kill(os.getpid(), number)


def counted(signals: StopSignals, within: float = 10.0) -> int:
    """How many have been counted, once there is news."""
    if select.select([signals.fd], [], [], within)[0]:
        signals.drain()
    return signals.count


def test_a_signal_counts_once_within_its_window_and_wakes_a_poll() -> None:
    before = signal.getsignal(signal.SIGINT)
    with StopSignals() as signals:
        assert signals.exit_status == 0
        send(signal.SIGINT)
        send(signal.SIGINT)
        assert counted(signals) == 1
        assert not select.select([signals.fd], [], [], SAME_S + 0.05)[0]
        assert signals.announcement.startswith("SIGINT: writing a checkpoint and stopping")
        send(signal.SIGTERM)
        assert counted(signals) == 2
        assert signals.exit_status == 130
    assert signal.getsignal(signal.SIGINT) is before


def test_the_second_signal_calls_back_while_the_main_thread_is_busy() -> None:
    called = []
    with StopSignals(lambda: called.append(threading.current_thread().name)) as signals:
        send(signal.SIGTERM)
        assert counted(signals) == 1
        assert signals.exit_status == 143
        assert not called
        time.sleep(SAME_S + 0.05)
        send(signal.SIGTERM)
        assert counted(signals) == 2
        assert not signals.left.is_set()
    assert called == ["rlz-signals"]
    assert signals.left.is_set()


def test_other_signals_do_not_count() -> None:
    old = signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        with StopSignals() as signals:
            send(signal.SIGUSR1)
            assert counted(signals, within=0.2) == 0
            send(signal.SIGINT)
            assert counted(signals) == 1
    finally:
        signal.signal(signal.SIGUSR1, old)


def test_a_checkpoint_is_asked_for_without_a_stop() -> None:
    with StopSignals() as signals:
        send(signal.SIGUSR2)
        assert counted(signals) == 0
        assert signals.asked == 1
        send(signal.SIGINT)
        assert counted(signals) == 1
        assert signals.asked == 1
    assert signal.getsignal(signal.SIGUSR2) == signal.SIG_DFL


def test_a_handler_that_is_there_is_kept() -> None:
    called = []
    old = signal.signal(signal.SIGUSR2, lambda *_: called.append(1))
    try:
        with StopSignals() as signals:
            send(signal.SIGUSR2)
            assert (called, signals.asked) == ([1], 0)
    finally:
        signal.signal(signal.SIGUSR2, old)


@pytest.mark.parametrize(("handler", "count"), [(signal.SIG_IGN, 0), (signal.SIG_DFL, 1)])
def test_hangup_stays_ignored_under_nohup(handler: signal.Handlers, count: int) -> None:
    old = signal.signal(signal.SIGHUP, handler)
    try:
        with StopSignals() as signals:
            send(signal.SIGHUP)
            assert counted(signals, within=10.0 if count else 0.2) == count
    finally:
        signal.signal(signal.SIGHUP, old)


def test_a_forked_child_does_not_hold_up_the_end() -> None:
    program = """
import os, signal, time
from rlz.runtime.signals import StopSignals
with StopSignals():
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
os.kill(child, signal.SIGKILL)
os.waitpid(child, 0)
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=30, check=False).returncode == 0
