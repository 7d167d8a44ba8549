import os
import select
import signal
import time

import pytest

from rlz.runtime.signals import SAME_S, StopSignals


def send(number: int) -> None:
    os.kill(os.getpid(), number)


def test_a_signal_counts_once_within_its_window_and_wakes_a_poll() -> None:
    before = signal.getsignal(signal.SIGINT)
    with StopSignals() as signals:
        assert signals.exit_status == 0
        send(signal.SIGINT)
        send(signal.SIGINT)
        assert signals.count == 1
        assert select.select([signals.fd], [], [], 0)[0]
        signals.drain()
        assert not select.select([signals.fd], [], [], 0)[0]
        time.sleep(SAME_S + 0.05)
        send(signal.SIGTERM)
        assert signals.count == 2
        assert signals.exit_status == 130
    assert signal.getsignal(signal.SIGINT) is before


def test_the_second_signal_calls_back() -> None:
    called = []
    with StopSignals(lambda: called.append(1)) as signals:
        send(signal.SIGTERM)
        assert signals.exit_status == 143
        assert not called
        time.sleep(SAME_S + 0.05)
        send(signal.SIGTERM)
        assert called == [1]


@pytest.mark.parametrize(("handler", "count"), [(signal.SIG_IGN, 0), (signal.SIG_DFL, 1)])
def test_hangup_stays_ignored_under_nohup(handler: signal.Handlers, count: int) -> None:
    old = signal.signal(signal.SIGHUP, handler)
    try:
        with StopSignals() as signals:
            send(signal.SIGHUP)
            assert signals.count == count
    finally:
        signal.signal(signal.SIGHUP, old)
