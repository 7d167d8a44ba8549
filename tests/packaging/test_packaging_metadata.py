"""What can be said of the package without building it: version, typing, presets, other platforms."""

import re
import subprocess
import sys
import tomllib
from importlib import import_module
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

import pytest

import rlz
from rlz import _native, errors
from rlz.cli import main

ROOT = Path(__file__).parents[2]


def test_the_version_comes_from_one_place() -> None:
    workspace = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]
    cargo = workspace["package"]["version"]
    assert rlz.__version__ == version("rlz") == _native.__version__ == cargo
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "version" in project["dynamic"]
    for member in workspace["members"]:
        manifest = tomllib.loads((ROOT / member / "Cargo.toml").read_text())
        assert manifest["package"]["version"] == {"workspace": True}, member
    lock = (ROOT / "Cargo.lock").read_text()
    assert re.findall(r'name = "rlz-\w+"\nversion = "(.+)"', lock) == [cargo] * 2


def test_types_and_presets_are_in_the_package() -> None:
    package = files("rlz")
    assert package.joinpath("py.typed").is_file()
    assert package.joinpath("_native.pyi").is_file()
    assert package.joinpath("configs", "sac.toml").is_file()


def test_another_operating_system_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    assert main(["train", "sac", "--env", "Ant-v4"]) == 1
    words = "rlz runs on Linux (5.14 or newer; tried on x86-64), not on win32. On Windows, use WSL2"
    assert capsys.readouterr().err == f"error: {words}\n"
    monkeypatch.delitem(sys.modules, "rlz.transport", raising=False)
    with pytest.raises(errors.PlatformError, match="rlz runs on Linux"):
        import_module("rlz.transport")
    with pytest.raises(ImportError, match="rlz runs on Linux"):
        _ = rlz.load


PREPARE = """
import sys
import rlz
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name == "rlz._native":
            raise {error}
sys.meta_path.insert(0, Missing())
"""
NOT_FOUND = "ModuleNotFoundError(\"No module named 'rlz._native'\", name=name)"
TOO_OLD = 'ImportError("version `GLIBC_2.99\' not found", name=name)'


@pytest.mark.parametrize("error", [NOT_FOUND, TOO_OLD])
@pytest.mark.parametrize("use", ["import rlz.transport", "rlz.load", "COMMAND"])
def test_a_native_module_that_cannot_be_loaded_is_explained(error: str, use: str) -> None:
    if use == "COMMAND":
        use = "from rlz.cli import main; sys.exit(main(['eval', 'run']))"
    code = PREPARE.format(error=error) + use
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert "rlz's native module cannot be loaded: " in last
    assert "build it with `make setup`; elsewhere, install the wheel again" in last
    if "main" in use:
        assert last == done.stderr.rstrip("\n")
        assert last.startswith("error: ")


def test_help_and_printing_work_without_the_native_module() -> None:
    code = PREPARE.format(error=NOT_FOUND) + (
        "from rlz.cli import main\nassert main(['--help']) == 0\n"
        "assert main(['train', 'sac', '--env', 'Ant-v4', '--print-config']) == 0"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL, timeout=60)
