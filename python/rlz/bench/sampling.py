"""Workload `sampling`: one rlz sampler, learner idle, against a bare loop that steps the same environment.

Both sides take the very same steps: the sampler acts with a policy that was published once, its actions are read back
from the replay buffer, and the bare loop steps a second environment with the same seed through them, resets included.
The two take turns of about a second inside one process. What is lost against the bare loop is the price of everything
rlz does per step: limiter, actor, checks, row, statistics.
"""

import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rlz.bench.children import run_child
from rlz.bench.result import Job, Outcome, Workload
from rlz.bench.train import TrainSettings, Variant, measure_peer, variants

METRICS: tuple[str, ...] = ("env_steps_per_s",)

TURN_S = 1.0
"""Seconds of one side's turn."""


LIMITS = {"env_steps_per_s": "bare loop"}


def workload(settings: TrainSettings, peers: Sequence[str], cores: int) -> Workload:
    """What is measured: rlz with its bare loop, and each peer's sampling without updates."""
    definition = {"env": settings.env, "hidden": list(settings.hidden), "seed": settings.seed}
    return Workload("sampling", jobs(settings, peers, cores), METRICS, definition, LIMITS)


def jobs(settings: TrainSettings, peers: Sequence[str], cores: int) -> list[Job]:
    """One for rlz and its bare loop, one for each variant of each peer."""

    def rlz(_: int) -> Outcome:
        job = {"env": settings.env, "seconds": settings.seconds, "seed": settings.seed}
        result = run_child(
            [sys.executable, "-m", "rlz.bench.sampling", json.dumps(job)], timeout=4 * settings.seconds + 120
        )
        metrics = {side: {"env_steps_per_s": result[side]} for side in ("rlz", "bare loop")}
        return Outcome(
            metrics, facts={"share of the bare loop, by turn": result["shares"], "episodes": result["episodes"]}
        )

    found = [Job("rlz and bare loop", rlz, needed=True)]
    short = replace(settings, seconds=min(settings.seconds, 10.0))
    for library in peers:
        for variant in variants(library, cores):
            if variant.threads <= 1:
                found.append(_peer_job(library, variant, short))
    return found


def _peer_job(library: str, variant: Variant, settings: TrainSettings) -> Job:
    name = variant.name(library)

    def run(_: int) -> Outcome:
        result = measure_peer(library, variant, settings, "sampling")
        return Outcome({name: {"env_steps_per_s": result["env_steps_per_s"]}}, {library: result["versions"]})

    return Job(name, run)


def measure(env: str, seconds: float, seed: int = 1) -> dict[str, Any]:
    """Measure in this process: steps/s of both sides over `seconds` each, and the share of the bare loop per turn.

    Raises
    ------
    RuntimeError
        When the two sides did not see the same episodes (the environment is not deterministic).
    """
    import numpy as np

    from rlz import envs
    from rlz.config import Role, resolve, stream
    from rlz.transport.streams import Origin
    from rlz.workers.environment import training_seed
    from rlz.workers.job import Job
    from rlz.workers.sampler import Sampler

    overrides = {
        "seed": seed, "total_timesteps": 10**9, "buffer_size": 200_000, "learning_starts": 0, "replay_ratio": "free",
    }  # fmt: skip
    config = resolve("sac", env, overrides, None)
    env_spec = envs.inspect_env(config, on_note=lambda _: None)
    job = Job.of(config, env_spec)
    streams = job.streams(Origin(run_id=1))
    with tempfile.TemporaryDirectory(prefix="rlz-bench-") as run_dir:
        publish_random_actor(streams, config.seed)
        sampler = Sampler(sampler_spec(job, run_dir), streams)
        sampler.start()
        bare = envs.make(config)
        bare.reset(seed=training_seed(stream(seed, Role.ENV, worker=0, env=0, incarnation=0)))
        actions = ActionReader(streams, env_spec)
        totals = {"rlz": [0.0, 0], "bare loop": [0.0, 0]}
        shares, episodes = [], 0
        turn = 0
        while totals["bare loop"][0] < seconds:
            begin = time.perf_counter()
            steps = 0
            while time.perf_counter() - begin < TURN_S:
                for _ in range(16):  # looking at the clock after each step would be charged to rlz
                    sampler.step(None)
                steps += 16
            ours = time.perf_counter() - begin
            recorded, last_obs = actions.next(steps)
            begin = time.perf_counter()
            for action in recorded:
                obs, _, terminated, truncated, _ = bare.step(action)
                if terminated or truncated:
                    bare.reset()
                    episodes += 1
            theirs = time.perf_counter() - begin
            if not np.array_equal(np.asarray(obs, last_obs.dtype).reshape(-1), last_obs.reshape(-1)):
                raise RuntimeError(f"{env} is not deterministic: the bare loop did not see the sampler's episodes")
            if turn > 0:  # the first turn warms caches up
                totals["rlz"] = [totals["rlz"][0] + ours, totals["rlz"][1] + steps]
                totals["bare loop"] = [totals["bare loop"][0] + theirs, totals["bare loop"][1] + steps]
                shares.append(theirs / ours)
            turn += 1
        sampler.close()
        bare.close()
        streams.close()
    rates = {side: steps / passed for side, (passed, steps) in totals.items()}
    return {**rates, "shares": shares, "episodes": episodes}


def sampler_spec(job: Any, run_dir: str) -> Any:
    """`WorkerSpec` of the one sampler of an in-process run."""
    place = next(place for place in job.places if place.lanes)
    return job.spec(place, worker_id=4, run_dir=run_dir)


def publish_random_actor(streams: Any, seed: int) -> None:
    """Publish version 1: an untrained actor (weights uniform in +-1/sqrt(inputs), biases 0), made without torch."""
    import numpy as np

    rng = np.random.default_rng(seed)
    packed = []
    for name, _, shape in streams.parameters.manifest:
        if name.endswith("norm.weight"):
            packed.append(np.ones(shape, np.float32).reshape(-1))
        elif len(shape) == 2:
            bound = shape[0] ** -0.5
            packed.append(rng.uniform(-bound, bound, shape).astype(np.float32).reshape(-1))
        else:
            packed.append(np.zeros(shape, np.float32))
    publisher = streams.parameters.publisher(worker=2)
    publisher.publish(np.concatenate(packed).view(np.uint8), env_steps=0, updates=0)


class ActionReader:
    """Reads a lane's rows in order and gives their actions in the environment's units."""

    def __init__(self, streams: Any, env_spec: Any) -> None:
        from rlz.envs import actions_of

        self._replay = streams.replay
        self._to_env = actions_of(env_spec).to_env
        self._ticket = 1
        self._action_dtype = env_spec.row_action_dtype.name
        self._obs_dtype = env_spec.obs_dtype
        self._offsets = {name: (offset, shape) for name, _, shape, offset in streams.replay.fields}

    def next(self, count: int) -> tuple[list[Any], Any]:
        """Actions of the next `count` rows, and the next_obs of the last of them."""
        import numpy as np

        rows = np.zeros((count, self._replay.stride), np.uint8)
        meta = np.zeros(count, np.uint64)
        copied = self._replay.read_rows(0, self._ticket, rows, meta)
        if copied != count:
            raise RuntimeError(f"{copied} of {count} rows could be read back")
        self._ticket += count
        actions = self._column(rows, "action", self._action_dtype)
        return [self._to_env(action) for action in actions], self._column(rows[-1:], "next_obs", self._obs_dtype)[0]

    def _column(self, rows: Any, name: str, dtype: str) -> Any:
        import numpy as np

        offset, shape = self._offsets[name]
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        return np.ascontiguousarray(rows[:, offset : offset + size]).view(dtype).reshape(len(rows), *shape)


if __name__ == "__main__":
    print(json.dumps(measure(**json.loads(sys.argv[1]))))
