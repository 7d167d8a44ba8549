"""Rows of Pendulum-v1 that check themselves: each must be one step of the pendulum's own equations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlz._native import FLAG_FIRST, FLAG_TERMINATED, FLAG_TRUNCATED
from rlz.records.checkpoint import Checkpoint, newest_checkpoint
from rlz.records.replay_files import open_rows

TOLERANCE = 2e-3
"""Of float32 rows against float64 equations."""


def columns(checkpoint: Checkpoint, lane: int) -> tuple[dict[str, NDArray[Any]], NDArray[np.uint16]]:
    """Rows of a lane in order, by field, and their flags."""
    saved = checkpoint.replay
    assert saved is not None
    parts = open_rows(checkpoint.run_dir, saved.lanes[lane])
    rows = np.concatenate(parts)
    names = [name for name in rows.dtype.names or () if not name.startswith("rlz.")]
    assert all(rows[name].dtype == np.float32 for name in names)
    return {name: rows[name] for name in names}, rows["rlz.flags"]


def torn(rows: dict[str, NDArray[Any]], flags: NDArray[np.uint16], gamma: float = 0.99) -> int:
    """Number of rows that are not one step of Pendulum-v1, or do not go on where the row before ended."""
    obs, next_obs = rows["obs"].astype(float), rows["next_obs"].astype(float)
    force = np.clip(2.0 * rows["action"].astype(float)[:, 0], -2.0, 2.0)
    angle, speed = np.arctan2(obs[:, 1], obs[:, 0]), obs[:, 2]
    reward = -(angle**2 + 0.1 * speed**2 + 0.001 * force**2)
    new_speed = np.clip(speed + (15.0 * np.sin(angle) + 3.0 * force) * 0.05, -8.0, 8.0)
    new_angle = angle + new_speed * 0.05
    expected = np.stack([np.cos(new_angle), np.sin(new_angle), new_speed], axis=1)
    bad = np.abs(next_obs - expected).max(axis=1) > TOLERANCE
    # The angle is in [-pi, pi): next to its ends the reward may be that of the other end, which is the same.
    bad |= np.abs(rows["reward"].reshape(-1) - reward) > 20 * TOLERANCE
    bad |= np.abs(rows["discount"].reshape(-1) - gamma) > 1e-6
    bad |= (flags & FLAG_TERMINATED) != 0
    goes_on = ((flags[1:] & FLAG_FIRST) == 0) & ((flags[:-1] & FLAG_TRUNCATED) == 0)
    bad[1:] |= goes_on & (np.abs(obs[1:] - next_obs[:-1]).max(axis=1) > 1e-6)
    return int(bad.sum())


def check(run_dir: Path) -> dict[str, int]:
    """Check every saved row of the newest checkpoint of a run on Pendulum-v1 whose buffer never overflowed.

    Returns numbers: rows, rows beyond the env steps (a kill fell between row and step: stepped again), torn rows.
    """
    checkpoint = newest_checkpoint(run_dir)
    assert checkpoint.replay is not None
    counts = {"rows": 0, "rows_beyond_steps": -checkpoint.env_steps, "torn": 0}
    for lane, files in enumerate(checkpoint.replay.lanes):
        if not files:
            continue  # no row yet
        rows, flags = columns(checkpoint, lane)
        counts["rows"] += len(flags)
        counts["rows_beyond_steps"] += len(flags)
        counts["torn"] += torn(rows, flags)
    return counts
