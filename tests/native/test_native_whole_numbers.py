"""Whole numbers that do not fit are refused with the argument's name, what was expected and what was given."""

import ast
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlz import _native

STUB = ast.parse(Path(_native.__file__).with_name("_native.pyi").read_text(encoding="utf-8"))
PLACES = {"int": 0, "list[int]": 1, "Sequence[int]": 1, "Sequence[Sequence[int]]": 2}
"""Types that are converted to whole numbers, and in how many sequences the number lies."""

FIELDS = [("obs", "f4", (2,))]
VALUES = {
    "float": 1.0,
    "str": "",
    "bytes": b"",
    "bool": False,
    "_Path | Sequence[_Path]": "x",
    "Sequence[str]": ["a"],
    "Mapping[str, NDArray[Any]]": {},
}
"""Values of other arguments, by type; None for arrays."""


def annotation(argument: ast.arg) -> str:
    return "" if argument.annotation is None else ast.unparse(argument.annotation).removesuffix(" | None")


def arguments(function: ast.FunctionDef) -> list[tuple[ast.arg, bool]]:
    """Its arguments, and whether each must be given."""
    listed, keywords = function.args.args, function.args.kwonlyargs
    needed = len(listed) - len(function.args.defaults)
    found = [(argument, number < needed) for number, argument in enumerate(listed)]
    more = zip(keywords, function.args.kw_defaults, strict=True)
    return found + [(argument, default is None) for argument, default in more]


def cases() -> list[Any]:
    """Class ("" for functions), function, and the argument that is wrong."""
    found = []
    bodies = [("", STUB.body), *((node.name, node.body) for node in STUB.body if isinstance(node, ast.ClassDef))]
    for owner, body in bodies:
        for node in body:
            if isinstance(node, ast.FunctionDef):
                for argument, _ in arguments(node):
                    if annotation(argument) in PLACES:
                        where = f"{owner}.{node.name}-{argument.arg}"
                        found.append(pytest.param(owner, node, argument.arg, id=where))
    return found


@pytest.fixture(scope="module")
def ends() -> dict[str, Any]:
    """An object of every class."""
    limiter = _native.Limiter.create(lanes=2, total_timesteps=9, learning_starts=1, ratio=(1, 1), slack=2)
    replay = _native.Replay.create(FIELDS, buffer_size=64)
    queue = _native.TrajectoryQueue.create(FIELDS, slots=2)
    store = _native.ParameterStore.create(FIELDS)
    board = _native.StatsBoard.create(slots=1, names=["a"])
    stream = _native.InferenceStream.create(FIELDS, [("action", "f4", (2,))], lanes=2)
    producer = queue.producer(worker=1)
    segment = producer.acquire()
    made: list[Any] = [limiter, replay, queue, store, board, stream, producer, segment, queue.consumer(worker=2)]
    made += [replay.writer([0], worker=1), replay.sampler(seed=1), replay.prioritized_sampler(seed=1), replay.tail()]
    made += [store.publisher(worker=1), store.subscriber(), stream.client([[0, 1]], worker=1), stream.server(worker=2)]
    made += [_native.PhaseClock(board, 0)]
    return {type(one).__name__: one for one in made}


def whole(number: int, places: int) -> Any:
    return number if places == 0 else [whole(number, places - 1)]


def test_every_such_argument_is_tried() -> None:
    found = {case.id for case in cases()}
    assert len(found) > 60
    assert {"Replay.create-buffer_size", "Limiter.acquire_steps-lanes", ".check_shared_memory-nbytes"} <= found


@pytest.mark.parametrize("number", [-(2**70), 2**70])
@pytest.mark.parametrize(("owner", "function", "name"), cases())
def test_a_number_that_does_not_fit_is_named(
    ends: dict[str, Any], owner: str, function: ast.FunctionDef, name: str, number: int
) -> None:
    given: dict[str, Any] = {}
    for argument, needed in arguments(function):
        kind = annotation(argument)
        if argument.arg == name:
            given[name] = whole(number, PLACES[kind])
        elif needed and argument.arg not in ("self", "cls"):
            given[argument.arg] = whole(1, PLACES[kind]) if kind in PLACES else ends.get(kind, VALUES.get(kind))
    target: Any = getattr(_native, owner) if owner else _native
    if any(ast.unparse(decorator).endswith(".setter") for decorator in function.decorator_list):
        name = function.name
        with pytest.raises(ValueError, match=rf"^{name}: expected .*whole number.*, got {number}"):
            setattr(ends[owner], name, number)
        return
    static = any(ast.unparse(decorator) == "staticmethod" for decorator in function.decorator_list)
    call = (
        target if function.name == "__new__" else getattr(target if static or not owner else ends[owner], function.name)
    )
    with pytest.raises(ValueError, match=rf"^{name}: expected .*whole numbers?.*, got .*{number}"):
        call(**given)


def test_what_is_no_number_is_named_too() -> None:
    with pytest.raises(TypeError, match=r"^buffer_size: expected a whole number from 0 to 2\*\*64 - 1, got a float"):
        _native.Replay.create(FIELDS, buffer_size=1.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^lanes: expected a sequence of whole numbers .*, got a str"):
        _native.Replay.create(FIELDS, buffer_size=9).writer("0", worker=1)  # type: ignore[arg-type]
    replay = _native.Replay.create(FIELDS, buffer_size=np.int64(9), lanes=np.uint8(2))  # type: ignore[arg-type]
    assert (replay.buffer_size, replay.lanes) == (9, 2)
