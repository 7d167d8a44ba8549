import os

import numpy as np
import pytest

from rlz.config import run_config
from rlz.config.model import ask
from rlz.envs.spaces import EnvSpec
from rlz.errors import ClosedError, TransportError
from rlz.transport import Streams
from rlz.transport.stats import Stat

ENV = EnvSpec(
    env_id="Some-v0",
    obs_shape=(5,),
    obs_dtype="float32",
    action_shape=(2,),
    action_dtype="float32",
    action_low=(-1.0, -2.0),
    action_high=(1.0, 2.0),
    max_episode_steps=None,
)
CONFIG = run_config(
    env="Some-v0", samplers=2, num_envs=3, buffer_size=300, total_timesteps=1_000, learning_starts=10, hidden=(8,)
)


def make(**counts: int) -> Streams:
    return Streams.create(CONFIG, ENV, slots=4, run_id=7, **counts)


def test_everything_is_sized_by_the_run() -> None:
    streams = make(env_steps=20, updates=10)
    assert (streams.replay.lanes, streams.replay.buffer_size) == (3, 300)
    assert [field[0] for field in streams.replay.fields] == ["obs", "action", "next_obs", "reward", "discount"]
    assert (streams.limiter.env_steps, streams.limiter.updates) == (20, 10)
    assert (streams.limiter.total_timesteps, streams.limiter.target_updates) == (1_000, 990)
    assert streams.parameters.manifest == list(ask(CONFIG, ENV).policy.manifest)
    assert streams.stats.read().shape == (4, len(Stat) + len(ask(CONFIG, ENV).metrics))


def test_ends_in_two_places() -> None:
    streams = make()
    learner = Streams.attach(streams.fds("learner"), "learner")
    sampler = Streams.attach(streams.fds("sampler"), "sampler")
    writer = sampler.replay.writer([0, 1, 2], worker=3)
    obs, action = np.ones(5, np.float32), np.zeros(2, np.float32)
    writer.append(2, (obs, action, obs, 1.0, 0.99), version=0)
    assert learner.replay.committed() == [0, 0, 1]
    sampler.stats.add(2, Stat.ENV_STEPS, 1.0)
    assert streams.stats.read()[2][Stat.ENV_STEPS] == 1.0
    publisher = learner.parameters.publisher(worker=2)
    publisher.publish(np.zeros(streams.parameters.nbytes, np.uint8), env_steps=0, updates=0)
    assert sampler.parameters.subscriber(worker=3).version() == 1


def test_only_the_learner_may_publish() -> None:
    streams = make()
    assert "parameters" in streams.fds("learner")
    assert "parameters" in streams.fds()
    assert "parameters" not in streams.fds("sampler")
    sampler = Streams.attach(streams.fds(), "sampler")
    with pytest.raises(TransportError, match="read-only"):
        sampler.parameters.publisher(worker=3)


def test_descriptors_end_with_the_worker() -> None:
    streams = make()
    fds = {name: os.dup(fd) for name, fd in streams.fds("sampler").items()}
    for fd in fds.values():
        os.set_inheritable(fd, True)
    Streams.attach(fds, "sampler")
    assert not any(os.get_inheritable(fd) for fd in fds.values())
    for fd in fds.values():
        os.close(fd)


def test_reaping_frees_every_stream() -> None:
    streams = make()
    dead = Streams.attach(streams.fds(), "learner")
    kept = dead.replay.writer([0, 1], worker=5), dead.parameters.publisher(worker=5)
    subscriber = dead.parameters.subscriber(worker=5)
    streams.reap(5)
    assert streams.replay.owners() == [0, 0, 0]
    streams.replay.writer([0, 1], worker=6).close()
    streams.parameters.publisher(worker=6).close()
    assert len(kept) == 2
    assert subscriber.version() == 0


def test_close() -> None:
    streams = make()
    streams.close()
    streams.close()
    with pytest.raises(ClosedError):
        streams.replay.committed()
    with pytest.raises(ClosedError):
        streams.stats.read()
