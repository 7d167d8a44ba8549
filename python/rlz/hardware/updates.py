"""Child process of `rlz profile`: SAC updates per second by device, executor and thread count. Imports torch.

Prints one JSON object per line as soon as it is known, so that the parent can end it at any time.
"""

import json
import sys
import time
from typing import Any

BATCH_SIZE = 256


def main(env: str, threads: list[int], seconds: float) -> None:
    """Measure everything that is planned, eager before compiled."""
    import torch

    from rlz import envs
    from rlz.algorithms.sac import Sac
    from rlz.config import resolve
    from rlz.workers.execution.executors import InPlaceUpdate

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
    # One program for all thread counts: without this, the count at compile time is built in.
    torch._inductor.config.cpp.dynamic_threads = True
    compiled: dict[str, Any] = {}
    for device, executor, count in plan:
        torch.set_num_threads(count)
        generator = torch.Generator().manual_seed(1)
        state = type(initial := algorithm.init(generator))(*(tensor.to(device) for tensor in initial))
        batch = random_batch(env_spec.obs_dim, env_spec.action_dim, generator, device)
        update: Any = InPlaceUpdate(algorithm)
        if executor == "compiled":
            update = compiled.setdefault(device, torch.compile(update, fullgraph=True, dynamic=False))
        say(
            {"device": device, "executor": executor, "threads": count, **rate(update, algorithm, state, batch, seconds)}
        )


def random_batch(obs_dim: int, action_dim: int, generator: Any, device: str) -> Any:
    """Transitions of normal observations and uniform actions: `Batch` of `BATCH_SIZE` rows on a device."""
    import torch

    from rlz.algorithms.base import Batch

    columns = (
        torch.randn(BATCH_SIZE, obs_dim, generator=generator),
        torch.rand(BATCH_SIZE, action_dim, generator=generator) * 2 - 1,
        torch.randn(BATCH_SIZE, obs_dim, generator=generator),
        torch.randn(BATCH_SIZE, generator=generator),
        torch.full((BATCH_SIZE,), 0.99),
    )
    return Batch(*(column.to(device) for column in columns))


def rate(update: Any, algorithm: Any, state: Any, batch: Any, seconds: float) -> dict[str, float]:
    """Updates per second over a window, and the seconds of the first three (compilation included)."""
    import torch

    device = batch.obs.device
    learning_rate = torch.tensor(3e-4, device=device)
    shape = algorithm.noise_shape(BATCH_SIZE)

    def run(most: int, until: float) -> int:
        done = 0
        while done < most and time.perf_counter() < until:
            update(state, batch, torch.randn(shape, device=device), learning_rate)
            done += 1
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return done

    begin = time.perf_counter()
    run(3, float("inf"))
    first = time.perf_counter() - begin
    begin = time.perf_counter()
    updates = run(10**9, begin + seconds)
    per_second = updates / (time.perf_counter() - begin)
    return {"updates_per_s": per_second, "frames_per_s": per_second * BATCH_SIZE, "first_updates_s": first}


def say(line: dict[str, Any]) -> None:
    """Print a line at once."""
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
