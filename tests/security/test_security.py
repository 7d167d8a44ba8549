"""Nothing of a run can be read by others, and nothing that is read from a run can execute code."""

import ast
import importlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rlz

PACKAGE = Path(rlz.__file__).parent

# A private pipe between two processes of the same learner, one of which has started the other. And the memory that
# holds the spec of a worker: an object of Python without a name travels by it. No file may hold one (below).
OWN_PIPES = {("learning/compile_helper.py", "pickle.load"), ("references.py", "cloudpickle.loads")}

LOADERS = {
    *("pickle.load", "pickle.loads", "pickle.Unpickler", "cloudpickle.load", "cloudpickle.loads", "dill.load"),
    *("marshal.load", "marshal.loads", "shelve.open", "joblib.load", "pandas.read_pickle", "torch.load", "jit.load"),
    *("torch.jit.load", "yaml.load", "yaml.unsafe_load"),
}
EVALUATORS = {"eval", "exec", "compile", "__import__"}


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


def calls(tree: ast.Module) -> Iterator[tuple[str, ast.Call]]:
    """Every call with the full name of what is called, however it was imported."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for item in node.names:
                top = item.name.partition(".")[0]
                names[item.asname or top] = item.name if item.asname else top
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.update({item.asname or item.name: f"{node.module}.{item.name}" for item in node.names})
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            first, dot, rest = dotted(node.func).partition(".")
            yield names.get(first, first) + dot + rest, node


def risky(source: str) -> list[str]:
    """Names of the calls in a source text that can execute what they read."""
    found = []
    for name, call in calls(ast.parse(source)):
        allow_pickle = any(
            keyword.arg == "allow_pickle" and not (isinstance(keyword.value, ast.Constant) and not keyword.value.value)
            for keyword in call.keywords
        )
        if name in LOADERS or name in EVALUATORS or allow_pickle:
            found.append(name)
    return found


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import pickle\npickle.load(f)", ["pickle.load"]),
        ("import pickle as p\np.loads(b)", ["pickle.loads"]),
        ("from pickle import loads as read\nread(b)", ["pickle.loads"]),
        ("import torch\ntorch.load(f, weights_only=False)", ["torch.load"]),
        ("import numpy as np\nnp.load(f, allow_pickle=True)", ["numpy.load"]),
        ("import numpy as np\nnp.load(f, allow_pickle=False)\nnp.load(f)", []),
        ("import cloudpickle\ncloudpickle.loads(b)\neval('1')", ["cloudpickle.loads", "eval"]),
        ("model.eval()\nre.compile('x')\nimport json\njson.load(f)", []),
    ],
)
def test_the_search_finds_what_it_is_for(source: str, found: list[str]) -> None:
    assert risky(source) == found


def test_nothing_that_is_read_is_ever_executed() -> None:
    found = {
        (str(path.relative_to(PACKAGE)), name) for path in PACKAGE.rglob("*.py") for name in risky(path.read_text())
    }
    assert found == OWN_PIPES


@pytest.mark.parametrize("key", ["algo", "env", "graph"])
def test_a_file_that_holds_an_object_is_refused(tmp_path: Path, key: str) -> None:
    from rlz.config import read_config
    from rlz.errors import ConfigError

    file = tmp_path / "config.toml"
    file.write_text(f'{key} = "pickle:gASVAA=="\n')
    with pytest.raises(ConfigError, match=f"{key} holds an object"):
        read_config(file)


def train(folder: Path, **values: Any) -> Path:
    """Make a run as somebody with a careless umask; returns its folder."""
    from rlz.config import run_config

    options = {
        "env": "Pendulum-v1", "total_timesteps": 60, "learning_starts": 20, "eval_every": 20, "eval_episodes": 1,
        "hidden": [8], "batch_size": 8, "buffer_size": 1000, "compile": False, "runs_dir": str(folder / "runs"),
        "name": "run", **values,
    }  # fmt: skip
    # Its processes are as private as those of the real learner, and start sooner.
    workers = None if values.get("mode") == "serial" else {"learner": "support.fake_learner:Learner"}
    old = os.umask(0)
    try:
        status = importlib.import_module("rlz.runtime.train").train(run_config(options), quiet=True, workers=workers)
        assert status == 0
        assert os.umask(0) == 0, "the umask of the caller is given back"
    finally:
        os.umask(old)
    return folder / "runs" / "run"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a run in serial mode."""
    return train(tmp_path_factory.mktemp("private"), mode="serial")


def open_to_others(folder: Path) -> list[str]:
    paths = [folder, *folder.rglob("*")]
    return [f"{path} {path.stat().st_mode:o}" for path in paths if stat.S_IMODE(path.lstat().st_mode) & 0o077
            and not path.is_symlink()]  # fmt: skip


def test_only_its_owner_reads_a_run(run: Path) -> None:
    assert {"config.toml", "summary.json", "metrics.jsonl", "checkpoints", "replay", "logs"} <= {
        path.name for path in run.iterdir()
    }
    assert not open_to_others(run)


def test_a_run_holds_only_formats_that_execute_nothing(run: Path) -> None:
    kinds = {path.suffix for path in run.rglob("*") if path.is_file() and ".tfevents." not in path.name}
    assert kinds <= {".safetensors", ".npy", ".json", ".jsonl", ".toml", ".csv", ".log", ""}
    assert [path.name for path in run.rglob("*") if path.is_file() and path.suffix == ""] == [".lock"]
    checkpoint = {path.name for path in (run / "checkpoints" / "latest").iterdir()}
    assert checkpoint == {"learner.safetensors", "state.json", "policy.safetensors", "policy.json"}
    for path in run.rglob("*"):
        assert not (path.is_file() and b"\x80\x04\x95" in path.read_bytes()[:64]), f"{path} starts like a pickle"


def test_worker_processes_write_private_files_too(tmp_path: Path) -> None:
    run = train(tmp_path)
    assert {"learner.log", "sampler-0.log", "evaluator.log"} <= {path.name for path in (run / "logs").iterdir()}
    assert not open_to_others(run)


def test_shared_memory_has_no_name() -> None:
    """Streams are memfds: there is no path by which another user could open them."""
    source = "".join(path.read_text() for path in (PACKAGE.parents[1] / "rust" / "core" / "src").rglob("*.rs"))
    assert "memfd_create" in source
    assert "shm_open" not in source
    assert "/dev/shm" not in source
