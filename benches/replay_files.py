"""Saving and loading a replay buffer of a million Ant-v4 rows, beside numpy and beside bare writing of the same bytes.

    python benches/replay_files.py                     # writes benches/results/replay_files.json

All sides take turns in one process, in the same folder, and bring what they write to the disk (fsync). Files are read
right after they were written, from the page cache: what is compared is the work, not the disk. `numpy` saves a
structured array that is in memory already, and its load checks nothing; `bytes` writes and reads without any format.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from rich.console import Console

from rlz.bench.report import show, to_json
from rlz.bench.result import Job, Outcome, Workload, run_rounds
from rlz.system.detect import detect
from rlz.transport import Replay

FIELDS = [
    ("obs", "f32", (27,)),
    ("action", "f32", (8,)),
    ("next_obs", "f32", (27,)),
    ("reward", "f32", ()),
    ("discount", "f32", ()),
]
ROOT = Path(__file__).parents[1]


def seconds(work: Callable[[], object]) -> float:
    """Time one call."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def written(path: Path, write: Callable[..., object]) -> None:
    """Write a new file and bring it to the disk."""
    with path.open("wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())


def jobs(folder: Path, rows: int, lanes: int) -> list[Job]:
    """One job per side; each saves and loads once per round and gives million rows per second."""
    replay = Replay.create(FIELDS, buffer_size=rows, lanes=lanes, run_id=1)
    packed = np.random.default_rng(1).integers(0, 256, (rows // lanes, replay.stride), np.uint8)
    for lane in range(lanes):
        replay.restore_rows(lane, packed, np.zeros(len(packed), np.uint64), worker=1)
    rlz, plain, raw = folder / "rlz.npy", folder / "numpy.npy", folder / "bytes"
    replay.save(rlz)
    records = np.load(rlz)
    into = np.empty_like(records)

    def measured(name: str, path: Path, save: Callable[[], object], load: Callable[[], object]) -> Outcome:
        path.unlink(missing_ok=True)
        os.sync()
        rates = {"save": rows / 1e6 / seconds(save), "load": rows / 1e6 / seconds(load)}
        path.unlink()
        return Outcome({name: rates}, facts={f"{name}_bytes": records.nbytes})

    def load_rlz() -> None:
        assert target.load(rlz, worker=1) == rows

    target = Replay.create(FIELDS, buffer_size=rows, lanes=lanes, run_id=2)
    return [
        Job("rlz", lambda _: measured("rlz", rlz, lambda: replay.save(rlz), load_rlz), needed=True),
        Job(
            "numpy",
            lambda _: measured(
                "numpy",
                plain,
                lambda: written(plain, lambda file: np.save(file, records)),
                lambda: np.load(plain),
            ),
        ),
        Job(
            "bytes",
            lambda _: measured(
                "bytes",
                raw,
                lambda: written(raw, lambda file: file.write(records.view(np.uint8).data)),
                lambda: raw.open("rb", buffering=0).readinto(into.view(np.uint8).data),
            ),
        ),
    ]


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--lanes", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", type=Path, help="on the disk to be measured (default: the system's temporary one)")
    parser.add_argument("--output", type=Path, default=ROOT / "benches" / "results" / "replay_files.json")
    options = parser.parse_args()
    begin = time.perf_counter()
    load = os.getloadavg()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        work = jobs(Path(folder), options.rows, options.lanes)
        result = run_rounds(work, options.rounds, print)
    definition = {"env": "Ant-v4", "rows": options.rows, "lanes": options.lanes}
    report = to_json(
        [(Workload("replay_files (million rows/s)", work, ("save", "load"), definition), result)],
        settings={"rounds": options.rounds, "load_before": load},
        machine=detect().to_json(),
        command=" ".join(["python benches/replay_files.py", *sys.argv[1:]]),
        seconds=time.perf_counter() - begin,
    )
    show(report, Console())
    options.output.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
