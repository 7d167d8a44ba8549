"""The rooms of the package: no circles, arrows one way, and built-in algorithms are named where they live alone."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import rlz
from rlz.algorithms.registry import BUILT_IN

PACKAGE = Path(rlz.__file__).parent

ORDER = (
    *(
        "errors",
        "dtypes",
        "lazy",
        "references",
        "options",
        "system",
        "answers",
        "row_sizes",
        "graph",
        "placement",
        "standard",
    ),
    *("networks", "envs", "acting", "algorithms", "config", "learning", "transport", "records", "curves"),
    "loaded_policy",
    *("tracking", "workers", "bench", "planning", "runtime", "studies", "watch", "cli", "api"),
)
"""Folders and single files of the package: each imports, while it is loaded, those before it."""

NAMES_LIVE_IN = ("algorithms", "configs", "bench")


def modules() -> dict[str, Path]:
    found = {}
    for file in PACKAGE.rglob("*.py"):
        parts = "rlz", *file.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


def loaded(node: ast.AST, known: dict[str, Path]) -> Iterator[str]:
    """Modules that a file imports when it is loaded: not those of functions, nor of types alone."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        return
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        for other in node.orelse:
            yield from loaded(other, known)
        return
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        for alias in node.names:
            inner = f"{node.module}.{alias.name}"
            yield inner if inner in known else str(node.module)
    for child in ast.iter_child_nodes(node):
        yield from loaded(child, known)


def imports() -> dict[str, set[str]]:
    known = modules()
    return {
        name: {one for one in loaded(ast.parse(file.read_text(encoding="utf-8")), known) if one in known} - {name}
        for name, file in known.items()
    }


def circle(graph: dict[str, set[str]]) -> list[str]:
    """Names of one circle, in order; empty where there is none."""
    done: set[str] = set()

    def walk(name: str, way: list[str]) -> list[str]:
        if name in way:
            return way[way.index(name) :]
        if name in done:
            return []
        for other in sorted(graph.get(name, ())):
            if found := walk(other, [*way, name]):
                return found
        done.add(name)
        return []

    return next((found for name in graph if (found := walk(name, []))), [])


def room(module: str) -> str:
    return module.split(".")[1]


def test_no_files_import_each_other() -> None:
    assert not circle(imports())
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c"]


def test_rooms_import_those_below_them_alone() -> None:
    found = imports()
    rooms = {room(name) for name in found if "." in name} - {"__main__", "_native"}
    assert rooms == set(ORDER)
    upward = {
        (name, other)
        for name, others in found.items()
        for other in others
        if "." in name and "." in other and room(name) in ORDER and ORDER.index(room(other)) > ORDER.index(room(name))
    }
    assert not upward


@pytest.mark.parametrize("kind", ["py", "pyi", "toml", "html", "js"])
def test_built_in_algorithms_are_named_where_they_live_alone(kind: str) -> None:
    names = re.compile(rf"\b({'|'.join(BUILT_IN)})\b", re.IGNORECASE)
    assert names.search(f"a {next(iter(BUILT_IN)).upper()} run")
    files = [file for file in PACKAGE.rglob(f"*.{kind}") if file.relative_to(PACKAGE).parts[0] not in NAMES_LIVE_IN]
    found = [
        f"{file.relative_to(PACKAGE)}:{number}: {line.strip()}"
        for file in files
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
        if names.search(line)
    ]
    assert not found
