# Runs in the peers' environments, not where rlz is checked.
# mypy: ignore-errors
"""What adapters share: the window that is measured, copies of policies, and the line that is printed at the end.

An adapter is a program: `python ADAPTER.py JOB`, JOB a JSON object (`rlz.bench.train.measure_peer` writes it: workload,
env, seconds, threads, num_envs, batch_size, buffer_size, learning_starts, hidden, seed, ...). It prints one JSON object
as its last line: figures by name, and `versions` of the packages in `job["recorded"]`. It knows nothing of rlz.
"""

import importlib.metadata
import json
import sys
import time
from pathlib import Path

import numpy as np


class Window:
    """Looks at a run that trains: when it started, and its rates over some seconds after the warm-up."""

    def __init__(self, job):
        self.job = job
        self.found = {}
        self.begin = None
        self.end = None

    def goes_on(self, env_steps, updates):
        """Call it after every env step, or some; False once the window is over."""
        now, passed, job = time.perf_counter(), time.time() - self.job["began"], self.job
        soon = job.get("soon", 500)
        for name, there in (("first_env_step_s", env_steps), ("first_update_s", updates)):
            if there > 0:
                self.found.setdefault(name, passed)
        if env_steps >= soon and job["workload"] == "train":
            self.found.setdefault(f"steps_{soon}_s", passed)
        if self.begin is None:
            if env_steps >= job["learning_starts"] + job["warmup_steps"]:
                self.begin = (now, env_steps, updates)
            return True
        if now - self.begin[0] < job["seconds"]:
            return True
        self.end = (now, env_steps, updates)
        return False

    def figures(self):
        """All figures of the run."""
        seconds, steps, updates = (b - a for a, b in zip(self.begin, self.end, strict=True))
        rates = {"env_steps_per_s": steps / seconds, "updates_per_s": updates / seconds}
        return {**self.found, **rates, "window_s": seconds, "ratio": updates / steps}


class Copies:
    """Copies of a policy at even times, for the workload `score`."""

    def __init__(self, job):
        self.job = job
        self.number = 1

    def due(self):
        """Whether it is time for the next one."""
        return time.time() - self.job["began"] >= self.number * self.job["every"]

    def write(self, env_steps, layers):
        """Write (weight [out, in], bias) of each layer of the actor; False when the run is over."""
        seconds = time.time() - self.job["began"]
        arrays = {}
        for number, (weight, bias) in enumerate(layers):
            arrays |= {f"weight_{number}": weight, f"bias_{number}": bias}
        path = Path(self.job["folder"]) / f"{self.number:04}.npz"
        np.savez(path, seconds=seconds, env_steps=env_steps, **arrays)
        self.number = max(self.number + 1, int(seconds / self.job["every"]) + 1)
        return seconds < self.job["seconds"]


def rate(call, seconds):
    """Calls per second."""
    call()
    count, begin = 0, time.perf_counter()
    while (passed := time.perf_counter() - begin) < seconds:
        call()
        count += 1
    return count / passed


def main(measure):
    """Do the job of the command line and print its result."""
    job = json.loads(sys.argv[1])
    result = measure(job)
    versions = {}
    for package in job["recorded"]:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "missing"
    print(json.dumps({**result, "versions": versions}), flush=True)
