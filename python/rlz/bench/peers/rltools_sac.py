# Runs in an environment of its own, not where rlz is checked.
# mypy: ignore-errors
"""RLtools: SAC as one C++ program with everything known to the compiler, through its Python package.

The environment is Gymnasium's, as for all; RLtools' own Pendulum in C++ would be another program to step. Settings: its
defaults but for batch size, widths, buffer and learning starts, which are the workload's. One environment and one
thread, as its loop has. It is compiled for the environment on first use (minutes), outside of what is measured: then
the adapter starts itself anew, so that its start is one with a warm cache.
"""

import os
import sys
import time

from adapter import Window, main


def train(job):
    """Training; its loop tells neither updates nor their time, and makes one with every step."""
    import gymnasium
    from rltools import SAC

    hidden, starts = job["hidden"], job["learning_starts"]
    sac = SAC(
        lambda: gymnasium.wrappers.RescaleAction(gymnasium.make(job["env"]), -1, 1),
        enable_evaluation=False,
        interface_name="rlz_" + "".join(letter if letter.isalnum() else "_" for letter in job["env"]),
        ACTOR_BATCH_SIZE=job["batch_size"],
        CRITIC_BATCH_SIZE=job["batch_size"],
        ACTOR_HIDDEN_DIM=hidden[0],
        CRITIC_HIDDEN_DIM=hidden[0],
        ACTOR_NUM_LAYERS=len(hidden) + 1,
        CRITIC_NUM_LAYERS=len(hidden) + 1,
        N_WARMUP_STEPS=starts,
        STEP_LIMIT=10_000_000,
        REPLAY_BUFFER_CAP=job["buffer_size"],
    )
    if time.time() - job["began"] > 20 and "RLZ_COMPILED" not in os.environ:
        os.environ["RLZ_COMPILED"] = "1"
        job["began"] = time.time()
        import json

        os.execv(sys.executable, [sys.executable, sys.argv[0], json.dumps(job)])
    state, window, steps = sac.State(job["seed"]), Window(job), 0
    while True:
        state.step()
        steps += 1
        if not window.goes_on(steps, max(0, steps - starts)):
            return window.figures()


if __name__ == "__main__":
    main(train)
