"""A log as columns, in bounded memory; a file that grows, is replaced, or is cut."""

import json
import math
from itertools import pairwise
from pathlib import Path

from rlz.tracking.history import History, Tail


def test_columns_have_every_line_and_gaps_where_a_tag_is_missing() -> None:
    history = History()
    for line in ({"env_steps": 1, "a": 2.0}, {"env_steps": 2, "b": None}, {"env_steps": 3, "a": 4.0, "text": "x"}):
        assert history.add(json.dumps(line)) == line
    assert history.add("half a li") is None
    assert history.add("[1]") is None
    assert history.over_the_run("") == {"env_steps": 2.0, "a": 3.0}
    assert history.over_the_run("a") == {"a": 3.0}
    assert history.since(1) == {"env_steps": [2.0, 3.0], "a": [None, 4.0], "b": [None, None], "text": [None, None]}


def test_memory_is_bounded_and_the_newest_line_stays_near() -> None:
    history = History(most=100)
    for index in range(10_000):
        history.add(json.dumps({"env_steps": index, "a": -index}))
        assert len(history) <= 100
        steps = history.columns["env_steps"]
        assert index - steps[-1] < 1 << history.thinned if len(steps) else index == 0
    assert len(history) > 50
    assert [math.isclose(a, -step) for a, step in zip(history.columns["a"], steps, strict=True)] == [True] * len(steps)
    gaps = {b - a for a, b in pairwise(steps)}
    assert gaps == {float(1 << history.thinned)}


def test_a_tail_gives_whole_lines_once(tmp_path: Path) -> None:
    path = tmp_path / "log"
    tail = Tail(path)
    assert tail.read() == (False, [])
    with path.open("w") as file:
        file.write("one\ntw")
        file.flush()
        assert tail.read() == (False, ["one"])
        file.write("o\nthree\n")
        file.flush()
        assert tail.read() == (False, ["two", "three"])
    assert tail.read() == (False, [])
    with path.open("w") as file:
        file.write("1\n")
    assert tail.read() == (True, ["1"])
    (tmp_path / "other").write_text("a longer one than that\n")
    (tmp_path / "other").replace(path)
    assert tail.read() == (True, ["a longer one than that"])
