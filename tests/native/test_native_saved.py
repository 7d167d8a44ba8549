"""Saved replay buffers: read back as they were, opened by numpy, whole beside writers, and refused when damaged."""

import random
import resource
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rlz.errors import LayoutMismatchError, RlzError, TransportError
from rlz.transport import FLAG_TERMINATED, FLAG_TRUNCATED, Replay

FIELDS: list[tuple[str, str, tuple[int, ...]]] = [("obs", "f32", (5,)), ("pixels", "u8", (3, 2)), ("reward", "f64", ())]
DTYPES = ["f16", "f32", "f64", "bf16", "u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64", "bool"]
NUMPY = ["f2", "f4", "f8", "u2", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "?"]


def make(lanes: int = 2, buffer_size: int = 100, fields: Any = FIELDS) -> Replay:
    return Replay.create(fields, buffer_size=buffer_size, lanes=lanes, run_id=1)


def row(value: float) -> tuple[Any, ...]:
    return np.full(5, value, np.float32), np.full((3, 2), value % 256, np.uint8), value


def filled(counts: list[int], buffer_size: int = 100) -> Replay:
    """Rows whose reward is lane * 1000 + ticket."""
    replay = make(len(counts), buffer_size)
    writer = replay.writer(range(len(counts)), worker=2)
    for lane, count in enumerate(counts):
        for ticket in range(1, count + 1):
            writer.append(lane, row(lane * 1000 + ticket), version=ticket)
    writer.close()
    return replay


def content(replay: Replay, lane: int) -> tuple[list[float], NDArray[np.uint64]]:
    """Rewards and meta words of a lane that has not wrapped."""
    count = replay.committed()[lane]
    rows, meta = np.empty((count, replay.stride), np.uint8), np.empty(count, np.uint64)
    assert replay.read_rows(lane, 1, rows, meta) == count
    offset = {name: offset for name, _, _, offset in replay.fields}["reward"]
    return rows[:, offset : offset + 8].copy().view(np.float64)[:, 0].tolist(), meta


def test_a_buffer_comes_back(tmp_path: Path) -> None:
    replay, again = filled([30, 7]), make()
    assert replay.save(tmp_path / "buffer.npy") == 37
    assert list(tmp_path.iterdir()) == [tmp_path / "buffer.npy"]
    assert stat.S_IMODE((tmp_path / "buffer.npy").stat().st_mode) == 0o600
    assert again.load(str(tmp_path / "buffer.npy"), worker=1) == 37
    assert again.owners() == [0, 0]
    for lane in range(2):
        rewards, meta = content(replay, lane)
        loaded, meta_loaded = content(again, lane)
        assert rewards == loaded
        assert (meta[:-1] == meta_loaded[:-1]).all()
        assert int(meta_loaded[-1]) == int(meta[-1]) | FLAG_TRUNCATED
    other = make()
    other.load(tmp_path / "buffer.npy", worker=1, open_episodes=True)
    assert (content(other, 0)[1] == content(replay, 0)[1]).all()


def test_an_episode_that_ended_is_not_cut(tmp_path: Path) -> None:
    replay, again = make(1), make(1)
    replay.writer([0], worker=2).append(0, row(1), version=0, flags=FLAG_TERMINATED)
    replay.save(tmp_path / "x.npy")
    again.load(tmp_path / "x.npy", worker=1)
    assert content(again, 0)[1] == content(replay, 0)[1]


def test_numpy_opens_it_with_one_call(tmp_path: Path) -> None:
    filled([3, 120]).save(tmp_path / "buffer.npy")
    rows = np.load(tmp_path / "buffer.npy", mmap_mode="r")
    kept = rows[rows["rlz.env"] == 1]
    assert rows["obs"].shape == (len(rows), 5)
    assert rows["pixels"].shape == (len(rows), 3, 2)
    assert kept["rlz.ticket"].tolist() == list(range(121 - len(kept), 121))
    assert (kept["rlz.version"] == kept["rlz.ticket"]).all()
    assert (kept["reward"] == 1000 + kept["rlz.ticket"]).all()
    assert (kept["pixels"][:, 2, 1] == kept["reward"] % 256).all()
    assert rows.offset % 64 == 0
    with pytest.raises(ValueError, match="read-only"):
        rows["reward"][0] = 1


def test_every_dtype_and_odd_names_reach_numpy(tmp_path: Path) -> None:
    fields = [(f"{dtype}.a'\\\n\u00e9\U0001f40d", dtype, (2, 1)) for dtype in DTYPES]
    replay = make(1, fields=fields)
    packed = np.random.default_rng(0).integers(0, 2, replay.stride, np.uint8)
    replay.writer([0], worker=1).append_packed(0, packed, version=0)
    replay.save(tmp_path / "x.npy")
    rows = np.load(tmp_path / "x.npy", mmap_mode="r")
    for (name, _, _, offset), kind in zip(replay.fields, NUMPY, strict=True):
        assert rows[name].dtype == np.dtype(kind)
        assert rows[name].tobytes() == packed[offset : offset + 2 * np.dtype(kind).itemsize].tobytes()


def test_many_fields_take_a_longer_header(tmp_path: Path) -> None:
    fields = [(f"{index:0200}", "u8", ()) for index in range(400)]
    replay, again = make(1, fields=fields), make(1, fields=fields)
    replay.writer([0], worker=1).append_packed(0, np.ones(replay.stride, np.uint8), version=0)
    replay.save(tmp_path / "x.npy")
    rows = np.load(tmp_path / "x.npy", mmap_mode="r", max_header_size=1_000_000)
    assert all(rows[name] == 1 for name, _, _ in fields)
    assert again.load(tmp_path / "x.npy", worker=1) == 1


def test_an_empty_buffer_is_saved_too(tmp_path: Path) -> None:
    assert make().save(tmp_path / "x.npy") == 0
    assert len(np.load(tmp_path / "x.npy", mmap_mode="r")) == 0
    assert make().load(tmp_path / "x.npy", worker=1) == 0


def test_parts_make_a_whole(tmp_path: Path) -> None:
    replay, again = filled([40, 20]), make()
    parts = [(0, 1, 15), (0, 16, 40), (1, 5, 20)]
    paths = [tmp_path / f"{number}.npy" for number in range(3)]
    for path, part in zip(paths, parts, strict=True):
        assert replay.save(path, ranges=[part]) == part[2] - part[1] + 1
    assert again.load(paths, worker=1) == 56
    assert content(again, 0)[0] == content(replay, 0)[0]
    assert content(again, 1)[0] == content(replay, 1)[0][4:]
    for wrong, message in [(paths[1::-1], "out of order"), ([paths[0], paths[0]], "twice"), ([], "paths: given none")]:
        with pytest.raises((TransportError, ValueError), match=message):
            make().load(wrong, worker=1)


@pytest.mark.parametrize("lanes", [1, 3])
def test_other_numbers_of_lanes_get_rows_in_order_of_age(tmp_path: Path, lanes: int) -> None:
    filled([6, 2]).save(tmp_path / "x.npy")
    again = make(lanes)
    assert again.load(tmp_path / "x.npy", worker=1) == 8
    order = [1, 2, 3, 4, 5, 1001, 6, 1002]
    for lane in range(lanes):
        assert content(again, lane)[0] == order[lane::lanes]
    cut = [value for lane in range(lanes) for value, meta in zip(*content(again, lane), strict=True) if int(meta) & 2]
    assert sorted(cut) == [6, 1002], "the newest of each lane that was saved"


def test_what_is_saved_beside_a_writer_is_whole(tmp_path: Path) -> None:
    replay = make(1, 200)
    end = threading.Event()

    def write() -> None:
        writer, ticket = replay.writer([0], worker=2), 0
        while not end.is_set():
            ticket += 1
            writer.append(0, row(ticket), version=ticket)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        while replay.committed()[0] < 1_000:
            time.sleep(0.01)
        saved = []
        for number in range(50):
            replay.save(tmp_path / "x.npy")
            rows = np.load(tmp_path / "x.npy")
            assert (rows["reward"] == rows["rlz.ticket"]).all()
            assert (rows["obs"] == rows["reward"][:, None].astype(np.float32)).all()
            assert (np.diff(rows["rlz.ticket"].astype(np.int64)) > 0).all()
            assert make(1).load(tmp_path / "x.npy", worker=1) == len(rows), number
            saved.append(int(rows["rlz.ticket"][-1]) if len(rows) else 0)
    finally:
        end.set()
        thread.join()
    assert max(saved) > saved[0]  # a copy that the writer laps is empty


def test_a_failure_leaves_the_older_file(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    filled([3, 3]).save(path)
    before = path.read_bytes()
    larger = filled([90, 90], 200)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before), limits[1]))
    try:
        with pytest.raises(OSError, match=r"File too large: .*x\.npy"):
            larger.save(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(FileNotFoundError, match="nowhere"):
        filled([1]).save(tmp_path / "nowhere" / "x.npy")
    with pytest.raises(FileNotFoundError, match="absent"):
        make().load(tmp_path / "absent", worker=1)


SAVES_FOR_EVER = """
import sys
from rlz.transport import Replay
replay = Replay.create([("x", "u64", (512,))], buffer_size=2000, lanes=1, run_id=1)
writer = replay.writer([0], worker=1)
import numpy as np
number = 0
while True:
    number += 1
    for _ in range(100):
        writer.append(0, (np.full(512, number, np.uint64),), version=number)
    replay.save(sys.argv[1])
    print(number, flush=True)
"""


def test_a_kill_leaves_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    for _ in range(5):
        process = subprocess.Popen([sys.executable, "-c", SAVES_FOR_EVER, str(path)], stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(random.uniform(0, 0.1))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        replay = Replay.create([("x", "u64", (512,))], buffer_size=2000, lanes=1, run_id=1)
        assert replay.load(path, worker=1) == len(np.load(path, mmap_mode="r")) > 0
        replay.close()


def test_bad_ranges_and_names(tmp_path: Path) -> None:
    replay = filled([5, 5])
    for ranges, message in [([(2, 1, 5)], "lane"), ([(0, 0, 5)], "ranges"), ([(0, 5, 4)], "ranges: given 5 to 4")]:
        with pytest.raises(ValueError, match=message):
            replay.save(tmp_path / "x.npy", ranges=ranges)
    with pytest.raises(ValueError, match=r"'?rlz\.flags.*taken"):
        make(fields=[("rlz.flags", "u8", ())]).save(tmp_path / "x.npy")
    assert not list(tmp_path.iterdir())


def test_other_layouts_are_shown_field_by_field(tmp_path: Path) -> None:
    filled([5, 5]).save(tmp_path / "x.npy")
    other = make(fields=[("obs", "f32", (6,)), FIELDS[1], ("reward", "f32", ()), ("done", "bool", ())])
    with pytest.raises(LayoutMismatchError) as caught:
        other.load(tmp_path / "x.npy", worker=1)
    for line in [
        r"x.npy does not fit (here: this buffer, there: the file)",
        "field 0: here obs f32[6] at byte 0, there obs f32[5] at byte 0",
        "field 2: here reward f32[] at byte 32, there reward f64[] at byte 32",
        "field 3: here done bool[] at byte 36, there nothing",
    ]:
        assert line in str(caught.value)
    assert other.committed() == [0, 0]


def test_owned_lanes_are_refused(tmp_path: Path) -> None:
    replay = filled([5, 5])
    replay.save(tmp_path / "x.npy")
    writer = replay.writer([1], worker=3)
    with pytest.raises(TransportError, match="lane 1 is owned by worker 3"):
        replay.load(tmp_path / "x.npy", worker=1)
    writer.close()
    assert replay.owners() == [0, 0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "it has 0 bytes"),
        (b"PK\x03\x04" + bytes(200), "cut short, or written by another program"),
        (bytes(31), "it has 31 bytes"),
        (b"[env]\nname = 1\n" * 20, "written by another program"),
    ],
)
def test_other_programs_files_are_named(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(TransportError, match=rf"x is not a usable saved replay buffer: .*{message}"):
        make().load(tmp_path / "x", worker=1)
    with pytest.raises(TransportError, match="not a regular file"):
        make().load(tmp_path, worker=1)
    np.save(tmp_path / "x.npy", np.zeros(100))
    with pytest.raises(TransportError, match="written by another program"):
        make().load(tmp_path / "x.npy", worker=1)


def test_every_cut_and_every_changed_byte_is_an_error(tmp_path: Path) -> None:
    filled([3, 2]).save(tmp_path / "whole.npy")
    whole = (tmp_path / "whole.npy").read_bytes()
    path, buffer = tmp_path / "x.npy", make()
    assert buffer.load(tmp_path / "whole.npy", worker=1) == 5
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        with pytest.raises(RlzError):
            buffer.load(path, worker=1)
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << at % 8)]) + whole[at + 1 :])
        with pytest.raises(RlzError):
            buffer.load(path, worker=1)
    path.write_bytes(whole + b"more")
    with pytest.raises(RlzError):
        buffer.load(path, worker=1)
    assert buffer.committed() == [3, 2], "nothing was appended"
