"""Workload `update`: updates per second of a learner that has nothing else to do, beside the peak of the cores.

An update is everything that a learner does for one: a batch is drawn and becomes tensors, noise, losses, gradients,
optimiser, targets, the look at whether all is finite. rlz's engine chooses executor and threads by itself as in
training, before the window that is measured; peers run their own `train`, with one thread and with two.
"""

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rlz.bench.children import run_child
from rlz.bench.limits import PEAK
from rlz.bench.result import Job, Outcome, Workload
from rlz.bench.train import (
    COMPILE_LIMIT_S,
    START_LIMIT_S,
    TrainSettings,
    Variant,
    measure_peer,
    most_updates,
    sizes,
    variants,
)

METRICS = ("updates_per_s", "first_update_s")
LIMITS = {"updates_per_s": PEAK}


def workload(settings: TrainSettings, peers: Sequence[str], cores: int, *, quick: bool = False) -> Workload:
    """What is measured."""

    def ours(_: int) -> Outcome:
        command = [sys.executable, "-m", "rlz.bench.updates", json.dumps({**asdict(settings), "began": time.time()})]
        result = run_child(command, timeout=settings.seconds + START_LIMIT_S)
        facts = {f"rlz {name}": result[name] for name in ("executor", "threads")}
        return Outcome({"rlz": {name: result[name] for name in METRICS}}, facts=facts)

    jobs = [Job("rlz", ours, needed=True)]
    limits = {}
    if settings.algo == "sac":
        jobs.append(Job(PEAK, lambda _: Outcome({PEAK: {"updates_per_s": most_updates(settings, cores)}})))
        limits = LIMITS
    for library in peers:
        alone = [variant for variant in variants(library, cores) if variant.num_envs == 1]
        jobs += [_peer_job(library, variant, settings) for variant in (alone[-1:] if quick else alone)]
    return Workload("update", jobs, METRICS, settings.definition(), limits)


def _peer_job(library: str, variant: Variant, settings: TrainSettings) -> Job:
    name = variant.name(library).removesuffix(", 1 env")

    def run(_: int) -> Outcome:
        obs, action = sizes(settings.env)
        result = measure_peer(library, variant, settings, "update", obs=obs, action=action)
        return Outcome({name: {metric: result[metric] for metric in METRICS}}, {library: result["versions"]})

    return Job(name, run)


def measure(job: dict[str, Any]) -> dict[str, Any]:
    """Updates per second in this process, once executor and threads are chosen."""
    import torch

    from rlz import envs
    from rlz.algorithms.registry import make_algorithm
    from rlz.bench.draws import Draw
    from rlz.config import resolve
    from rlz.learning.compiled import layouts
    from rlz.learning.engine import Engine, EnginePlan

    torch.set_flush_denormal(True)  # as a learner
    options = {"hidden": tuple(job["hidden"]), "batch_size": job["batch_size"]}
    config = resolve(job["algo"], job["env"], options, None)
    spec = envs.inspect_env(config, on_note=lambda _: None)
    algorithm = make_algorithm(config.algo, config.model_dump(), spec)
    draw = Draw(spec, job["batch_size"])
    engine = Engine(
        *(algorithm, algorithm.init(torch.Generator().manual_seed(1))),
        layout=layouts(draw().tensors()),
        device=torch.device("cpu"),
        seed=1,
        plan=EnginePlan(),
        log=lambda line: print(line, file=sys.stderr),
    )
    engine.start()
    try:
        engine.update(draw(), 3e-4)
        first = time.time() - job["began"]
        limit = time.monotonic() + COMPILE_LIMIT_S
        while not engine.settled and time.monotonic() < limit:
            engine.update(draw(), 3e-4)
        count, begin = 0, time.perf_counter()
        while (passed := time.perf_counter() - begin) < job["seconds"]:
            engine.update(draw(), 3e-4)
            count += 1
        engine.check()
        found = {"updates_per_s": count / passed, "first_update_s": first}
        return {**found, "executor": engine.executor, "threads": engine.threads}
    finally:
        engine.close()


if __name__ == "__main__":
    print(json.dumps(measure(json.loads(sys.argv[1]))))
