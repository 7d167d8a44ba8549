"""Arguments of environments and wrappers: as Python or TOML writes them, and unchanged through TOML and JSON.

What can travel: None, bool, int, float, str, and lists, tuples and dicts (keys: texts) of them. Neither TOML nor JSON
has tuples, and TOML has no None. There they are written as `{ __tuple__ = [64, 64] }` and `{ __none__ = true }`. All
else that Python or TOML can write (dates, sets, bytes, complex numbers) is refused: an environment must not get
something else than what was typed.
"""

import ast
import re
import tomllib
from typing import Any

NONE, TUPLE = "__none__", "__tuple__"

BEGINS = ("[", "(", '"', "'")
"""With these begins no text that is meant as one ({index} is one)."""


class ToldError(ValueError):
    """A ValueError whose text is for the user as it is."""


def read(text: str) -> Any:
    """Read a value that was typed: as TOML, else as Python, else as it stands, a text.

    ToldError for a value that can be written, but not be passed on.
    """
    text = text.strip()
    if text == "null":
        return None
    try:
        value = _toml(text)
    except ValueError:
        try:
            value = ast.literal_eval(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            if text.startswith(BEGINS):
                raise ToldError(
                    f"{text!r} begins like a list, a tuple or a quoted text, and neither Python nor TOML reads it as "
                    "one (the shell takes quotes away). For a text, quote it twice: '\"...\"'"
                ) from None
            return text
        if "#" in text and not isinstance(value, str | list | tuple | dict):
            return text  # 5 # five: dropping a comment would be a change
    return check(value)


def _toml(text: str) -> Any:
    # In brackets neither a comment nor a line break can hide a part of the text.
    found = tomllib.loads(f"value = [{text}]")
    if set(found) != {"value"} or len(found["value"]) != 1 or text.endswith(","):
        raise ValueError("not one value")
    return found["value"][0]


def check(value: Any) -> Any:
    """Return a value that can travel; ToldError for any other."""
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if kind in (list, tuple):
        return kind(check(item) for item in value)
    if kind is dict:
        for key in value:
            if type(key) is not str:
                raise ToldError(f"the key {key!r} is a {type(key).__name__}; only texts can be keys")
        if NONE in value or TUPLE in value:
            return decode(value)
        return {key: check(item) for key, item in value.items()}
    raise ToldError(
        f"{value!r} is of type {kind.__name__}; arguments may be None, true or false, numbers, texts, and lists, "
        f"tuples and dicts of them. For a text, quote it: '\"{value}\"'"
    )


def encode(value: Any) -> Any:
    """Write a checked value with what TOML and JSON have."""
    if value is None:
        return {NONE: True}
    if isinstance(value, tuple):
        return {TUPLE: [encode(item) for item in value]}
    if isinstance(value, list):
        return [encode(item) for item in value]
    if isinstance(value, dict):
        return {key: encode(item) for key, item in value.items()}
    return value


def decode(value: Any) -> Any:
    """Inverse of `encode`; also checks. ToldError for what cannot travel."""
    if isinstance(value, dict) and (NONE in value or TUPLE in value):
        if set(value) == {NONE} and value[NONE] is True:
            return None
        if set(value) == {TUPLE} and isinstance(value[TUPLE], list | tuple):
            return tuple(check(item) for item in value[TUPLE])
        raise ToldError(f"{value!r}: expected {{ {NONE} = true }} or {{ {TUPLE} = [...] }}")
    return check(value)


def pairs(texts: list[str]) -> dict[str, Any]:
    """Read texts such as "healthy_reward=0.5"; ValueError where one has another form."""
    table = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip().isidentifier():
            raise ValueError("no such form")
        try:
            table[key.strip()] = read(value)
        except ToldError as error:
            raise ToldError(f"{key.strip()}: {error}") from None
    return table


def split(text: str) -> list[str]:
    """Split a text at its commas, except those within quotes and brackets."""
    parts, depth, start = [], 0, 0
    for found in re.finditer(r"\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'|[\[({]|[\])}]|,", text):
        mark = found[0]
        if mark in "[({":
            depth += 1
        elif mark in "])}":
            depth -= 1
        elif mark == "," and depth == 0:
            parts.append(text[start : found.start()])
            start = found.end()
    return [*parts, text[start:]]
