"""The graph of an algorithm that asks for no other: samplers, a learner, an evaluator, and the streams of its data."""

from __future__ import annotations

from rlz.answers import Answers, Replay
from rlz.graph import ENDS_THE_RUN, Graph, Node, Rule, Stream

REPLAY, TRAJECTORIES, PARAMETERS = "replay", "trajectories", "parameters"
"""Names of the streams."""

LEARNER_GRACE_S = 4.0
"""Time for the learner to end after a stop, its checkpoint included; the whole run ends within 5 s."""

ROLLOUTS_IN_FLIGHT = 2
"""Rollouts that a trajectory queue has room for; of synchronous learning one, more are never under way."""


def standard(answers: Answers, total_timesteps: int, *, envs: int = 1, evaluates: bool = True) -> Graph:
    """The graph of samplers, learner and evaluator, from an algorithm's answers.

    Single transitions (`Replay`) go through a replay buffer, segments (`Rollout`) through a trajectory queue; the
    parameters of what acts go back through a parameter store. The learner comes first: it takes longest to load.

    Parameters
    ----------
    answers : of the algorithm.
    total_timesteps : env steps of the run.
    envs : environments of the run, over all samplers.
    evaluates : whether there is an evaluator.
    """
    data, manifest = answers.data, answers.policy.manifest
    if isinstance(data, Replay):
        rows, ratio = Stream(REPLAY, "replay", data.fields, {"capacity": data.capacity}), data.ratio
    else:
        fit = envs * (1 if data.max_lag == 0 else ROLLOUTS_IN_FLIGHT)
        rows, ratio = Stream(TRAJECTORIES, "queue", data.fields, {"length": data.length, "segments": fit}), None
    schemas = {rows.name: data.fields, PARAMETERS: manifest}
    nodes = [
        Node("learner", "rlz.workers.learner:Learner", takes=(rows.name,), gives=(PARAMETERS,), progress="updates",
             death=ENDS_THE_RUN, torch=True, grace_s=LEARNER_GRACE_S, schemas=schemas),
        Node("evaluator", "rlz.workers.evaluator:Evaluator", takes=(PARAMETERS,), progress="episodes", stays=True,
             schemas={PARAMETERS: manifest}),
        Node("sampler", "rlz.workers.sampler:Sampler", takes=(PARAMETERS,), gives=(rows.name,), progress="env_steps",
             schemas=schemas),
    ]  # fmt: skip
    return Graph(
        nodes=tuple(node for node in nodes if evaluates or node.progress != "episodes"),
        streams=(rows, Stream(PARAMETERS, "parameters", manifest)),
        rule=Rule(total_timesteps, data.starts, ratio),
        metrics=answers.metrics,
    )
