"""What the host does for each launch on a card: publications, flags and streams. Streams and events are fakes here."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlz._native import ParameterStore
from rlz.config import run_config
from rlz.learning import publication as publication_module
from rlz.learning import streams as streams_module
from rlz.learning.batches import Decoder
from rlz.learning.device_replay import DeviceReplay
from rlz.learning.publication import AT_ONCE, Interval, Publication
from rlz.learning.streams import Meeting
from rlz.transport.stats import Stat, metric
from support.executors import CPU
from support.learner import Run, config, make

CARD = torch.device("cuda", 0)


class Event:
    """Fake of a device's event: reached when the test says so."""

    def __init__(self) -> None:
        self.reached = False
        self.waited = False

    def query(self) -> bool:
        return self.reached

    def synchronize(self) -> None:
        self.waited = self.reached = True


class Stream:
    """Fake of a stream: notes what it waits for."""

    def __init__(self, *_: object) -> None:
        self.events: list[object] = []

    def wait_stream(self, other: object) -> None:
        self.events.append(other)

    def wait_event(self, event: object) -> None:
        self.events.append(event)


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> tuple[Publication, Any, list[Event]]:
    """A publication as from a card: copies take until their event is reached (the copies themselves are real)."""
    events: list[Event] = []

    def recorded(_: object) -> Event:
        events.append(Event())
        return events[-1]

    monkeypatch.setattr(publication_module, "recorded", recorded)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", nullcontext)
    store = ParameterStore.create([("actor", "f32", (4,))], leases=1, run_id=1)
    found = Publication(store.publisher(worker=3), torch.zeros(4))
    found._stream = Stream()
    found._staged, found._pinned = ([torch.zeros(4) for _ in range(AT_ONCE)] for _ in range(2))
    found._free.extend(range(AT_ONCE))
    return found, store, events


def newest(store: Any) -> list[float]:
    into = np.zeros(16, np.uint8)
    return [*store.subscriber().read(into), float(into.view(np.float32)[0])]


def test_an_actor_is_published_when_it_has_arrived_as_it_was_when_it_left(late: tuple[Any, Any, list[Event]]) -> None:
    publication, store, events = late
    actor = torch.full((4,), 1.0)
    assert publication.take(actor, env_steps=10, updates=5) is None
    actor.fill_(2.0)  # by the next launch, while the copy is under way
    assert publication.finish() is None
    assert store.version() == 0
    events[0].reached = True
    assert publication.finish() == 1
    assert newest(store) == [1, 10, 5, 1.0]
    assert not events[0].waited, "nobody has waited"


def test_the_host_waits_for_a_copy_only_where_all_places_are_taken_or_it_wants_all(late: Any) -> None:
    publication, store, events = late
    for step in range(AT_ONCE):
        assert publication.take(torch.full((4,), float(step)), env_steps=step, updates=step) is None
    assert store.version() == 0
    assert publication.take(torch.full((4,), 9.0), env_steps=9, updates=9) == AT_ONCE
    assert publication.finish(wait=True) == AT_ONCE + 1
    assert newest(store) == [AT_ONCE + 1, 9, 9, 9.0]
    assert all(event.waited for event in events)


def test_on_the_cpu_an_actor_is_published_at_once() -> None:
    store = ParameterStore.create([("actor", "f32", (4,))], leases=1, run_id=1)
    publication = Publication(store.publisher(worker=3), torch.zeros(4))
    assert publication.take(torch.ones(4), env_steps=3, updates=2) == 1
    assert newest(store) == [1, 3, 2, 1.0]
    assert publication.finish() is None


def test_publications_by_themselves_come_once_a_launch_and_not_too_often() -> None:
    timed, given, serial = Interval(None, timed=True), Interval(4, timed=True), Interval(None, timed=False)
    published = {timed: 0, given: 0, serial: 0}
    for launch in range(1000):  # of 2 updates, 2,000 launches a second
        for interval in published:
            interval.since += 2
            if interval.due(now := 1.0 + launch / 2000):
                interval.begin(now)
                published[interval] += 1
    assert 0.8 * 375 <= published[timed] <= 375 + 1
    assert (published[given], published[serial]) == (500, 1000)


def test_a_learner_publishes_what_is_under_way_before_it_waits(tmp_path: Path) -> None:
    """The samplers that it waits for should have the newest actor."""
    run = Run(tmp_path, config(total_timesteps=20, updates_per_launch=4, ratio_slack=None))
    learner = run.learner()
    learner.start()
    run.sample(12)
    waits: list[bool] = []
    finish = learner._publication.finish

    def noted(*, wait: bool = False) -> int | None:
        waits.append(wait)
        return finish(wait=wait)

    learner._publication.finish = noted  # type: ignore[method-assign]
    for _ in range(20):  # until no more updates are granted
        learner.step(0.01)
    assert waits[-1] is True
    learner.close()


@pytest.mark.parametrize(
    ("options", "driver", "most"),
    [
        ({"device": "cpu"}, True, 1),
        ({"device": "auto"}, False, 1),
        ({"device": "auto"}, True, 16),
        ({"device": "cuda", "batch_size": 256}, True, 16),
        ({"device": "cuda", "batch_size": 64}, True, 32),
        ({"device": "cuda", "batch_size": 8192}, True, 8),
        ({"device": "cuda", "ratio_slack": 5.5}, True, 5),
        ({"device": "cuda", "updates_per_launch": 3}, True, 3),
        ({"device": "cuda", "prioritized": True}, True, 1),
        ({"device": "cuda", "replay_device": "host"}, True, 1),
        ({"devices": ("cuda:0", "cuda:0")}, True, 1),
        ({"device": "cuda", "mode": "serial"}, True, 1),
    ],
)
def test_updates_of_a_launch_by_themselves(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], driver: bool, most: int
) -> None:
    monkeypatch.setattr("rlz.config.schema.has_driver", lambda: driver)
    found = run_config(env="Test-v0", **options)
    assert found.launch() == most
    assert found.slack() == (options.get("ratio_slack") or most), "a whole launch can be granted"


@pytest.mark.parametrize("value", ["0", "none", "1.5", 0, True])
@pytest.mark.parametrize("name", ["updates_per_launch", "publish_every"])
def test_counts_or_auto(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=name):
        run_config(env="Test-v0", **{name: value})
    assert getattr(run_config(env="Test-v0", **{name: "16"}), name) == 16


def test_new_rows_of_all_lanes_are_one_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    replay = make(640, 64)
    writer, obs = replay.writer(list(range(64)), worker=3), np.zeros(3, np.float32)

    def step(value: float) -> None:
        for lane in range(64):
            writer.append(lane, [obs, obs[:2], obs, value + lane, 0.99], version=0)

    step(0.0)
    mirror = DeviceReplay(replay, Decoder(replay.fields), CPU)
    mirror.follow()
    before = mirror._staging[0]
    for number in range(1, 4):
        step(100.0 * number)
        assert mirror.follow() == 64
        assert (mirror._staging[0] is before) == (number % 2 == 0), "one chunk of memory each time"
    rewards = mirror.gather(torch.arange(256)).reward
    assert sorted(rewards.tolist()) == sorted(100.0 * number + lane for number in range(4) for lane in range(64))


def test_threads_with_streams_of_their_own_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    streams: dict[torch.device, Stream] = {}
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: streams.setdefault(device, Stream()))
    monkeypatch.setattr(streams_module, "recorded", lambda device: ("recorded", device))
    other = torch.device("cuda", 1)
    meeting = Meeting([CARD, CARD, other, CPU])
    left = meeting.leave()
    assert left == [("recorded", CARD), ("recorded", other)]

    class Given:
        device = other
        kept: Any = None

        def record_stream(self, stream: object) -> None:
            self.kept = stream

    given = Given()
    meeting.take(left, [given])  # type: ignore[list-item]
    assert streams[CARD].events == streams[other].events == left
    assert given.kept is streams[other], "its memory is not used again before"
    assert Meeting([CPU, CPU]).leave() == []


def test_metrics_wait_for_the_stats_board_on_the_device(tmp_path: Path) -> None:
    run = Run(tmp_path, config(total_timesteps=60))
    learner = run.learner()
    learner.start()
    run.sample(60)
    for _ in range(30):
        learner.step(0.0)
    assert np.isnan(run.streams.stats.read()[0][metric(0)])
    learner._flush(0.0)
    board = run.streams.stats.read()[0]
    assert np.isfinite(board[metric(0)])
    assert board[Stat.UPDATES] == 30
    assert learner._updates.trainer.take_metrics().isnan().all()
    learner.close()
