# The peers are not installed where rlz is checked.
# mypy: ignore-errors
"""Stable-Baselines3 and SBX: SAC, TD3, DDPG.

Settings: what all contenders share; `train_freq` 1 and as many gradient steps as environments: replay ratio 1, the
workload's. Threads 1 and 2 are searched (more never helped at these sizes), XLA takes every core; 1 and 4 environments
in one process, because its subprocesses cost more than steps of these environments.
"""

import time

from adapter import Copies, Window, main, rate


def model_of(job, env):
    """The algorithm on an environment."""
    if job["library"] == "sbx":
        import sbx as library

        options = {}
    else:
        import stable_baselines3 as library
        import torch

        torch.set_num_threads(job["threads"])
        options = {"device": job["device"]}
    for name in ("learning_rate", "gamma"):
        if name in job:
            options[name] = job[name]
    return getattr(library, job["algo"].upper())(
        "MlpPolicy",
        env,
        seed=job["seed"],
        batch_size=job["batch_size"],
        buffer_size=job["buffer_size"],
        learning_starts=job["learning_starts"],
        train_freq=1,
        gradient_steps=job["gradient_steps"],
        policy_kwargs={"net_arch": list(job["hidden"])},
        **options,
    )


def train(job):
    """Training, or its sampling alone (no gradient steps)."""
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env

    window = Window(job)

    class Watch(BaseCallback):
        def _on_step(self):
            return window.goes_on(self.num_timesteps, self.model._n_updates)

    model_of(job, make_vec_env(job["env"], n_envs=job["num_envs"], seed=job["seed"])).learn(10**9, callback=Watch())
    return window.figures()


def score(job):
    """Training with copies of the policy."""
    from stable_baselines3.common.callbacks import BaseCallback

    copies = Copies(job)

    class Copy(BaseCallback):
        def _on_step(self):
            return copies.write(self.num_timesteps, layers(self.model.actor)) if copies.due() else True

    model_of(job, job["env"]).learn(10**9, callback=Copy())
    return {}


def layers(actor):
    """Weights and biases of an actor's layers; SAC's two heads as one."""
    import torch

    inner = actor.latent_pi if hasattr(actor, "latent_pi") else actor.mu
    found = [(one.weight, one.bias) for one in inner if hasattr(one, "weight")]
    if hasattr(actor, "latent_pi"):
        heads = (actor.mu, actor.log_std)
        found.append((torch.cat([one.weight for one in heads]), torch.cat([one.bias for one in heads])))
    return [(weight.detach().numpy().copy(), bias.detach().numpy().copy()) for weight, bias in found]


def nothing_env(job):
    """An environment of the job's sizes that does nothing."""
    import gymnasium
    import numpy as np

    class Nothing(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (job["obs"],), np.float64)
        action_space = gymnasium.spaces.Box(-1, 1, (job["action"],), np.float32)

        def reset(self, **options):
            return np.zeros(job["obs"]), {}

        def step(self, action):
            return np.zeros(job["obs"]), 0.0, False, False, {}

    return Nothing()


def update(job):
    """`train` on a buffer of random rows; five updates a call, of SBX one."""
    import numpy as np
    from stable_baselines3.common.logger import configure

    model = model_of({**job, "buffer_size": 100_000}, nothing_env(job))
    model.set_logger(configure(None, []))
    buffer, rng = model.replay_buffer, np.random.default_rng(0)
    buffer.observations[:] = rng.standard_normal(buffer.observations.shape)
    buffer.next_observations[:] = buffer.observations[::-1]
    buffer.actions[:] = np.tanh(rng.standard_normal(buffer.actions.shape))
    buffer.rewards[:] = rng.standard_normal(buffer.rewards.shape)
    buffer.full = True
    count = 1 if job["library"] == "sbx" else 5
    model.train(1, job["batch_size"])
    first = time.time() - job["began"]
    model.train(count, job["batch_size"])
    per_s = rate(lambda: model.train(count, job["batch_size"]), job["seconds"])
    return {"updates_per_s": count * per_s, "first_update_s": first}


def inference(job):
    """`predict`, deterministic, by batch size."""
    import numpy as np

    model, rng, found = model_of({**job, "buffer_size": 1000}, nothing_env(job)), np.random.default_rng(0), {}
    for batch in job["batches"]:
        obs = rng.standard_normal((batch, job["obs"]))
        calls = rate(lambda obs=obs: model.predict(obs, deterministic=True), job["seconds"] / len(job["batches"]))
        found[f"act_{batch}_us"] = 1e6 / calls
    return found


WORKLOADS = {"train": train, "sampling": train, "score": score, "update": update, "inference": inference}

if __name__ == "__main__":
    main(lambda job: WORKLOADS[job["workload"]](job))
