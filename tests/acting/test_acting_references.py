"""Names of a user's own classes: there and back."""

import sys
from pathlib import Path

import pytest

from rlz import references
from rlz.errors import ConfigError
from rlz.references import load, reference_to

FILE = """
import beside
COUNT = [len(beside.NAMES)]
class Outer:
    class Inner:
        pass
def make():
    class Local:
        value = 7
    return Local
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(references, "_FILES", {})
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("own_code", "beside"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    (tmp_path / "beside.py").write_text("NAMES = ['a']\n")
    path = tmp_path / "own_code.py"
    path.write_text(FILE)
    return path


def test_a_file_is_executed_once_and_its_classes_have_its_name(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = load(f"{file}:Outer.Inner")
    load(f"{file}:COUNT").append(1)
    monkeypatch.chdir(file.parent)
    assert load("own_code.py:COUNT") == [1, 1]
    assert reference_to(inner) == f"{file}:Outer.Inner"
    assert load(reference_to(inner)) is inner
    assert reference_to(Path) == f"{Path.__module__}:Path"
    assert load(reference_to(Path)) is Path


def test_what_has_no_name_travels_as_a_pickle(file: Path) -> None:
    local = load(f"{file}:make")()
    assert reference_to(local).startswith("pickle:")
    assert load(reference_to(local)).value == 7


def test_the_same_name_in_two_folders_is_two_modules(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "further" / "own_code.py"
    other.parent.mkdir()
    other.write_text("class Outer:\n    other = True\n")
    first, second = load(f"{file}:Outer"), load(f"{other}:Outer")
    assert first is not second
    assert second.other
    assert reference_to(second) == f"{other}:Outer"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("own_code.py:Outr", "has no 'Outr'. Did you mean 'Outer'?"),
        ("nothing.py:Net", "nothing.py: there is no such file"),
        ("no_such_module:Net", "there is no module 'no_such_module'"),
        ("own_code.py", "expected file.py:Name or module:Name"),
        ("broken.py:Net", "importing it raised ZeroDivisionError: division by zero"),
        ("missing.py:Net", "there is no module 'not_installed'"),
        ("exits.py:Net", "importing it raised SystemExit"),
    ],
)
def test_names_that_lead_nowhere(file: Path, name: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (file.parent / "broken.py").write_text("1 / 0\n")
    (file.parent / "missing.py").write_text("import not_installed\n")
    (file.parent / "exits.py").write_text("raise SystemExit(3)\n")
    monkeypatch.chdir(file.parent)
    for _ in range(2):  # a module that failed is not taken for one that is there
        with pytest.raises(ConfigError) as caught:
            load(name)
        assert words in str(caught.value)
