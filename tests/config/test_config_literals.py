"""Values of arguments arrive as what was written, by whatever way, or are refused."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from rlz.config import read_config, resolve, resolve_with_origins, run_config
from rlz.errors import UsageError
from rlz.options.literals import split

WRITTEN: list[tuple[str, Any]] = [
    ("None", None),
    ("null", None),
    ('"None"', "None"),
    ("'null'", "null"),
    ("True", True),
    ("false", False),
    ("7", 7),
    ("-1_000", -1000),
    ("0x10", 16),
    ("99999999999999999999999", 99999999999999999999999),
    ("1e5", 1e5),
    ("1.", 1.0),
    (".5", 0.5),
    ("-inf", float("-inf")),
    ("[1, 2.5, 'a']", [1, 2.5, "a"]),
    ("[1, None]", [1, None]),
    ("[]", []),
    ("(64, 64)", (64, 64)),
    ("()", ()),
    ("(1,)", (1,)),
    ("1,", (1,)),
    ("64, 64", (64, 64)),
    ("{a = 1, b = [true]}", {"a": 1, "b": [True]}),
    ("{'a': None, 'b': (1, (2, 'x'))}", {"a": None, "b": (1, (2, "x"))}),
    ("{}", {}),
    ('"a\\"b\\n"', 'a"b\n'),
    # What is no value is a text.
    ("", ""),
    ("human", "human"),
    ("#fff", "#fff"),
    ("5 # five", "5 # five"),
    ("1\nother = 2", "1\nother = 2"),
    ("a, b", "a, b"),
    ("00:1f", "00:1f"),
    ("{index}", "{index}"),
    ("NONE", "NONE"),
    ("model.xml", "model.xml"),
]


def same(left: Any, right: Any) -> bool:
    """Equal, of the same types all the way down."""
    if type(left) is not type(right):
        return False
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    return bool(left == right)


@pytest.mark.parametrize(("text", "value"), WRITTEN)
def test_what_was_typed_arrives(text: str, value: Any) -> None:
    resolved = resolve_with_origins("sac", "A", {"env_kwargs": [f"key={text}"]})
    config = resolved.config
    assert same(config.env_kwargs["key"], value)
    ways = {
        "worker": run_config(json.loads(json.dumps(config.model_dump(mode="json")))),
        "config.toml": read_config(config.to_toml()),
        "--print-config": read_config(resolved.render()),
        "resume": run_config(config.model_dump()),
        "Python": run_config(env="A", env_kwargs={"key": value}),
    }
    for way, other in ways.items():
        assert same(other.env_kwargs["key"], value), way


@pytest.mark.parametrize(
    "text", ["2026-01-01", "07:32:00", "2026-01-01T07:32:00Z", "{1, 2}", "b'x'", "1j", "{1: 2}", "[2026-01-01]", "..."]
)
def test_what_cannot_travel_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        resolve("sac", "A", {"env_kwargs": [f"key={text}"]})
    assert str(caught.value).startswith(f"--env-kwargs key={text}: key: ")
    assert "can be keys" in str(caught.value) or "arguments may be None, true or false" in str(caught.value)


@pytest.mark.parametrize("text", ["[1,", "[0.1 0.2]", "[a, b]", "(1, 2", "'a", '"a" b', "[1, two]"])
def test_what_was_meant_as_a_value_does_not_become_a_text(text: str) -> None:
    with pytest.raises(UsageError, match=r"key: .* begins like a list, a tuple or a quoted text"):
        resolve("sac", "A", {"env_kwargs": [f"key={text}"]})


@pytest.mark.parametrize("value", [{1}, b"x", 1j, {1: 2}, [object()], {"__none__": 1}, {"__tuple__": 3}])
def test_values_of_python_that_cannot_travel_are_refused(value: Any) -> None:
    with pytest.raises(ValidationError, match="key: "):
        run_config(env="A", env_kwargs={"key": value})


def test_numbers_of_numpy_are_refused_rather_than_changed() -> None:
    import numpy as np

    with pytest.raises(ValidationError, match="is of type float64"):
        run_config(env="A", env_kwargs={"key": np.float64(1.0)})


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a", ["a"]),
        ("m:C,x=1,y=[1, 2],z=(3, {'a': 4})", ["m:C", "x=1", "y=[1, 2]", "z=(3, {'a': 4})"]),
        ('m:C,s=\'a,b\',t="]\\","', ["m:C", "s='a,b'", 't="]\\","']),
    ],
)
def test_splitting_at_commas(text: str, parts: list[str]) -> None:
    assert split(text) == parts
