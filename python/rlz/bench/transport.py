"""Workload `transport`: the trajectory queue and the parameter store, between processes.

Metrics:
- messages_S, messages_S_2_to_1: messages/s of S bytes, from one producer (two) to one consumer.
- latency_sleep_us, latency_spin_us: from before the put of 19 kB until its content is in arrays of the consumer, which
  sleeps, or polls; median.
- parameters_S_us: from before a publication of S bytes until a reader has its private copy; median over two readers.

`rlz` copies in and out (`put`, `pop_batch`), as all peers do. `rlz in place` is written in the slot and read there:
every cache line is looked at once. `memcpy` is one copy of the same bytes inside one process: from one place to
another, or round sixteen places as in the queue. `core` and `hand-over` are threads without Python (see `core`).
"""

import json
import sys
from collections.abc import Sequence
from typing import Any

from rlz.bench.children import run_child
from rlz.bench.core import core_job
from rlz.bench.environments import PEER_SCRIPTS, PEERS, peer_python
from rlz.bench.messages import LATENCY_SIZE, LAYOUTS, SLOTS
from rlz.bench.result import Job, Outcome, Workload
from rlz.bench.versions import READERS, SIZES

METRICS: tuple[str, ...] = (
    *(f"messages_{size}" for size in LAYOUTS),
    f"messages_{LATENCY_SIZE}_2_to_1",
    "latency_sleep_us",
    "latency_spin_us",
    *(f"parameters_{size}_us" for size in SIZES),
)


LIMITS = {f"messages_{size}": "memcpy: one place" for size in LAYOUTS}
QUICK = (*list(LIMITS)[:2], "latency_sleep_us", f"parameters_{next(iter(SIZES))}_us")


def workload(seconds: float, peers: Sequence[str], *, quick: bool = False) -> Workload:
    """What is measured; `seconds` are shared by the measurements of a contender. `quick`: the common figures alone."""
    definition = {"messages": list(LAYOUTS), "slots": SLOTS, "parameters": list(SIZES), "readers": READERS}
    return Workload("transport", jobs(seconds, peers, quick), QUICK if quick else METRICS, definition, LIMITS)


def jobs(seconds: float, peers: Sequence[str], quick: bool) -> list[Job]:
    """Ours, the core's, and those of each peer."""
    each = max(0.2, seconds / 8)
    timeout = 20 * seconds + 120

    def ours(name: str, module: str, job: dict[str, Any]) -> Job:
        def run(_: int) -> Outcome:
            result = run_child([sys.executable, "-m", module, json.dumps({**job, "seconds": each})], timeout=timeout)
            return Outcome({name: result})

        return Job(f"{name}, {module.rpartition('.')[2]}", run, needed=name == "rlz")

    queues = ("rlz", "memcpy: one place", "mp.Queue", *(() if quick else ("rlz in place", "memcpy: 16 places")))
    stores = ("rlz", "lock and shared array", *(() if quick else ("mp.Queue",)))
    found = [ours(name, "rlz.bench.messages", {"contender": name}) for name in queues]
    found += [ours(name, "rlz.bench.versions", {"contender": name}) for name in stores]
    if not quick:
        found.append(core_job("transport", each))
    return found + [_peer_job(library, form, each, timeout) for library in peers for form in ("dict", "raw bytes")]


def _peer_job(library: str, form: str, seconds: float, timeout: float) -> Job:
    def run(_: int) -> Outcome:
        job = {
            "form": form, "seconds": seconds, "layouts": LAYOUTS, "latency_size": LATENCY_SIZE,
            "recorded": PEERS[library].recorded,
        }  # fmt: skip
        result = run_child([peer_python(library), PEER_SCRIPTS / "fifo.py", json.dumps(job)], timeout=timeout)
        return Outcome({f"{library}: {form}": result["metrics"]}, {library: result["versions"]})

    return Job(f"{library}: {form}", run)
