import os
from dataclasses import replace

import numpy as np
import pytest

from rlz.answers import Rollout
from rlz.config import run_config
from rlz.envs.spaces import EnvSpec
from rlz.errors import ClosedError, GraphError, TransportError
from rlz.graph import Node
from rlz.placement import Placement
from rlz.standard import standard
from rlz.transport import Streams
from rlz.transport.stats import Stat
from rlz.transport.streams import Origin
from rlz.workers.job import Job

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


JOB = Job.of(CONFIG, ENV)
LEARNER, SAMPLER = JOB.graph.node("learner"), JOB.graph.node("sampler")


def make(**counts: int) -> Streams:
    return JOB.streams(Origin(run_id=7, **counts))


def attach(streams: Streams, node: Node) -> Streams:
    return Streams.attach(streams.fds(node), JOB.graph, JOB.placement, node)


def test_everything_is_sized_by_the_run() -> None:
    streams = make(env_steps=20, updates=10)
    assert (streams.replay.lanes, streams.replay.buffer_size) == (3, 300)
    assert [field[0] for field in streams.replay.fields] == ["obs", "action", "next_obs", "reward", "discount"]
    assert (streams.limiter.env_steps, streams.limiter.updates) == (20, 10)
    assert (streams.limiter.total_timesteps, streams.limiter.target_updates) == (1_000, 990)
    assert streams.parameters.manifest == list(JOB.answers.policy.manifest)
    assert streams.stats.read().shape == (4, len(Stat) + len(JOB.answers.metrics))


def test_ends_in_two_places() -> None:
    streams = make()
    learner, sampler = attach(streams, LEARNER), attach(streams, SAMPLER)
    writer = sampler.replay.writer([0, 1, 2], worker=3)
    obs, action = np.ones(5, np.float32), np.zeros(2, np.float32)
    writer.append(2, (obs, action, obs, 1.0, 0.99), version=0)
    assert learner.replay.committed() == [0, 0, 1]
    sampler.stats.add(2, Stat.ENV_STEPS, 1.0)
    assert streams.stats.read()[2][Stat.ENV_STEPS] == 1.0
    publisher = learner.parameters.publisher(worker=2)
    publisher.publish(np.zeros(streams.parameters.nbytes, np.uint8), env_steps=0, updates=0)
    assert sampler.parameters.subscriber(worker=3).version() == 1


def test_only_who_gives_the_parameters_gets_memory_that_it_could_write_to() -> None:
    streams = make()
    assert streams.parameters.payload_fd in streams.fds(LEARNER)["parameters"]
    assert streams.parameters.payload_fd not in streams.fds(SAMPLER)["parameters"]
    with pytest.raises(TransportError, match="read-only"):
        attach(streams, SAMPLER).parameters.publisher(worker=3)
    attach(streams, replace(SAMPLER, role="other", gives=("replay", "parameters"))).parameters.publisher(worker=3)


def test_a_worker_has_the_streams_of_its_node_alone() -> None:
    streams = make()
    evaluator = JOB.graph.node("evaluator")
    assert set(streams.fds(evaluator)) == {"limiter", "stats", "trace", "parameters"}
    for seen in (attach(streams, evaluator), streams.of(evaluator)):
        assert list(seen.named) == ["parameters"]
        with pytest.raises(GraphError, match="no stream 'replay' here, only parameters"):
            seen["replay"]
        with pytest.raises(GraphError, match="0 streams of kind replay"):
            _ = seen.replay


def test_segments_go_through_a_queue_with_room_for_a_rollout() -> None:
    fields = (("obs", "f32", (5,)), ("action", "f32", (2,)))
    answers = replace(JOB.answers, data=Rollout(fields, length=16, batch=8))
    graph = standard(answers, 1000, envs=3)
    graph.check()
    streams = Streams.create(graph, Placement(counts={"sampler": 2}, lanes=2), Origin(run_id=7))
    assert [(name, shape) for name, _, shape, _ in streams.queue.fields] == [("obs", (16, 5)), ("action", (16, 2))]
    assert streams.queue.slots == 3
    assert (streams.learned_from, streams.limiter.target_updates) == (None, None)
    learner = Streams.attach(streams.fds(graph.sink), graph, streams.placement, graph.sink)
    segment = {"obs": np.ones((16, 5), np.float32), "action": np.zeros((16, 2), np.float32)}
    streams.queue.producer(worker=3).put(timeout=0.0, **segment)
    assert (learner.queue.consumer(worker=2).pop(timeout=0.0)["obs"] == 1).all()
    streams.reap(3)
    streams.close()


def test_descriptors_end_with_the_worker() -> None:
    streams = make()
    fds = {name: [os.dup(fd) for fd in some] for name, some in streams.fds(SAMPLER).items()}
    every = [fd for some in fds.values() for fd in some]
    for fd in every:
        os.set_inheritable(fd, True)
    Streams.attach(fds, JOB.graph, JOB.placement, SAMPLER)
    assert not any(os.get_inheritable(fd) for fd in every)
    for fd in every:
        os.close(fd)


def test_reaping_frees_every_stream() -> None:
    streams = make()
    dead = attach(streams, LEARNER)
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
