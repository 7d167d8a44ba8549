"""The wheel that `make wheel` puts into dist/, installed into an empty environment, used away from the checkout.

`make wheel` runs this; the variable RLZ_WHEEL names the file. Nothing is downloaded: the packages that rlz needs are
those of the environment that runs the tests.
"""

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

import rlz

pytestmark = pytest.mark.wheel
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel() -> Path:
    """The wheel under test: RLZ_WHEEL, else the newest in dist/."""
    named = os.environ.get("RLZ_WHEEL")
    found = [Path(named)] if named else sorted((ROOT / "dist").glob("rlz-*.whl"), key=lambda path: path.stat().st_mtime)
    assert found, "there is no wheel: run `make wheel`"
    return found[-1]


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`bin` of an environment that holds the wheel; what rlz needs is found through a path file."""
    venv = tmp_path_factory.mktemp("wheel") / "venv"
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    python = venv / "bin" / "python"
    pip = [python, "-m", "pip", "--disable-pip-version-check", "--quiet", "install", "--no-index", "--no-deps"]
    subprocess.run([*pip, wheel], check=True)
    libraries = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    # A path file in another folder's packages is not read: the checkout, installed there for development, stays out.
    (Path(libraries.stdout.strip()) / "needed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return venv / "bin"


def run(installed: Path, folder: Path, *command: str) -> str:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV"))}
    done = subprocess.run(
        [installed / command[0], *command[1:]],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_is_in_it(wheel: Path) -> None:
    name, version, python, abi, platform = wheel.stem.split("-")
    assert (name, version, python, abi) == ("rlz", rlz.__version__, "cp311", "abi3")
    assert platform.startswith("manylinux"), "other machines' glibc may be older: see the tag"
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    expected = {"rlz/py.typed", "rlz/_native.pyi", "rlz/_native.abi3.so", "rlz/configs/sac.toml"}
    pages = {str(path.relative_to(ROOT / "python")) for path in (ROOT / "python/rlz/watch/page").iterdir()}
    assert expected | pages <= names
    sources = {str(path.relative_to(ROOT / "python")) for path in (ROOT / "python" / "rlz").rglob("*.py")}
    assert sources <= names
    extra = {item for item in names if not item.startswith(("rlz/", f"rlz-{version}.dist-info/", "rlz.libs/"))}
    assert not extra
    assert not {item for item in names if "__pycache__" in item or item.startswith("rlz/tests")}


def test_nothing_of_the_building_machine_is_in_it(wheel: Path) -> None:
    paths = [str(path).encode() for path in (ROOT, Path.home())]
    with zipfile.ZipFile(wheel) as archive:
        told = [name for name in archive.namelist() if any(path in archive.read(name) for path in paths)]
    assert not told


def test_it_stands_alone(installed: Path, tmp_path: Path) -> None:
    code = (
        "import rlz, rlz._native, rlz.transport, importlib.metadata as m\n"
        "assert rlz.__version__ == rlz._native.__version__ == m.version('rlz')\n"
        "print(rlz._native.__file__)"
    )
    assert run(installed, tmp_path, "python", "-c", code).startswith(str(installed.parent))


def test_help_and_presets(installed: Path, tmp_path: Path) -> None:
    assert "rlz train sac --env Ant-v4" in run(installed, tmp_path, "rlz", "--help")
    shown = run(installed, tmp_path, "rlz", "train", "sac", "--env", "Pendulum-v1", "--print-config")
    assert 'preset sac.toml [env."Pendulum-v1"]' in shown


@pytest.mark.parametrize("mode", ["serial", "async"])
def test_a_short_run(installed: Path, tmp_path: Path, mode: str) -> None:
    options = ("-n", "200", "--learning-starts", "100", "--eval-every", "0", "--no-compile", "--threads", "1")
    names = ("--name", "run", "--runs-dir", str(tmp_path / "runs"))
    run(installed, tmp_path, "rlz", "train", "sac", "--env", "Pendulum-v1", "--mode", mode, *options, *names)
    assert "return" in run(installed, tmp_path, "rlz", "eval", str(tmp_path / "runs" / "run"), "--episodes", "1")
