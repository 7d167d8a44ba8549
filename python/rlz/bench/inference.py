"""Workload `inference`: microseconds that a policy takes for one observation, for 16, and for 256 in one call.

The networks are those of the other workloads. rlz's policy runs in Rust, as in a sampler; a peer's is its own
`predict`, which copies, checks and scales as in its sampling. The limit is the products alone at the peak of a core.
"""

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rlz.bench.children import run_child
from rlz.bench.limits import PEAK, peak, products_of_action
from rlz.bench.result import Job, Outcome, Workload
from rlz.bench.train import START_LIMIT_S, TrainSettings, Variant, measure_peer, sizes

BATCHES = (1, 16, 256)
METRICS = tuple(f"act_{batch}_us" for batch in BATCHES)
CALLS = 20


def workload(settings: TrainSettings, peers: Sequence[str]) -> Workload:
    """What is measured; `seconds` of the settings are shared by the batches."""

    def ours(_: int) -> Outcome:
        command = [sys.executable, "-m", "rlz.bench.inference", json.dumps(asdict(settings))]
        return Outcome({"rlz": run_child(command, timeout=settings.seconds + START_LIMIT_S)})

    def limit(_: int) -> Outcome:
        obs, action = sizes(settings.env)
        per_s = peak()
        times = {
            f"act_{batch}_us": 1e6 * products_of_action(obs, action, settings.hidden, batch) / per_s
            for batch in BATCHES
        }
        return Outcome({PEAK: times})

    jobs = [Job("rlz", ours, needed=True), Job(PEAK, limit)]
    jobs += [_peer_job(library, settings) for library in peers]
    definition = {"env": settings.env, "algo": settings.algo, "hidden": list(settings.hidden)}
    return Workload("inference", jobs, METRICS, definition, dict.fromkeys(METRICS, PEAK))


def _peer_job(library: str, settings: TrainSettings) -> Job:
    def run(_: int) -> Outcome:
        obs, action = sizes(settings.env)
        variant = Variant(1, 1)
        result = measure_peer(library, variant, settings, "inference", obs=obs, action=action, batches=BATCHES)
        return Outcome({library: {name: result[name] for name in METRICS}}, {library: result["versions"]})

    return Job(library, run)


def measure(job: dict[str, Any]) -> dict[str, float]:
    """Microseconds of a call by batch size, in this process."""
    import numpy as np

    from rlz import envs
    from rlz.acting import make_policy
    from rlz.config import resolve
    from rlz.config.model import ask

    config = resolve(job["algo"], job["env"], {"hidden": tuple(job["hidden"])}, None)
    spec = envs.inspect_env(config, on_note=lambda _: None)
    acts = ask(config, spec).policy
    policy, rng = make_policy(acts, np.random.SeedSequence(1)), np.random.default_rng(1)
    sizes_ = [int(np.prod(shape)) for _, _, shape in acts.manifest]
    policy.load(rng.normal(0, 0.05, sum(sizes_)).astype(np.float32).view(np.uint8))
    found = {}
    for batch in BATCHES:
        obs = rng.normal(size=(batch, spec.obs_dim)).astype(np.float32)
        out = np.zeros((batch, spec.action_dim), spec.row_action_dtype)
        found[f"act_{batch}_us"] = per_call(lambda obs=obs, out=out: policy.act(obs, out, deterministic=True), job)
    return found


def per_call(call: Any, job: dict[str, Any]) -> float:
    """Microseconds of a call."""
    call()
    count, begin = 0, time.perf_counter()
    while (passed := time.perf_counter() - begin) < job["seconds"] / len(BATCHES):
        for _ in range(CALLS):
            call()
        count += CALLS
    return 1e6 * passed / count


if __name__ == "__main__":
    print(json.dumps(measure(json.loads(sys.argv[1]))))
