"""A long run of SAC on Pendulum-v1 with restarts, evaluations and checkpoints: does anything grow?

    python benches/reliability/soak.py --minutes 60
    python benches/reliability/soak.py --plot benches/results/reliability_soak.csv     # draw it again

Every five seconds allocated and shared memory, descriptors and threads of every process go to a CSV (and resident
pages of libraries, which nobody fits a line to: the kernel takes them back and gives them again as it likes). After the
warm-up a straight line is fitted to each (over means of blocks, whose errors are nearly independent); its slope must be
0 within its 95 % interval, or too small to matter. A sampler is killed every minute: the line of samplers goes over all
their lives, each without its first seconds.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from job import ROOT, Job, fresh, kill, wait_for, write_result

from rlz.runtime.live import Live
from rlz.tracking.process import read_usage

OPTIONS: dict[str, Any] = {
    "env": "Pendulum-v1",
    "samplers": 2,
    "total_timesteps": 1_000_000_000,
    "buffer_size": 50_000,
    "hidden": 64,
    "replay_ratio": 0.25,
    "eval_every": 5000,
    "eval_episodes": 5,
    "checkpoint_every": 30,
}
FIELDS = ("anonymous_mib", "shared_mib", "descriptors", "threads")
SMALL = {"anonymous_mib": 1.0, "shared_mib": 1.0, "descriptors": 0.5, "threads": 0.5}
"""Slopes per hour that do not matter, whatever their interval says."""
BLOCKS = 20
SETTLING_S = 15.0
"""A process is left out for so long after its start."""

Sample = dict[str, Any]


def soak(folder: Path, minutes: float, every: float, kill_every: float, samples: list[Sample]) -> dict[str, Any]:
    """Run, kill, add to the samples; returns what the run says of itself."""
    job = Job(fresh(folder), OPTIONS)
    kills = 0
    try:
        with job.live() as live:
            _started(job, live)
            began = time.monotonic()
            next_kill = began + kill_every
            for number in range(int(60 * minutes / every)):
                time.sleep(max(0.0, began + number * every - time.monotonic()))
                assert job.process.poll() is None, job.text()
                live.refresh()
                samples += _sample(job, live, time.monotonic() - began)
                samplers = job.workers()["sampler"]
                if time.monotonic() >= next_kill and len(samplers) == OPTIONS["samplers"]:
                    while next_kill <= time.monotonic():  # one kill, not several at once, after a pause of the machine
                        next_kill += kill_every
                    kills += kill(samplers[kills % len(samplers)])
        job.process.send_signal(signal.SIGINT)
        status = job.wait(30)
        assert status == 130, job.text()
        assert not job.left()
        summary = job.summary()
        assert summary["restarts"] == kills, (summary["restarts"], kills)
    finally:
        job.close()
    kept = ("status", "env_steps", "updates", "restarts", "evaluations", "checkpoints", "rows_lost", "wall_s")
    return {name: summary[name] for name in kept}


def _started(job: Job, live: Live) -> None:
    def ready() -> bool:
        live.refresh()
        return live.limiter.updates > 100

    wait_for(ready, 120, job.describe)


def _sample(job: Job, live: Live, at: float) -> Iterator[Sample]:
    disk = _size_of_rows(job.run_dir / "replay") / 2**20
    for name, pid in [("controller", job.process.pid), *((w.name, w.pid) for w in live.workers())]:
        usage = read_usage(pid) if pid else None
        try:
            descriptors = len(list(Path(f"/proc/{pid}/fd").iterdir()))
        except OSError:
            continue
        if usage is not None:
            yield {
                "s": round(at, 2),
                "process": name,
                "pid": pid,
                "anonymous_mib": round(usage.anonymous / 2**20, 3),
                "file_mib": round(usage.file / 2**20, 3),
                "shared_mib": round(usage.shared / 2**20, 3),
                "descriptors": descriptors,
                "threads": usage.threads,
                "env_steps": live.limiter.env_steps,
                "replay_files_mib": round(disk, 2),
            }


def _size_of_rows(folder: Path) -> int:
    """Bytes of the saved rows; a file that the run removes meanwhile counts nothing."""
    size = 0
    for parent, _, names in os.walk(folder):  # which passes over folders that vanish
        for name in names:
            if name.startswith("rows-"):
                with contextlib.suppress(FileNotFoundError):
                    size += (Path(parent) / name).stat().st_size
    return size


def slopes(samples: list[Sample], warm_up: float) -> dict[str, dict[str, Any]]:
    """Slope per hour of each quantity by role, with its 95 % interval."""
    kept: dict[str, list[Sample]] = defaultdict(list)
    births: dict[int, float] = {}
    end = max(sample["s"] for sample in samples)
    for sample in samples:
        born = births.setdefault(sample["pid"], sample["s"])
        settled = sample["s"] - born >= SETTLING_S or born == samples[0]["s"]
        if sample["s"] >= warm_up * end and settled:
            kept[sample["process"].partition("-")[0]].append(sample)
    found: dict[str, dict[str, Any]] = {}
    for role, chosen in kept.items():
        found[role] = {}
        for name in FIELDS:
            hours = np.array([sample["s"] for sample in chosen]) / 3600
            found[role][name] = _slope(hours, np.array([sample[name] for sample in chosen], float), SMALL[name])
    return found


def _slope(hours: np.ndarray, values: np.ndarray, small: float) -> dict[str, Any]:
    edges = np.linspace(hours.min(), hours.max() + 1e-9, BLOCKS + 1)
    which = np.digitize(hours, edges) - 1
    blocks = [block for block in range(BLOCKS) if (which == block).any()]
    x = np.array([hours[which == block].mean() for block in blocks])
    y = np.array([values[which == block].mean() for block in blocks])
    if len(x) < 4:
        return {"mean": round(float(values.mean()), 3), "per_hour": None, "flat": None}
    slope, intercept = np.polyfit(x, y, 1)
    residual = y - (slope * x + intercept)
    error = np.sqrt((residual**2).sum() / (len(x) - 2) / ((x - x.mean()) ** 2).sum())
    half = _T95[min(len(x) - 2, len(_T95)) - 1] * error
    flat = abs(slope) <= half or abs(slope) + half <= small
    return {
        "mean": round(float(values.mean()), 3),
        "per_hour": round(float(slope), 4),
        "interval_95": [round(float(slope - half), 4), round(float(slope + half), 4)],
        "flat": bool(flat),
    }


_T95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13, 2.12, 2.11, 2.10)
"""Two-sided 95 % points of Student's t for 1, 2, ... degrees of freedom."""


# Drawing

_COLOURS = ("#4269d0", "#efb118", "#ff725c", "#3ca951", "#a463f2", "#6cc5b0")
_TITLES = {
    "anonymous_mib": "allocated (anonymous) memory, MiB",
    "shared_mib": "resident shared memory, MiB",
    "descriptors": "open descriptors",
    "threads": "threads",
}
_WIDTH, _HEIGHT, _LEFT, _TOP, _GAP = 860, 150, 60, 34, 54


def draw(samples: list[Sample], path: Path) -> None:
    """Four panels over time, one colour per process; a dot per sample, because restarts break lines."""
    names = list(dict.fromkeys(sample["process"] for sample in samples))
    end = max(sample["s"] for sample in samples) or 1.0
    height = _TOP + len(FIELDS) * (_HEIGHT + _GAP) + 10
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" '
        f'font-size="12"><rect width="100%" height="100%" fill="white"/>'
    ]
    for number, name in enumerate(names):
        x = _LEFT + 140 * number
        parts.append(f'<circle cx="{x}" cy="14" r="4" fill="{_COLOURS[number % len(_COLOURS)]}"/>')
        parts.append(f'<text x="{x + 8}" y="18">{name}</text>')
    for panel, field in enumerate(FIELDS):
        parts += _panel(samples, field, names, end, _TOP + 16 + panel * (_HEIGHT + _GAP))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([*parts, "</svg>"]) + "\n")


def _panel(samples: list[Sample], field: str, names: list[str], end: float, top: float) -> Iterator[str]:
    highest = 1.08 * max(float(sample[field]) for sample in samples) or 1.0
    right = _WIDTH - 20
    yield f'<text x="{_LEFT}" y="{top - 6}" font-weight="bold">{_TITLES[field]}</text>'
    for tick in range(5):
        y = top + _HEIGHT * (1 - tick / 4)
        yield f'<line x1="{_LEFT}" x2="{right}" y1="{y}" y2="{y}" stroke="#ddd"/>'
        yield f'<text x="{_LEFT - 6}" y="{y + 4}" text-anchor="end">{highest * tick / 4:.4g}</text>'
    for tick in range(7):
        x = _LEFT + (right - _LEFT) * tick / 6
        label = f"{end / 60 * tick / 6:.3g}" + (" min" if tick == 6 else "")
        yield f'<text x="{x}" y="{top + _HEIGHT + 16}" text-anchor="middle">{label}</text>'
    for number, name in enumerate(names):
        dots = "".join(
            f"M{_LEFT + (right - _LEFT) * sample['s'] / end:.1f} {top + _HEIGHT * (1 - sample[field] / highest):.1f}h0"
            for sample in samples
            if sample["process"] == name
        )
        colour = _COLOURS[number % len(_COLOURS)]
        yield f'<path d="{dots}" stroke="{colour}" stroke-width="2.4" stroke-linecap="round" fill="none"/>'


def write_csv(samples: list[Sample], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(samples[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(samples)


def read_csv(path: Path) -> list[Sample]:
    with path.open(newline="") as file:
        return [
            {key: value if key == "process" else float(value) for key, value in row.items()}
            for row in csv.DictReader(file)
        ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--every", type=float, default=5.0, help="seconds between samples")
    parser.add_argument("--kill-every", type=float, default=60.0, help="seconds between kills of a sampler")
    parser.add_argument("--warm-up", type=float, default=0.2, help="share of the time that no line is fitted to")
    parser.add_argument("--plot", help="draw the samples of this CSV and stop")
    parser.add_argument("--svg", default=str(ROOT / "docs" / "bench" / "soak.svg"))
    parser.add_argument("--output")
    given = parser.parse_args()
    if given.plot:
        samples = read_csv(Path(given.plot))
        draw(samples, Path(given.svg))
        print(slopes(samples, given.warm_up))
        return
    folder = Path(tempfile.mkdtemp(prefix="rlz-soak-"))
    samples = []
    try:
        run = soak(folder / "soak", given.minutes, given.every, given.kill_every, samples)
    except BaseException:
        if samples:
            write_csv(samples, folder / "samples.csv")
        print(f"the run and its samples are kept in {folder}", file=sys.stderr)
        raise
    shutil.rmtree(folder)
    settings = {"minutes": given.minutes, "every": given.every, "kill_every": given.kill_every, "options": OPTIONS}
    results = {"run": run, "slopes": slopes(samples, given.warm_up), "samples": len(samples)}
    path = write_result("reliability_soak", settings, results, given.output)
    write_csv(samples, path.with_suffix(".csv"))
    draw(samples, Path(given.svg))


if __name__ == "__main__":
    main()
