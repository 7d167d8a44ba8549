# The peers are not installed where rlz is checked.
# mypy: ignore-errors
# ruff: noqa: D102
"""Measures the replay buffer of a library, in the library's own environment; knows nothing of rlz.

    python buffers.py '{"library": "cpprb", "dtype": "f32", "rows": 1000000, "fields": [["obs", "f32", [27]], ...]}'

Prints one JSON object as its last line: rows/s of uniform and prioritised sampling (with the update of the priorities),
and microseconds per append. Fields are those of a transition: obs, action, next_obs, reward, discount.
"""

import importlib.metadata
import json
import sys
import time
import warnings

import numpy as np

MANY = 16
CHUNK = 10_000
CALLS = 20


class Sb3:
    """ReplayBuffer of one environment; of sixteen, where sixteen rows are appended. Has no priorities."""

    def __init__(self, rows, columns, prioritized, envs=1):
        import torch
        from gymnasium import spaces
        from stable_baselines3.common.buffers import ReplayBuffer

        torch.set_num_threads(1)
        obs, action = columns["obs"], columns["action"]
        self.buffer = ReplayBuffer(
            rows,
            spaces.Box(-np.inf, np.inf, obs.shape[1:], obs.dtype.type),
            spaces.Box(-1, 1, action.shape[1:], action.dtype.type),
            device="cpu",
            n_envs=envs,
            handle_timeout_termination=True,
        )
        for name in ("observations", "next_observations", "actions", "rewards"):
            getattr(self.buffer, name)[:] = 0.5
        self.buffer.full = True
        self.infos = [{} for _ in range(envs)]

    def add(self, columns, count):
        done = np.zeros(count, np.float32)
        self.buffer.add(columns["obs"], columns["next_obs"], columns["action"], columns["reward"], done, self.infos)

    def sample(self, batch):
        self.buffer.sample(batch)


class Cpprb:
    """ReplayBuffer and PrioritizedReplayBuffer."""

    def __init__(self, rows, columns, prioritized, envs=1):
        import cpprb

        kind = cpprb.PrioritizedReplayBuffer if prioritized else cpprb.ReplayBuffer
        layout = {name: {"shape": column.shape[1:] or 1, "dtype": column.dtype} for name, column in columns.items()}
        self.buffer = kind(rows, layout)
        fill(self, rows, columns)

    def add(self, columns, count):
        self.buffer.add(**columns)

    def sample(self, batch):
        self.buffer.sample(batch)

    def sample_and_update(self, batch, errors):
        drawn = self.buffer.sample(batch, beta=0.4)
        self.buffer.update_priorities(drawn["indexes"], errors)


class TorchRl:
    """TensorDictReplayBuffer and TensorDictPrioritizedReplayBuffer over a LazyTensorStorage."""

    def __init__(self, rows, columns, prioritized, envs=1):
        import torch
        from torchrl.data import LazyTensorStorage, TensorDictPrioritizedReplayBuffer, TensorDictReplayBuffer

        warnings.filterwarnings("ignore")
        torch.set_num_threads(1)
        storage = LazyTensorStorage(rows)
        if prioritized:
            self.buffer = TensorDictPrioritizedReplayBuffer(alpha=0.6, beta=0.4, storage=storage)
        else:
            self.buffer = TensorDictReplayBuffer(storage=storage)
        self.torch = torch
        fill(self, rows, columns)

    def add(self, columns, count):
        from tensordict import TensorDict

        rows = TensorDict({name: self.torch.from_numpy(column) for name, column in columns.items()}, [count])
        if count == 1:
            self.buffer.add(rows[0])
        else:
            self.buffer.extend(rows)

    def sample(self, batch):
        self.buffer.sample(batch)

    def sample_and_update(self, batch, errors):
        drawn = self.buffer.sample(batch)
        drawn["td_error"] = self.torch.from_numpy(errors)
        self.buffer.update_tensordict_priority(drawn)


LIBRARIES = {"sb3": Sb3, "cpprb": Cpprb, "torchrl": TorchRl}


def fill(library, rows, columns):
    """Fill a buffer, many rows at a time."""
    chunk = {name: np.repeat(column[:1], CHUNK, axis=0) for name, column in columns.items()}
    for start in range(0, rows, CHUNK):
        count = min(CHUNK, rows - start)
        library.add({name: column[:count] for name, column in chunk.items()}, count)


def measure(job):
    """All metrics that a library has, with the versions of the packages."""
    kind, dtype, rows, seconds = LIBRARIES[job["library"]], job["dtype"], job["rows"], job["seconds"]
    number = {"f32": np.float32, "f64": np.float64}[dtype]
    columns = {name: np.full((MANY, *shape), 0.5, number) for name, _, shape in job["fields"]}
    one = {name: column[:1] for name, column in columns.items()}
    suffix = "" if dtype == "f32" else "_f64"
    metrics = {}
    library = kind(rows, columns, prioritized=False)
    for batch in job["batches"]:
        metrics[f"sample_{batch}{suffix}"] = batch * rate(lambda batch=batch: library.sample(batch), seconds)
    if dtype == "f32":
        metrics["append_us"] = 1e6 / rate(lambda: library.add(one, 1), seconds)
        if kind is Sb3:
            del library
            library = kind(rows, columns, prioritized=False, envs=MANY)
        metrics["append_16_us"] = 1e6 / rate(lambda: library.add(columns, MANY), seconds)
        if hasattr(kind, "sample_and_update"):
            del library
            library = kind(rows, columns, prioritized=True)
            for batch in job["batches"]:
                errors = np.random.default_rng(1).exponential(1.0, batch).astype(np.float32)
                update = lambda batch=batch, errors=errors: library.sample_and_update(batch, errors)  # noqa: E731
                metrics[f"prioritized_{batch}"] = batch * rate(update, seconds)
    versions = {package: importlib.metadata.version(package) for package in job["recorded"]}
    return {"metrics": metrics, "versions": versions}


def rate(call, seconds):
    """Calls per second; some calls warm up."""
    for _ in range(3):
        call()
    done, begin = 0, time.perf_counter()
    while True:
        for _ in range(CALLS):
            call()
        done += CALLS
        passed = time.perf_counter() - begin
        if passed >= seconds:
            return done / passed


if __name__ == "__main__":
    print(json.dumps(measure(json.loads(sys.argv[1]))), flush=True)
