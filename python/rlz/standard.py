"""The graph of an algorithm that asks for no other: samplers, a learner, an evaluator, and the streams of its data."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from rlz.answers import Answers, Replay
from rlz.graph import ENDS_THE_RUN, Graph, Node, Rule, Stream

REPLAY, TRAJECTORIES, PARAMETERS, INFERENCE = "replay", "trajectories", "parameters", "inference"
"""Names of the streams."""

Inference = Literal["inline", "central", "learner"]

GROUPED = "rlz.workers.grouped:GroupedSampler"

LEARNER_GRACE_S = 4.0
"""Time for the learner to end after a stop, its checkpoint included; the whole run ends within 5 s."""


def standard(
    answers: Answers,
    total_timesteps: int,
    *,
    envs: int = 1,
    evaluates: bool = True,
    inference: Inference = "inline",
    groups: int = 1,
) -> Graph:
    """The graph of samplers, learner and evaluator, from an algorithm's answers.

    Single transitions (`Replay`) go through a replay buffer, segments (`Rollout`) through a trajectory queue; the
    parameters of what acts go back through a parameter store. The learner comes first: it takes longest to load.

    Parameters
    ----------
    answers : of the algorithm.
    total_timesteps : env steps of the run.
    envs : environments of the run, over all samplers.
    evaluates : whether there is an evaluator.
    inference : where actions are chosen: in each sampler, or for all of them by a server or by the learner.
    groups : into which each sampler splits its environments.
    """
    data, manifest = answers.data, answers.policy.manifest
    sampler = GROUPED if inference != "inline" or groups > 1 else "rlz.workers.sampler:Sampler"
    if isinstance(data, Replay):
        rows, ratio = Stream(REPLAY, "replay", data.fields, {"capacity": data.capacity}), data.ratio
    else:
        size = {"length": data.length, "segments": envs * data.in_flight}
        rows, ratio = Stream(TRAJECTORIES, "queue", data.fields, size), None
    schemas = {rows.name: data.fields, PARAMETERS: manifest}
    nodes = [
        Node("learner", "rlz.workers.learner:Learner", takes=(rows.name,), gives=(PARAMETERS,), progress="updates",
             death=ENDS_THE_RUN, torch=True, grace_s=LEARNER_GRACE_S, schemas=schemas),
        Node("evaluator", "rlz.workers.evaluator:Evaluator", takes=(PARAMETERS,), progress="episodes", stays=True,
             schemas={PARAMETERS: manifest}),
        Node("sampler", sampler, takes=(PARAMETERS,), gives=(rows.name,), progress="env_steps", schemas=schemas),
    ]  # fmt: skip
    graph = Graph(
        nodes=tuple(node for node in nodes if evaluates or node.progress != "episodes"),
        streams=(rows, Stream(PARAMETERS, "parameters", manifest)),
        rule=Rule(total_timesteps, data.starts, ratio),
        metrics=answers.metrics,
    )
    return graph if inference == "inline" else _central(graph, answers, by_learner=inference == "learner")


def _central(graph: Graph, answers: Answers, *, by_learner: bool) -> Graph:
    """The graph with an inference server, or a learner that is one too, which the samplers ask with observations."""
    of_row = {field[0]: field for field in answers.data.fields}
    extras = () if isinstance(answers.data, Replay) else answers.policy.extras
    asked = (of_row["obs"],)
    stream = Stream(INFERENCE, "inference", (*asked, of_row["action"], *extras), {"asked": len(asked)})
    server = Node("inference", "rlz.workers.inference:InferenceServer", takes=(INFERENCE, PARAMETERS))
    nodes = tuple(
        replace(node, gives=(*node.gives, INFERENCE)) if node == graph.source else node for node in graph.nodes
    )
    if by_learner:
        both, takes = "rlz.workers.serving_learner:ServingLearner", (*graph.sink.takes, *server.takes)
        nodes = tuple(replace(node, worker=both, takes=takes) if node == graph.sink else node for node in nodes)
    else:
        nodes = (*nodes, server)
    return replace(graph, nodes=nodes, streams=(*graph.streams, stream))
