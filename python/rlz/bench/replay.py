"""Workload `replay`: the replay buffer alone, full, one million rows of the environment's layout, one thread.

rlz and plain numpy (`take` of the same rows, nothing checked, one process only) take turns in one process; peers run
their own buffer in theirs. Rates are rows per second.
"""

import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from rlz.bench.children import run_child
from rlz.bench.environments import PEERS, peer_python
from rlz.bench.result import Job, Outcome
from rlz.bench.train import PEER_SCRIPT

BATCHES = (256, 8192)
ROWS = 1_000_000
METRICS: tuple[str, ...] = ("append", *(f"sample_{batch}" for batch in BATCHES))


def jobs(env: str, seconds: float, peers: Sequence[str], rows: int = ROWS) -> list[Job]:
    """The jobs of this workload; `seconds` are shared by the measurements of a round."""
    each = max(0.2, seconds / 8)

    def rlz(_: int) -> Outcome:
        job = {"env": env, "seconds": each, "rows": rows}
        result = run_child([sys.executable, "-m", "rlz.bench.replay", json.dumps(job)], timeout=20 * seconds + 120)
        return Outcome({side: result[side] for side in ("rlz", "numpy")}, facts={"row_bytes": result["row_bytes"]})

    found = [Job("rlz and numpy", rlz, needed=True)]
    # SBX samples from SB3's buffer.
    for library in dict.fromkeys("sb3" if peer == "sbx" else peer for peer in peers):
        found.append(_peer_job(library, env, each, rows))
    return found


def _peer_job(library: str, env: str, seconds: float, rows: int) -> Job:
    python = peer_python(library)

    def run(_: int) -> Outcome:
        from rlz import envs
        from rlz.config import resolve

        spec = envs.inspect_env(resolve("sac", env, {}, None), on_note=lambda _: None)
        job = {
            "job": "replay", "threads": 1, "obs_dim": spec.obs_dim, "action_dim": spec.action_dim, "buffer_size": rows,
            "seed": 1, "batches": BATCHES, "seconds": seconds, "recorded": PEERS[library].recorded,
        }  # fmt: skip
        result = run_child([python, PEER_SCRIPT, json.dumps(job)], timeout=20 * seconds + 120)
        return Outcome({library: {metric: result[metric] for metric in METRICS}}, {library: result["versions"]})

    return Job(library, run)


def measure(env: str, seconds: float, rows: int = ROWS, turns: int = 3) -> dict[str, Any]:
    """Measure in this process; `seconds` for each side of each rate, in `turns` turns."""
    import numpy as np

    from rlz import envs
    from rlz._native import Replay
    from rlz.config import resolve

    spec = envs.inspect_env(resolve("sac", env, {}, None), on_note=lambda _: None)
    replay = Replay.create(spec.fields(), buffer_size=rows, lanes=1, run_id=1)
    rng = np.random.default_rng(1)
    stride = replay.stride
    chunk = np.zeros((65536, stride // 4), np.float32)
    chunk[:] = rng.standard_normal(chunk.shape[1], dtype=np.float32)
    packed, meta = chunk.view(np.uint8), np.zeros(len(chunk), np.uint64)
    for start in range(0, rows, len(chunk)):
        count = min(len(chunk), rows - start)
        replay.restore_rows(0, packed[:count], meta[:count], worker=1)
    writer = replay.writer([0], worker=2)
    sampler = replay.sampler(seed=[1, 2, 3, 4])
    obs, action = np.ones(spec.obs_shape, spec.obs_dtype), np.ones(spec.action_dim, np.float32)
    # The same row as a numpy structure, for the loop without a transport.
    shapes: dict[str, Any] = {
        "obs": obs,
        "action": action,
        "next_obs": obs,
        "reward": np.float32(0),
        "discount": np.float32(0),
    }
    layout = np.dtype(
        {
            "names": list(shapes),
            "formats": [(value.dtype, value.shape) for value in shapes.values()],
            "offsets": [offset for *_, offset in replay.fields],
            "itemsize": stride,
        }
    )
    columns = np.zeros(rows, layout)
    table = columns.view(np.float32).reshape(rows, stride // 4)
    table[:] = chunk[0]

    def rlz_append() -> int:
        for _ in range(100):
            writer.append(0, (obs, action, obs, 1.0, 0.99), version=1, flags=0)
        return 100

    def numpy_append() -> int:
        for index in range(100):
            columns["obs"][index] = obs
            columns["action"][index] = action
            columns["next_obs"][index] = obs
            columns["reward"][index] = 1.0
            columns["discount"][index] = 0.99
        return 100

    def rlz_sample(batch: int) -> Callable[[], int]:
        out = np.zeros((batch, stride), np.uint8)

        def call() -> int:
            sampler.sample(out)
            return batch

        return call

    def numpy_sample(batch: int) -> Callable[[], int]:
        out = np.zeros((batch, stride // 4), np.float32)

        def call() -> int:
            # mode="clip" writes into `out` directly; the default copies once more.
            np.take(table, rng.integers(0, rows, batch), axis=0, out=out, mode="clip")
            return batch

        return call

    calls = {
        "rlz": {"append": rlz_append, **{f"sample_{batch}": rlz_sample(batch) for batch in BATCHES}},
        "numpy": {"append": numpy_append, **{f"sample_{batch}": numpy_sample(batch) for batch in BATCHES}},
    }
    rates: dict[str, Any] = {side: {} for side in calls}
    for metric in METRICS:
        found: dict[str, list[float]] = {side: [] for side in calls}
        for _ in range(turns):
            for side, by_metric in calls.items():
                found[side].append(rate(by_metric[metric], seconds / turns))
        for side, values in found.items():
            rates[side][metric] = sorted(values)[turns // 2]
    writer.close()
    replay.close()
    return {**rates, "row_bytes": stride}


def rate(call: Callable[[], int], seconds: float) -> float:
    """Rows per second of `call`, which returns how many rows it handled; one call warms up."""
    call()
    rows, begin = 0, time.perf_counter()
    while True:
        rows += call()
        passed = time.perf_counter() - begin
        if passed >= seconds:
            return rows / passed


if __name__ == "__main__":
    print(json.dumps(measure(**json.loads(sys.argv[1]))))
