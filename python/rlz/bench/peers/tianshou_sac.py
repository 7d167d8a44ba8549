# Runs in an environment of its own, not where rlz is checked.
# mypy: ignore-errors
"""Tianshou: SAC with its high-level builder's parts, put together as its own MuJoCo example does.

Settings: the workload's; one update per env step; a collection for each step of all environments, in one process
(DummyVectorEnv), because its subprocesses cost more than steps of these environments. Threads 1 and 2 are searched.
"""

from adapter import Window, main


def train(job):
    """Training, by its own loop of collections and updates."""
    import gymnasium
    import torch
    from tianshou.algorithm import SAC
    from tianshou.algorithm.modelfree.sac import AutoAlpha, SACPolicy
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.data import Collector, VectorReplayBuffer
    from tianshou.env import DummyVectorEnv
    from tianshou.utils.net.common import Net
    from tianshou.utils.net.continuous import ContinuousActorProbabilistic, ContinuousCritic

    torch.set_num_threads(job["threads"])
    torch.manual_seed(job["seed"])
    count, hidden = job["num_envs"], list(job["hidden"])
    envs = DummyVectorEnv([lambda: gymnasium.make(job["env"]) for _ in range(count)])
    envs.seed(job["seed"])
    space, action_space = envs.observation_space[0], envs.action_space[0]
    obs, action = space.shape, action_space.shape
    actor = ContinuousActorProbabilistic(
        preprocess_net=Net(state_shape=obs, hidden_sizes=hidden), action_shape=action, unbounded=True,
        conditioned_sigma=True,
    )  # fmt: skip
    critics = [
        ContinuousCritic(preprocess_net=Net(state_shape=obs, action_shape=action, hidden_sizes=hidden, concat=True))
        for _ in range(2)
    ]
    algorithm = SAC(
        policy=SACPolicy(actor=actor, action_space=action_space),
        policy_optim=AdamOptimizerFactory(lr=3e-4),
        critic=critics[0],
        critic_optim=AdamOptimizerFactory(lr=3e-4),
        critic2=critics[1],
        critic2_optim=AdamOptimizerFactory(lr=3e-4),
        tau=0.005,
        gamma=0.99,
        alpha=AutoAlpha(-float(action[0]), 0.0, AdamOptimizerFactory(lr=3e-4)),
    )
    buffer = VectorReplayBuffer(job["buffer_size"], count)
    collector = Collector(algorithm, envs, buffer, exploration_noise=True)
    collector.reset()
    window, steps, updates = Window(job), 0, 0
    window.goes_on(steps, updates)
    collector.collect(n_step=job["learning_starts"], random=True)
    steps = job["learning_starts"]
    while window.goes_on(steps, updates):
        collector.collect(n_step=count)
        steps += count
        with torch_train(algorithm):
            for _ in range(count):
                algorithm.update(buffer, sample_size=job["batch_size"])
                updates += 1
    return window.figures()


def torch_train(algorithm):
    """Its modules' training mode, where its updates have to be."""
    from tianshou.utils.torch_utils import policy_within_training_step

    return policy_within_training_step(algorithm.policy)


if __name__ == "__main__":
    main(train)
