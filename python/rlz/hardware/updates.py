"""Child process of `rlz profile`: SAC updates per second by device, executor and thread count. Imports torch.

The batch is drawn from a small replay buffer as in training, so the compiled update is the one that `rlz train` loads,
and stays in its cache. Prints one JSON object per line as soon as it is known: the parent may end it at any time.
"""

import json
import sys
import time
from itertools import cycle
from typing import Any

BATCH_SIZE = 256
ROWS = 4096


def main(env: str, threads: list[int], seconds: float) -> None:
    """Measure everything that is planned, eager before compiled."""
    import torch

    from rlz import envs
    from rlz.algorithms.sac import Sac
    from rlz.config import resolve
    from rlz.workers.execution.compiled import Compilation, Job, kinds_of, layouts
    from rlz.workers.execution.executors import EagerExecutor

    config = resolve("sac", env, {"batch_size": BATCH_SIZE, "hidden": [256, 256]}, None)
    env_spec = envs.inspect_env(config, on_note=lambda _: None)
    algorithm = Sac.from_config(config, env_spec)
    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    plan = [
        (device, executor, count)
        for executor in ("eager", "compiled")
        for device in devices
        for count in (threads if device == "cpu" else [1])
    ]
    say({"plan": plan})
    draw = Draw(env_spec)
    executors: dict[tuple[str, str], Any] = {}
    for device, executor, count in plan:
        torch.set_num_threads(count)
        begin = time.perf_counter()
        if (device, executor) not in executors:
            if executor == "eager":
                executors[device, executor] = EagerExecutor(algorithm)
            else:
                job = Job(algorithm, layouts(draw(device).tensors()), device, kinds_of(algorithm.cycle))
                compilation = Compilation(job)
                compilation.start()
                compilation.finished(wait=True)
                if compilation.error is not None:
                    say({"error": f"updates cannot be compiled for {device}: {compilation.error}"})
                    break
                executors[device, executor] = compilation.load()
                compilation.close()
        initial = algorithm.init(torch.Generator().manual_seed(1))
        state = type(initial)(*(tensor.to(device) for tensor in initial))
        found = rate(executors[device, executor], algorithm, state, draw, device, seconds)
        ready = time.perf_counter() - begin - found.pop("window_s")
        say({"device": device, "executor": executor, "threads": count, **found, "ready_s": ready})


class Draw:
    """Draws batches from a small buffer of random rows (values in [-1, 1]) to a device, as the learner does."""

    def __init__(self, env_spec: Any) -> None:
        import numpy as np
        import torch

        from rlz._native import Replay
        from rlz.workers.execution.batches import Decoder

        replay = Replay.create(env_spec.fields(), buffer_size=ROWS, lanes=1, run_id=1)
        rows = np.zeros((ROWS, replay.stride), np.uint8)
        rng = np.random.default_rng(1)
        for name, dtype, shape, offset in replay.fields:
            if dtype == "f32":
                size = int(np.prod(shape, dtype=int))
                values = np.full((ROWS, size), 0.99) if name == "discount" else rng.uniform(-1, 1, (ROWS, size))
                rows[:, offset : offset + 4 * size] = values.astype(np.float32).view(np.uint8)
        replay.restore_rows(0, rows, np.zeros(ROWS, np.uint64), worker=1)
        self._sampler = replay.sampler(seed=[1, 2, 3, 4])
        self._decoder = Decoder(replay.fields)
        self._rows = torch.empty(BATCH_SIZE, replay.stride, dtype=torch.uint8)

    def __call__(self, device: str) -> Any:
        """A `Batch` of `BATCH_SIZE` rows."""
        self._sampler.sample(self._rows.numpy())
        return self._decoder(self._rows if device == "cpu" else self._rows.to(device))


def rate(update: Any, algorithm: Any, state: Any, draw: Draw, device: str, seconds: float) -> dict[str, float]:
    """Updates per second over a window, drawing the batches included; three updates warm up."""
    import torch

    learning_rate = torch.tensor(3e-4, device=device)
    failed = torch.zeros((), dtype=torch.int64, device=device)
    shape = algorithm.noise_shape(BATCH_SIZE)
    kinds = cycle(algorithm.cycle)

    def run(most: int, until: float) -> int:
        done = 0
        while done < most and time.perf_counter() < until:
            update(state, failed, draw(device), torch.randn(shape, device=device), learning_rate, next(kinds))
            done += 1
        if device != "cpu":
            torch.cuda.synchronize(device)
        return done

    run(3, float("inf"))
    begin = time.perf_counter()
    updates = run(10**9, begin + seconds)
    window = time.perf_counter() - begin
    per_second = updates / window
    return {"updates_per_s": per_second, "frames_per_s": per_second * BATCH_SIZE, "window_s": window}


def say(line: dict[str, Any]) -> None:
    """Print a line at once."""
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
