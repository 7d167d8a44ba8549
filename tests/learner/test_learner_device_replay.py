"""The mirror of the replay buffer: its rows are those of the host's window, whatever has happened to the writers."""

import mmap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlz._native import Replay
from rlz.errors import DeviceError, NonFiniteError, TransportError
from rlz.learning import device_replay as module
from rlz.learning.batches import Decoder
from rlz.learning.device_replay import DeviceReplay, choose
from rlz.learning.memory import engine_bytes, largest_batch
from rlz.records.checkpoint import newest_checkpoint
from support.learner import ACTION, OBS, Run, config, make

CPU = torch.device("cpu")


def append(writer: Any, lane: int, value: float, obs: int = OBS) -> None:
    row = [np.full(obs, value, np.float32), np.zeros(ACTION, np.float32), np.zeros(obs, np.float32), value, 0.99]
    writer.append(lane, row, version=0)


def mirror(replay: Replay) -> DeviceReplay:
    found = DeviceReplay(replay, Decoder(replay.fields), CPU)
    found.follow()
    return found


def mirrored(found: DeviceReplay) -> list[float]:
    """Reward of every row that can be drawn, sorted."""
    batch = found.gather(torch.arange(found.size))
    assert torch.equal(batch.obs[:, 0], batch.reward), "rows are whole"
    return sorted(batch.reward.tolist())


def window(replay: Replay) -> list[float]:
    """The same of the host's sampler: so many draws leave none out."""
    count = replay.sampler(seed=[1, 2, 3, 4]).available
    rows = np.zeros((60 * count, replay.stride), np.uint8)
    replay.sampler(seed=[1, 2, 3, 4]).sample(rows)
    return sorted(set(Decoder(replay.fields)(torch.from_numpy(rows)).reward.tolist()))


@pytest.mark.parametrize("chunk", [3, 4096])
def test_rows_are_those_of_the_host_also_after_it_has_gone_round(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(module, "CHUNK_ROWS", chunk)
    replay = make(50, 1)
    writer = replay.writer([0], worker=3)
    found = DeviceReplay(replay, Decoder(replay.fields), CPU)
    with pytest.raises(TransportError, match="the replay buffer is empty"):
        found.follow()
    for value in range(1, 181):
        append(writer, 0, value)
        if value % 7 == 0:
            assert found.follow() == 7
            assert mirrored(found) == window(replay)
    assert found.follow() == 180 % 7
    assert mirrored(found) == window(replay) == [float(value) for value in range(131, 181)]
    assert mirrored(mirror(replay)) == window(replay), "a mirror of a full buffer"
    assert found.lapped == 0


def test_a_lane_that_stopped_ages_out_and_a_fast_one_is_not_cut() -> None:
    replay = make(40, 2)
    writer = replay.writer([0, 1], worker=3)
    found = DeviceReplay(replay, Decoder(replay.fields), CPU)
    for value in range(30):
        append(writer, value % 2, value)
        found.follow()
    assert mirrored(found) == window(replay)
    for value in range(30, 80):  # the other lane alone, more than it has slots
        append(writer, 1, value)
        found.follow()
    assert mirrored(found) == [float(value) for value in range(40, 80)]


def test_a_full_buffer_is_read_lane_by_lane_yet_no_lane_counts_as_older(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK_ROWS", 8)
    replay = make(40, 4)
    writer = replay.writer([0, 1, 2, 3], worker=3)
    for value in range(40):
        append(writer, value % 4, value)
    found = mirror(replay)
    for value in range(40, 60):
        append(writer, value % 4, value)
    found.follow()
    kept = np.array(mirrored(found))
    assert kept.max() == 59
    assert kept.min() >= 20 - 8, "the oldest are gone, to within a chunk"
    assert set(np.bincount(kept.astype(int) % 4)) <= {9, 10, 11}


def empty_slot(replay: Replay, ticket: int, worker: int) -> None:
    """Empty the slot of a row, as reaping does with one that a killed writer was overwriting.

    A row's stamp is ticket << 11 | worker << 1 (rust/core/src/replay/ring.rs), and 0 in an empty slot.
    """
    with mmap.mmap(replay.fd, 0) as memory:
        words = np.frombuffer(memory, np.uint64)
        (place,) = np.flatnonzero(words == (ticket << 11 | worker << 1))
        words[place] = 0
        del words


def test_a_slot_that_a_killed_sampler_left_empty_is_never_drawn() -> None:
    replay = make(40, 1)
    found = DeviceReplay(replay, Decoder(replay.fields), CPU)
    writer = replay.writer([0], worker=3)
    written = replay.lane_capacity + 17
    for value in range(1, written + 1):
        append(writer, 0, value)
        found.follow()
    assert replay.reap(3) == 1
    empty_slot(replay, written + 1 - replay.lane_capacity, worker=3)  # where the next row would go
    fresh = mirror(replay)
    successor = replay.writer([0], worker=5)
    for value in range(written + 1, written + 30):
        assert mirrored(fresh) == mirrored(found) == window(replay)
        append(successor, 0, value)
        assert fresh.follow() == found.follow() == 1
    # Empty slots within the window: those rows are in no mirror that is made afterwards.
    gone = [written + 5, written + 10]
    for ticket in gone:
        empty_slot(replay, ticket, worker=5)
    late = mirror(replay)
    assert mirrored(late) == window(replay)
    assert not set(gone) & set(mirrored(late))
    assert len(mirrored(late)) == 38


def test_draws_are_uniform_over_the_committed_rows() -> None:
    replay = make(1000, 2)
    writer = replay.writer([0, 1], worker=3)
    for value in range(40):
        append(writer, value % 2, value)
    found = mirror(replay)
    indices = torch.zeros(8, 10_000, dtype=torch.int64)
    found.draw(indices, torch.Generator().manual_seed(1))
    counts = torch.bincount(indices.flatten())
    assert len(counts) == found.size == 40, "no row that is not there"
    expected = 80_000 / 40
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert 15 < chi_square < 80  # 39 degrees of freedom: one in 10,000 is beyond either end


def test_a_run_on_the_mirror_counts_exactly_and_can_be_resumed(tmp_path: Path) -> None:
    options = {"replay_device": "device", "updates_per_launch": 8, "ratio_slack": None, "buffer_size": 25}
    run = Run(tmp_path, config(**options, algo="td3", policy_delay=3))
    learner, limiter = run.learner(), run.streams.limiter
    learner.start()
    while True:
        run.sample(1000)
        if not learner.step(None):
            break
        assert abs(limiter.updates - max(0, limiter.env_steps - 10)) <= 8
    assert limiter.updates == int(learner.state_dict()["updates"]) == 30
    assert int(learner.state_dict()["actor_updates"]) == 10, "kinds keep their order over launches"
    mirror = learner._updates._mirror  # type: ignore[attr-defined]
    assert mirrored_rewards(mirror) == window(run.streams.replay)
    learner.close()

    saved = newest_checkpoint(tmp_path)
    other = Run(tmp_path, config(**options, algo="td3", policy_delay=3))
    other.writer.close()
    saved.restore_replay(other.streams.replay, worker=6)
    resumed = other.learner(resume=str(saved.path), incarnation=1)
    assert resumed._updates.trainer.noise_state.hex() == saved.rng["learner"], "draws go on"
    mirror = resumed._updates._mirror  # type: ignore[attr-defined]
    mirror.follow()
    assert mirrored_rewards(mirror) == window(other.streams.replay) == window(run.streams.replay)


def mirrored_rewards(found: DeviceReplay) -> list[float]:
    return sorted(found.gather(torch.arange(found.size)).reward.tolist())


def test_a_bad_row_of_a_launch_is_named_and_dumped(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    options = {"replay_device": "device", "updates_per_launch": 8, "ratio_slack": None}
    run = Run(tmp_path, config(**options))
    learner = run.learner()
    learner.start()
    run.sample(14)
    run.sample(1, reward=float("inf"))

    def train() -> None:
        for _ in range(200):
            learner.step(None)
            run.sample(4)

    with pytest.raises(NonFiniteError, match=r"update \d+: critic_loss is not finite") as caught:
        train()
    learner.close()
    assert f"update {learner._updates.trainer.done + 1}:" in str(caught.value)
    assert np.isinf(load_file(tmp_path / "nonfinite.safetensors")["batch.reward"]).any()


def test_where_the_mirror_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    replay, cuda = make(2**20, 1), torch.device("cuda", 0)
    need = 2**20 * replay.stride
    assert choose("auto", replay, CPU, refused=None)[0] is False
    assert choose("device", replay, CPU, refused=None)[0] is True
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (3 * need, 4 * need))
    assert choose("auto", replay, cuda, refused=None)[0] is True
    assert choose("host", replay, cuda, refused=None) == (
        False,
        "replay: batches are drawn on the host (--replay-device host)",
    )
    assert choose("auto", replay, cuda, refused="--prioritized") == (
        False,
        "replay: batches are drawn on the host (--prioritized)",
    )
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (need * 3 // 2, 4 * need))
    used, line = choose("auto", replay, cuda, refused=None)
    assert not used
    assert "would take" in line
    assert choose("device", replay, cuda, refused=None)[0] is True
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (need // 2, 4 * need))
    with pytest.raises(DeviceError, match="--replay-device device: the mirror needs"):
        choose("device", replay, cuda, refused=None)


def test_the_mirror_leaves_memory_to_updates_and_their_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    replay, cuda = make(2**20, 1), torch.device("cuda", 0)
    need = 2**20 * replay.stride
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (3 * need, 4 * need))
    assert choose("auto", replay, cuda, refused=None, reserved=need)[0] is True
    assert choose("auto", replay, cuda, refused=None, reserved=2 * need)[0] is False
    with pytest.raises(DeviceError, match="that updates leave free"):
        choose("device", replay, cuda, refused=None, reserved=4 * need)


def test_the_largest_batch_has_room_for_graphs_workspaces_and_engines_that_are_kept() -> None:
    work, free = 256 + 16 * 512 * 3, 80 << 30
    assert largest_batch(free, work, card=False, graphs=2, sizes=5) == free // 8 // work
    largest = largest_batch(free, work, card=True, graphs=2, sizes=5)
    kept = [largest >> step for step in range(5)]
    assert 0.9 * free < sum(engine_bytes(size, work, 2) for size in kept) <= free
    assert largest_batch(1 << 20, work, card=True, graphs=2, sizes=5) == 0
