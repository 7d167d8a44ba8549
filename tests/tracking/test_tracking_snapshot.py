import os
import time
from types import SimpleNamespace

import pytest

from rlz.answers import OWN_METRICS, Replay
from rlz.tracking.process import read_usage, started_at
from rlz.tracking.reading import Reader, WorkerInfo
from rlz.tracking.snapshot import LEARNER_VALUES, between
from rlz.transport.stats import Stat, Waiting
from support.tracking import METRICS, FakeStreams, workers

CONFIG = SimpleNamespace(data=lambda: Replay((), 1000, 8, None, starts=100), total_timesteps=10_000)


def snapshot_of(streams, old_at=100.0, new_at=110.0, change=lambda: None, infos=workers):
    reader = Reader(streams, infos)
    old = reader.read(old_at)
    change()
    return between(old, reader.read(new_at), config=CONFIG, started=old_at - 5)


def test_rates_are_differences_over_time():
    streams = FakeStreams()
    streams.step(600, 500)
    seen = snapshot_of(streams, change=lambda: streams.step(200, 100))
    assert (seen.env_steps, seen.updates, seen.wall_s) == (800, 600, 15.0)
    assert (seen.env_steps_per_s, seen.updates_per_s, seen.frames_per_s) == (20.0, 10.0, 2560.0)
    assert seen.replay_ratio == pytest.approx(600 / 700)
    assert seen.replay_ratio_now == pytest.approx(0.5)
    assert seen.eta_s == pytest.approx(9200 / 20)
    assert seen.scalars()["workers/sampler-0/env_steps_per_s"] == 20.0


def test_what_does_not_exist_yet_has_no_entry():
    scalars = snapshot_of(FakeStreams()).scalars()
    absent = {"train/critic_loss", "replay/ratio", "replay/policy_lag", "rollout/return_mean"}
    assert not absent & set(scalars)
    assert scalars["time/env_steps_per_s"] == 0.0
    assert snapshot_of(FakeStreams()).eta_s is None


def test_policy_lag_of_the_interval_and_of_the_run():
    streams = FakeStreams()
    row = streams.stats.values[2]
    row[Stat.POLICY_LAG_SUM], row[Stat.POLICY_LAG_COUNT] = 10.0, 10.0

    def go_on():
        row[Stat.POLICY_LAG_SUM], row[Stat.POLICY_LAG_COUNT] = 40.0, 20.0

    seen = snapshot_of(streams, change=go_on)
    assert (seen.policy_lag, seen.policy_lag_mean) == (3.0, 2.0)


def test_waits_by_reason_include_the_wait_that_is_open():
    streams = FakeStreams()
    row = streams.stats.values[2]

    def go_on():
        row[Stat.WAIT_LIMITER_S] = 3.0
        row[Stat.WAITING_FOR], row[Stat.WAITING_SINCE] = float(Waiting.LIMITER), 108.0

    sampler = snapshot_of(streams, change=go_on).workers[2]
    assert sampler.waits == {"limiter": pytest.approx(0.5)}
    assert (sampler.waiting_for, sampler.waiting_s) == ("limiter", 2.0)


def test_rates_lag_and_sign_of_life_of_each_worker():
    streams = FakeStreams()
    board = streams.stats.values

    def go_on():
        board[0][Stat.UPDATES] = 30.0
        board[1][Stat.EPISODES] = 5.0
        board[2][[Stat.ENV_STEPS, Stat.EPISODES, Stat.POLICY_LAG_SUM, Stat.POLICY_LAG_COUNT]] = 20.0, 1.0, 30.0, 20.0
        board[2][Stat.RESET_S] = 2.5
        board[2][Stat.HEARTBEAT] = 107.5

    learner, evaluator, sampler = snapshot_of(streams, change=go_on).workers
    seconds = 10.0
    assert (learner.updates_per_s, learner.quiet_s, learner.policy_lag) == (30 / seconds, None, None)
    assert evaluator.episodes_per_s == 5 / seconds
    assert (sampler.env_steps_per_s, sampler.episodes_per_s) == (20 / seconds, 1 / seconds)
    assert (sampler.policy_lag, sampler.quiet_s, sampler.resets) == (1.5, 2.5, 0.25)


def test_a_step_without_a_row_is_lost_and_a_row_before_its_step_is_not():
    streams = FakeStreams()
    # Of a resumed run: 60 steps and as many rows of each lane before, of which 50 are in the buffer again.
    streams.replay.rows = [50, 50]
    streams.limiter.lanes = [0, 0]
    streams.stats.values[2:4, Stat.STEPS_OFFSET] = 60
    streams.stats.values[2:4, Stat.ROWS_OFFSET] = 60 - 50
    infos = [WorkerInfo(f"sampler-{i}", "sampler", 2 + i, 0, lanes=(i,), progress="env_steps") for i in range(2)]
    reader = Reader(streams, lambda: infos)
    streams.limiter.lanes, streams.replay.rows = [50, 50], [101, 100]  # one row is ahead of its step
    assert reader.read(1.0).rows_lost == 0
    streams.limiter.lanes[1] += 10
    streams.replay.rows[1] += 7
    reading = reader.read(1.0)
    assert reading.rows_lost == 3
    assert [worker.rows_lost for worker in reading.workers] == [0, 3]
    assert reading.rows == 60 + 51 + 60 + 57


def test_returns_are_means_of_the_last_hundred_episodes():
    streams = FakeStreams()
    for episode in range(150):
        streams.stats.push(2, float(episode), 10.0, 0.0, 0.0, 0.0)
    seen = snapshot_of(streams)
    assert seen.return_mean == pytest.approx(sum(range(50, 150)) / 100)
    assert seen.length_mean == 10.0


def test_memory_and_cpu_of_this_process_count_once():
    def burn():
        end = time.process_time() + 0.05
        while time.process_time() < end:
            pass

    streams = FakeStreams()
    begin = time.monotonic()
    reader = Reader(streams, workers)
    old = reader.read(begin)
    burn()
    learner, evaluator, sampler = between(old, reader.read(), config=CONFIG, started=begin).workers
    assert learner.private is not None
    assert 5e6 < learner.private < 5e9
    assert learner.cpu_percent is not None
    assert 1 < learner.cpu_percent < 1000
    assert evaluator.private is None
    assert sampler.private is None  # same process: in serial mode it stands under the first worker


def test_a_new_process_in_a_slot_gives_no_cpu_figure():
    infos = [WorkerInfo("sampler-0", "sampler", 2, pid, restarts) for restarts, pid in enumerate((1, os.getpid()))]
    reader = Reader(FakeStreams(), lambda: [infos.pop(0)])
    seen = between(reader.read(1.0), reader.read(2.0), config=CONFIG, started=0.0)
    assert seen.workers[0].cpu_percent is None
    assert seen.restarts == 1


def test_usage_of_a_process_that_is_gone_is_none(tmp_path):
    assert read_usage(2**22 + 1) is None
    folder = tmp_path / "7"
    folder.mkdir()
    (folder / "status").write_text("Name:\tx) y\nRssAnon:\t  10 kB\nRssFile:\t  5 kB\nRssShmem:\t  3 kB\n")
    (folder / "stat").write_text("7 (x) y) S 1 1 1 0 -1 0 0 0 0 0 200 100 0 0 20 0 4 0 99 0 0\n")
    usage = read_usage(7, tmp_path)
    assert usage is not None
    assert (usage.private, usage.shared, usage.threads) == (15 * 1024, 3 * 1024, 4)
    assert usage.cpu_s == 300 / os.sysconf("SC_CLK_TCK")


def test_start_of_this_process_lies_before_now():
    assert 0 < time.monotonic() - started_at() < 24 * 3600


def test_names_that_an_algorithm_cannot_give_its_metrics_are_those_that_rlz_logs() -> None:
    streams = FakeStreams()
    tags = {*snapshot_of(streams, change=lambda: streams.step(10, 10)).scalars(), *LEARNER_VALUES}
    logged = {tag.removeprefix("train/") for tag in tags if tag.startswith("train/")} - {*METRICS}
    assert logged | {"updates"} == OWN_METRICS  # TensorBoard and W&B get the number of updates as well
