# Runs in an environment of its own, not where rlz is checked.
# mypy: ignore-errors
"""Gymnasium's vector environments, stepped with random actions: no policy, no buffer.

SyncVectorEnv (one process) and AsyncVectorEnv (a process for each environment, observations in shared memory) have half
of the time each, and the better one counts.
"""

import time

import numpy as np
from adapter import main


def steps_per_s(envs, count, seconds):
    """Env steps per second of all environments together."""
    envs.reset(seed=1)
    rng, space = np.random.default_rng(1), envs.single_action_space
    actions = [rng.uniform(space.low, space.high, (count, *space.shape)).astype(space.dtype) for _ in range(64)]
    for action in actions:
        envs.step(action)
    done, begin = 0, time.perf_counter()
    while (passed := time.perf_counter() - begin) < seconds:
        envs.step(actions[done % 64])
        done += 1
    envs.close()
    return done * count / passed


def sampling(job):
    """The better one of both."""
    import gymnasium

    count = job["num_envs"]
    makers = [lambda: gymnasium.make(job["env"])] * count
    kinds = {"sync": gymnasium.vector.SyncVectorEnv, "async": gymnasium.vector.AsyncVectorEnv}
    found = {name: steps_per_s(kind(makers), count, job["seconds"] / 2) for name, kind in kinds.items()}
    best = max(found, key=found.get)
    return {"env_steps_per_s": found[best], "kind": best}


if __name__ == "__main__":
    main(sampling)
