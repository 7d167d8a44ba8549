"""Inference stream through the bindings: columns, groups, errors. The protocol is tested in Rust."""

import threading
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from rlz._native import InferenceStream
from rlz.errors import ClosedError, LayoutMismatchError, LeaseLostError, TransportError, WaitTimeoutError

REQUEST = [("obs", "f32", (3,)), ("step", "i64", ())]
ANSWER = [("action", "f32", (2,)), ("log_prob", "f32", ())]


def make(lanes: int = 4) -> InferenceStream:
    return InferenceStream.create(REQUEST, ANSWER, lanes=lanes, run_id=1)


def request(rows: int, value: float = 0.0) -> dict[str, Any]:
    obs = value + np.arange(3 * rows, dtype=np.float32).reshape(rows, 3)
    return {"obs": obs, "step": np.arange(rows) + 10}


def room(rows: int) -> dict[str, Any]:
    return {"action": np.zeros((rows, 2), np.float32), "log_prob": np.full(rows, -1.0, np.float32)}


def taking(rows: int) -> dict[str, Any]:
    return {"obs": np.zeros((rows, 3), np.float32), "step": np.zeros(rows, np.int64)}


def test_columns_go_over_and_back() -> None:
    there = InferenceStream.attach((here := make()).fd)
    client, server = here.client([[0, 1], [3]], worker=2), there.server(worker=3)
    assert [field[:3] for field in there.request] == REQUEST
    assert [field[:3] for field in there.answer] == ANSWER
    client.ask(1, request(1, 50.0), notes=np.array([7], np.uint64))
    client.ask(0, request(2), which=[1])
    into, notes, lanes = taking(4), np.zeros(4, np.uint64), np.zeros(4, np.int64)
    assert server.take(into, timeout=0, notes=notes, lanes=lanes) == 2
    assert lanes[:2].tolist() == [1, 3]
    assert notes[:2].tolist() == [0, 7]
    assert into["obs"][:2].tolist() == [[3, 4, 5], [50, 51, 52]]
    assert into["step"][:2].tolist() == [11, 10]
    assert here.occupancy() == {"idle": 2, "asked": 0, "taken": 2, "orphaned": 0, "answered": 0}
    with pytest.raises(WaitTimeoutError, match="an answer of the inference server"):
        client.wait(timeout=0)
    actions = np.array([[1, 2], [3, 4]], np.float32)
    assert server.answer({"action": actions, "log_prob": np.array([5, 6], np.float32)}, note=99) == 2
    assert client.wait(timeout=0) == 1
    got, versions = room(2), np.zeros(2, np.uint64)
    assert client.take(0, got, notes=versions) == 1
    assert got["action"].tolist() == [[0, 0], [1, 2]]  # the lane that did not ask stays as it is
    assert got["log_prob"].tolist() == [-1, 5]
    assert versions.tolist() == [0, 99]
    assert client.take(1, {"log_prob": (only := np.zeros(1, np.float32))}) == 1
    assert only.tolist() == [6]
    assert here.missed_wakeups == 0


def test_waits_in_two_threads() -> None:
    stream = make(1)
    client, server = stream.client([[0]], worker=2), stream.server(worker=3)

    def serve() -> None:
        for _ in range(200):
            assert server.take(taking(1)) == 1
            server.answer(room(1))

    thread = threading.Thread(target=serve)
    thread.start()
    for _ in range(200):
        client.ask(0, request(1))
        assert client.wait() == 0
        client.take(0, room(1))
    thread.join()
    assert stream.missed_wakeups == 0


def test_a_late_answer_and_a_dead_server() -> None:
    stream = make()
    dead, server = stream.client([[0, 1]], worker=2), stream.server(worker=3)
    dead.ask(0, request(2))
    server.take(taking(2), timeout=0)
    assert stream.reap(2) == (2, 0)
    with pytest.raises(LeaseLostError):
        dead.wait(timeout=0)
    with pytest.raises(WaitTimeoutError, match="dead client's request"):
        stream.client([[0]], worker=2, timeout=0)
    assert server.answer(room(2)) == 0
    client = stream.client([[0]], worker=2)
    client.ask(0, request(1))
    server.take(taking(1), timeout=0)
    assert stream.reap(3) == (0, 1)
    with pytest.raises(LeaseLostError):
        server.answer(room(1))
    successor = stream.server(worker=4)
    assert successor.take(taking(1), timeout=0) == 1
    assert successor.answer(room(1)) == 1
    assert client.wait(timeout=0) == 0


def test_errors_name_what_is_wrong() -> None:
    stream = make()
    client, server = stream.client([[0, 1]], worker=2), stream.server(worker=3)
    with pytest.raises(TransportError, match="lane 1 of the inference stream is owned by worker 2"):
        stream.client([[1]], worker=4, timeout=0)
    with pytest.raises(TransportError, match="server of worker id 3"):
        stream.server(worker=3)
    with pytest.raises(ValueError, match=r"lanes from 0 to 3, none of them twice"):
        stream.client([[2, 2]], worker=4)
    with pytest.raises(ValueError, match=r"\"obs\".*float32 array of shape \(2, 3\), got a float64"):
        client.ask(0, {**request(2), "obs": np.zeros((2, 3))})
    with pytest.raises(KeyError, match="step"):
        client.ask(0, {"obs": np.zeros((2, 3), np.float32)})
    with pytest.raises(ValueError, match="ask first"):
        client.wait(timeout=0)
    with pytest.raises(ValueError, match=r"notes: expected a C-contiguous uint64 array of shape \(2,\)"):
        client.ask(0, request(2), notes=np.zeros(3, np.uint64))
    client.ask(0, request(2))
    with pytest.raises(ValueError, match="its answer is taken first"):
        client.ask(0, request(2))
    with pytest.raises(ValueError, match="at least one field"):
        server.take({}, timeout=0)
    with pytest.raises(ValueError, match="linger: given -1"):
        server.take(taking(1), timeout=0, linger=-1.0)
    frozen = taking(2)
    frozen["obs"].flags.writeable = False
    with pytest.raises(ValueError, match=r"into\[\"obs\"\]: expected a writable"):
        server.take(frozen, timeout=0)
    assert server.take(taking(2), timeout=0) == 2
    with pytest.raises(ValueError, match="answered first"):
        server.take(taking(2), timeout=0)
    with pytest.raises(ValueError, match=r"shape \(2, 2\)"):
        server.answer(room(1))
    server.answer(room(2))
    with pytest.raises(ValueError, match=r"into\[\"action\"\].*\(2, 2\)"):
        client.take(0, room(3))
    with pytest.raises(ValueError, match="twice"):
        InferenceStream.create(REQUEST, REQUEST, lanes=1)
    for end in (client, server, stream):
        end.close()
        end.close()
    with pytest.raises(ClosedError):
        client.wait(timeout=0)
    with pytest.raises(ClosedError):
        stream.occupancy()


def test_arrays_in_use_are_refused() -> None:
    stream = make()
    server, shared = stream.server(worker=3), taking(1)
    thread = threading.Thread(target=lambda: server.take(shared))
    thread.start()
    other, client = stream.server(worker=4), stream.client([[0]], worker=2)

    def until_it_has_begun() -> None:
        while True:
            with suppress(WaitTimeoutError):
                other.take(shared, timeout=0)

    with pytest.raises(ValueError, match="which another thread is filling"):
        until_it_has_begun()
    with pytest.raises(ValueError, match="in use by another thread"):
        server.answer(room(1))
    client.ask(0, request(1, 4.0))
    thread.join()
    assert shared["obs"].tolist() == [[4, 5, 6]]


def test_another_stream_is_refused() -> None:
    from rlz._native import StatsBoard

    board = StatsBoard.create(slots=1, names=["a"], event_width=1, event_capacity=1)
    with pytest.raises((TransportError, LayoutMismatchError), match="stats board"):
        InferenceStream.attach(board.fd)
