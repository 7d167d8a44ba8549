"""Workload `replay`: the replay buffer alone, full, one million rows of the environment's layout.

Uniform and prioritised sampling (with the update of the priorities), appends, and uniform sampling at other capacities.
rlz and plain numpy take turns in one process, with a second process writing; peers run their own buffer in theirs,
without a writer. Rates are rows per second.
"""

import json
import sys
from collections.abc import Sequence

from rlz.bench.capacity import CAPACITIES, metric
from rlz.bench.children import run_child
from rlz.bench.core import core_job
from rlz.bench.environments import PEER_SCRIPTS, PEERS, peer_python
from rlz.bench.result import Job, Outcome, Workload

BATCHES = (256, 8192)
ROWS, QUICK_ROWS = 1_000_000, 200_000
DTYPES = ("f32", "f64")
METRICS: tuple[str, ...] = (
    *(f"sample_{batch}" for batch in BATCHES),
    *(f"sample_{batch}_2_threads" for batch in BATCHES),
    *(f"sample_{batch}_f64" for batch in BATCHES),
    *(f"prioritized_{batch}" for batch in BATCHES),
    "append_us",
    "append_16_us",
    *(metric(rows, batch) for batch in BATCHES for rows in CAPACITIES),
)

QUICK = ("sample_256", "sample_8192", "prioritized_256", "append_us")

SIDES = ("rlz", "numpy", "memcpy")
LIMITS = {f"sample_{batch}{suffix}": "memcpy" for batch in BATCHES for suffix in ("", "_f64")}


def workload(env: str, seconds: float, peers: Sequence[str], *, quick: bool = False) -> Workload:
    """What is measured; `seconds` are shared by the measurements of one process. `quick`: the common figures alone."""
    rows = QUICK_ROWS if quick else ROWS
    definition = {"env": env, "rows": rows, "batches": list(BATCHES)}
    return Workload("replay", jobs(env, seconds, peers, rows, quick), QUICK if quick else METRICS, definition, LIMITS)


def jobs(env: str, seconds: float, peers: Sequence[str], rows: int, quick: bool) -> list[Job]:
    """Ours, the core's, and those of each peer."""
    each = max(0.2, seconds / 10)
    common = {"env": env, "batches": BATCHES, "seconds": each}
    timeout = 20 * seconds + 300

    def ours(name: str, module: str, job: dict[str, object]) -> Job:
        def run(_: int) -> Outcome:
            result = run_child([sys.executable, "-m", module, json.dumps(job)], timeout=timeout)
            return Outcome({side: result[side] for side in SIDES if side in result})

        return Job(name, run, needed=True)

    dtypes = DTYPES[:1] if quick else DTYPES
    found = [
        ours(f"rlz and numpy, {dtype}", "rlz.bench.buffers", {**common, "dtype": dtype, "rows": rows})
        for dtype in dtypes
    ]
    if not quick:
        found += [ours("rlz and numpy, capacities", "rlz.bench.capacity", common), core_job("replay", each)]
    for library in peers:
        found += [_peer_job(library, dtype, {**common, "rows": rows}, timeout) for dtype in dtypes]
    return found


def _peer_job(library: str, dtype: str, common: dict[str, object], timeout: float) -> Job:
    def run(_: int) -> Outcome:
        from rlz.bench.buffers import fields_of

        fields = fields_of(str(common["env"]), dtype)
        job = {**common, "library": library, "dtype": dtype, "fields": fields, "recorded": PEERS[library].recorded}
        result = run_child([peer_python(library), PEER_SCRIPTS / "buffers.py", json.dumps(job)], timeout=timeout)
        return Outcome({library: result["metrics"]}, {library: result["versions"]})

    return Job(f"{library}, {dtype}", run)
