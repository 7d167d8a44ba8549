# Runs in an environment of its own, not where rlz is checked.
# mypy: ignore-errors
"""EnvPool: environments in C++ on a pool of threads, stepped with random actions: no policy, no buffer.

As many threads as cores. Where there are more environments than cores, its asynchronous way (`batch_size` of half of
them: the first that are ready) has half of the time beside the synchronous one, and the better one counts.
"""

import os
import time

import numpy as np
from adapter import main


def steps_per_s(job, batch):
    """Env steps per second of all environments together."""
    import envpool

    cores, count = len(os.sched_getaffinity(0)), job["num_envs"]
    envs = envpool.make(
        job["env"], env_type="gymnasium", num_envs=count, batch_size=batch, num_threads=min(cores, count), seed=1
    )
    rng, space = np.random.default_rng(1), envs.action_space
    actions = [rng.uniform(space.low, space.high, (batch, *space.shape)).astype(space.dtype) for _ in range(64)]
    envs.async_reset()
    done, begin = -64, time.perf_counter()
    while (passed := time.perf_counter() - begin) < job["seconds"] / 2:
        info = envs.recv()[-1]
        envs.send(actions[done % 64], info["env_id"])
        done += 1
        if done == 0:
            begin = time.perf_counter()
    return done * batch / passed


def sampling(job):
    """The better one of both."""
    count = job["num_envs"]
    found = {batch: steps_per_s(job, batch) for batch in sorted({count, max(1, count // 2)})}
    best = max(found, key=found.get)
    return {"env_steps_per_s": found[best], "batch_size": best}


if __name__ == "__main__":
    main(sampling)
