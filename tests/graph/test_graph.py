"""Graphs and placements as values: what the standard one is, what a check refuses, and how it says so."""

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from rlz.answers import Answers, PolicySpec, Replay, Rollout
from rlz.errors import GraphError
from rlz.graph import ENDS_THE_RUN, Graph, Node, Stream, upstream
from rlz.placement import Placement, pinned, split_lanes
from rlz.standard import standard

ROW = (("obs", "f32", (5,)), ("action", "f32", (2,)), ("reward", "f32", ()))
WEIGHTS = (("actor.weight", "f32", (5, 2)), ("actor.bias", "f32", (2,)))
ANSWERS = Answers(Replay(ROW, 1000, 32, (1, 4), starts=10), PolicySpec("native", {}, WEIGHTS), ("loss",))
SHAPER = Node("shaper", "rlz.workers.sampler:Sampler")


def graph() -> Graph:
    return standard(ANSWERS, 500)


def changed(which: str, **values: object) -> Graph:
    whole = graph()
    return replace(whole, nodes=tuple(replace(n, **values) if n.role == which else n for n in whole.nodes))


def test_the_standard_graph_follows_from_the_answers() -> None:
    made = graph()
    made.check()
    assert [node.role for node in made.nodes] == ["learner", "evaluator", "sampler"]
    assert (made.written, made.learned_from) == ("replay", "replay")
    assert (made.rule.due(10), made.rule.due(13), made.rule.due(14), made.rule.due(500)) == (0, 0, 1, 122)
    assert [node.role for node in standard(ANSWERS, 500, evaluates=False).nodes] == ["learner", "sampler"]
    segments = standard(replace(ANSWERS, data=Rollout(ROW, 8, 4)), 500, envs=4)
    segments.check()
    assert segments.stream("trajectories").options == {"length": 8, "segments": 4}
    assert (segments.written, segments.learned_from, segments.rule.ratio) == (None, None, None)


def test_it_travels_as_json() -> None:
    made = graph().between("replay", SHAPER, capacity=100)
    placement = Placement(
        {"sampler": 3}, 7, 2.5, (("learner", "shaper"),), {"learner": ((0, 1),)}, {"learner": ("cpu",)}
    )
    assert Graph.from_json(json.loads(json.dumps(made.to_json()))) == made
    assert Placement.from_json(json.loads(json.dumps(placement.to_json()))) == placement


def test_a_node_between_gets_what_the_others_gave() -> None:
    made = graph().between("replay", SHAPER, capacity=100)
    made.check()
    assert made.node("sampler").gives == ("replay_shaper",)
    assert made.node("learner").takes == ("replay",)
    assert (made.node("shaper").takes, made.node("shaper").gives) == (("replay_shaper",), ("replay",))
    assert made.stream("replay_shaper") == Stream("replay_shaper", "replay", ROW, {"capacity": 100})
    assert (made.written, made.learned_from) == ("replay_shaper", "replay")
    assert [node.role for node in upstream(made)] == ["sampler", "shaper"]
    twice = made.between("replay", replace(SHAPER, role="scaler"))
    twice.check()
    assert [node.role for node in upstream(twice)] == ["sampler", "shaper", "scaler"]


LOST = Stream("lost", "queue", ROW, {"length": 4, "segments": 2})
REFUSED: dict[str, tuple[Callable[[], Graph], str]] = {
    "nobody takes": (
        lambda: replace(changed("sampler", gives=("replay", "lost")), streams=(*graph().streams, LOST)),
        "stream 'lost': no node takes it. A stream needs a giver and a taker; add the taker",
    ),
    "nobody gives": (lambda: changed("sampler", gives=()), "stream 'replay': no node gives it"),
    "unknown stream": (lambda: changed("sampler", gives=("rows",)), "node 'sampler' names the stream 'rows'"),
    "other fields": (
        lambda: changed("sampler", schemas={"replay": (("obs", "f64", (5,)), *ROW[1:])}),
        r"node 'sampler' and stream 'replay' do not agree on fields: the node needs obs f64\[5\], the stream",
    ),
    "fewer fields": (
        lambda: changed("sampler", schemas={"replay": ROW[:2]}), "the node needs 2 fields, the stream has 3",
    ),
    "no module": (lambda: changed("learner", worker="no_such.module:Worker"), "'learner' .* no no_such.module here"),
    "no file": (lambda: changed("learner", worker="none.py:Worker"), "there is no none.py here"),
    "no class": (lambda: changed("learner", worker="rlz.workers.learner"), "expected module:Class or file.py:Class"),
    "two ends": (lambda: changed("evaluator", death=ENDS_THE_RUN), "learner and evaluator. A graph needs exactly one"),
    "no end": (lambda: changed("learner", death="restart"), "none. A graph needs exactly one"),
    "unknown death": (lambda: changed("learner", death="sleep"), "node 'learner' has the death 'sleep'"),
    "two step": (lambda: changed("evaluator", progress="env_steps"), "evaluator and sampler both do env_steps"),
    "unknown progress": (lambda: changed("sampler", progress="steps"), "expected one of env_steps, updates"),
    "two publish": (lambda: changed("evaluator", gives=("parameters",)), "'parameters': learner and evaluator give it"),
    "two roles": (lambda: changed("evaluator", role="sampler"), "node 'sampler': there are 2 of that name"),
    "bad role": (lambda: changed("sampler", role="Sampler 1"), "node 'Sampler 1': expected a name of small letters"),
    "kind": (lambda: replace(graph(), streams=(replace(LOST, kind="pipe"),)), "has the kind 'pipe'"),
    "options": (lambda: replace(graph(), streams=(replace(LOST, options={}),)), "a queue needs length and segments"),
    "empty": (
        lambda: replace(graph(), streams=(replace(LOST, options={"length": 0, "segments": 2}),)), "length 0; expected",
    ),
    "no fields": (lambda: replace(graph(), streams=(replace(LOST, fields=()),)), "stream 'lost' has no fields"),
    "same field": (lambda: replace(graph(), streams=(replace(LOST, fields=ROW[:1] * 2),)), "two fields of one name"),
    "reserved": (lambda: replace(graph(), streams=(replace(LOST, name="stats"),)), "every worker has the stats anyway"),
    "metric of rlz": (lambda: replace(graph(), metrics=("loss", "threads")), "metric 'threads': train/threads"),
    "same metric": (lambda: replace(graph(), metrics=("loss", "loss")), "metric 'loss': there are 2 of that name"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_work_is_refused_by_name(case: str) -> None:
    make, message = REFUSED[case]
    with pytest.raises(GraphError, match=message):
        make().check()


def test_workers_have_names_slots_and_lanes() -> None:
    places = Placement({"sampler": 3}, lanes=7).places(graph())
    assert [(place.name, place.slot, place.lanes) for place in places] == [
        ("learner", 0, ()),
        ("evaluator", 1, ()),
        ("sampler-0", 2, (0, 1)),
        ("sampler-1", 3, (2, 3)),
        ("sampler-2", 4, (4, 5, 6)),
    ]
    assert sum(split_lanes(10, 4), ()) == tuple(range(10))
    counts = {"sampler": 2}
    assert pinned(graph(), counts, [7]) == {}
    cores = Placement(counts, cores=pinned(graph(), counts, [0, 1, 2, 3])).places(graph())
    assert [place.cores for place in cores] == [(0, 1), (0, 1, 2, 3), (2,), (3,)]


@pytest.mark.parametrize(
    ("placement", "message"),
    [
        (Placement({"samplers": 2}), "'samplers' is no node of the graph, which has evaluator, learner, sampler"),
        (Placement(groups=(("learner", "nobody"),)), "'nobody' is no node"),
        (Placement({"sampler": 0}), "0 workers of 'sampler'"),
    ],
)
def test_a_placement_that_does_not_fit_is_refused(placement: Placement, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        placement.check(graph())


def test_memory_that_is_not_there_is_refused_with_the_largest_stream() -> None:
    made = graph().between("replay", SHAPER, capacity=1_000_000)
    placement = Placement({"sampler": 1})
    placement.check(made, 200 * 2**20)
    with pytest.raises(GraphError, match=r"need 76 MiB, 76 of them stream 'replay_shaper'; there are 60 MiB left"):
        placement.check(made, 60 * 2**20)
