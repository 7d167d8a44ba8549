# Runs in an environment of its own, not where rlz is checked.
# mypy: ignore-errors
"""RLlib: SAC and PPO with its new API stack, local: environments and learner in one process, no remote ones.

On a machine of a few cores that is its quickest way: remote runners and learners copy every sample through its object
store. SAC: one update for every env step, a uniform buffer, checks and metrics as by default, iterations of 50 steps,
which is how often its counts can be read; learning rates as in the other contenders. PPO: rollouts of 2,048 steps,
minibatches of 64, 10 epochs. 1 and 4 environments are tried; torch has its default of threads.
"""

import logging
import os

from adapter import Window, main


def config_of(job):
    """The algorithm's configuration."""
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.algorithms.sac import SACConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

    count, hidden = job["num_envs"], list(job["hidden"])
    config = {"sac": SACConfig, "ppo": PPOConfig}[job["algo"]]()
    config = config.environment(job["env"]).debugging(seed=job["seed"], log_level="ERROR")
    config = config.env_runners(num_env_runners=0, num_envs_per_env_runner=count)
    config = config.learners(num_learners=0).resources(num_gpus=0)
    if job["algo"] == "ppo":
        model = DefaultModelConfig(fcnet_hiddens=[64, 64], fcnet_activation="tanh", vf_share_layers=False)
        config = config.rl_module(model_config=model)
        return config.training(train_batch_size_per_learner=2048, minibatch_size=64, num_epochs=10, lr=3e-4)
    model = DefaultModelConfig(
        fcnet_hiddens=hidden, fcnet_activation="relu", head_fcnet_hiddens=[], head_fcnet_activation=None
    )
    config = config.env_runners(rollout_fragment_length=1).rl_module(model_config=model)
    config = config.reporting(min_sample_timesteps_per_iteration=50, min_time_s_per_iteration=0)
    return config.training(
        train_batch_size_per_learner=job["batch_size"],
        training_intensity=float(job["batch_size"]),
        num_steps_sampled_before_learning_starts=job["learning_starts"],
        replay_buffer_config={"type": "EpisodeReplayBuffer", "capacity": job["buffer_size"]},
        actor_lr=3e-4,
        critic_lr=3e-4,
        alpha_lr=3e-4,
        lr=None,
        n_step=1,
        twin_q=True,
    )


def train(job):
    """Training; counts are those of whole iterations."""
    os.environ.setdefault("RAY_raylet_start_wait_time_s", "240")  # a busy machine takes its time
    import ray

    ray.init(num_cpus=2, include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False)
    algorithm, window = config_of(job).build_algo(), Window(job)
    try:
        while True:
            result = algorithm.train()
            steps = int(result["env_runners"]["num_env_steps_sampled_lifetime"])
            learner = result.get("learners", {}).get("default_policy", {})
            trained = learner.get("num_module_steps_trained_lifetime", 0)
            updates = trained / (job["batch_size"] if job["algo"] == "sac" else 64)
            if not window.goes_on(steps, updates):
                return window.figures()
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main(train)
