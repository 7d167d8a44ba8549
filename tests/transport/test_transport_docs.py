"""The failure table of docs/transport.md names tests that exist, and its code runs."""

import re
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlz import transport

ROOT = Path(__file__).parents[2]
DOCS = (ROOT / "docs" / "transport.md").read_text()
FOLDERS = {"R": "rust/core/tests", "S": "rust/core/src", "P": "tests"}


def test_every_test_that_the_failure_table_names_exists() -> None:
    section = DOCS.split("## What happens when")[1].split("\n## ")[0]
    table = [line for line in section.splitlines() if line.startswith("|")][2:]
    assert len(table) == 9
    named = 0
    for cell in "|".join(table).split("|"):
        folder = file = None
        for token in re.findall(r"[RSP] (?=`)|[\w/]+\.(?:rs|py)\b|\b[a-z]+(?:_\w+)+\b", cell):
            if token.strip() in FOLDERS:
                folder = ROOT / FOLDERS[token.strip()]
            elif token.endswith((".rs", ".py")):
                assert folder is not None, cell
                file = folder / token
                assert file.is_file(), file
            else:
                assert file is not None, cell
                kind = "def" if file.suffix == ".py" else "fn"
                assert re.search(rf"\b{kind} {token}\b", file.read_text()), token
                named += 1
    assert named > 20


def code(section: str) -> str:
    """The indented lines of a section of the document."""
    text = DOCS.split(f"## {section}\n")[1].split("\n## ")[0]
    return "\n".join(line[4:] if line.startswith("    ") else "" for line in text.splitlines())


def test_the_code_of_the_document_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    segments: dict[str, Any] = {**vars(transport), "np": np, "obs": np.ones((64, 17), np.float32)}
    segments["reward"] = np.ones(64, np.float32)
    exec(code("Trajectory queue"), segments)
    assert segments["count"] == 1
    exec(code("In tests"), segments)

    actor = np.ones(17 * 6 + 6, np.float32)
    looks: dict[str, Any] = {**vars(transport), "np": np, "actor": actor, "into": np.empty(actor.nbytes, np.uint8)}
    looks["board"] = transport.StatsBoard.create(slots=1, names=["a"], event_width=1, event_capacity=2, run_id=1)
    exec(code("Parameters"), looks)
    assert looks["version"] == 1
    looks["into"][:] = 0
    exec(code("Looking at a running job").split("from rlz.runtime")[0], looks)
    looks["server"].close()
    assert (looks["into"].view(np.float32) == 1).all()

    replay = transport.Replay.create([("obs", "f32", (17,)), ("reward", "f32", ())], buffer_size=100, lanes=4, run_id=1)
    writer = replay.writer([0, 1], worker=2)
    writer.append(0, (np.ones(17, np.float32), 1.0), version=0)
    rows, ids = np.empty((256, replay.stride), np.uint8), np.empty((256, 3), np.uint64)
    replay.sampler(seed=[1, 2, 3, 4]).sample(rows, ids=ids)
    assert set(ids[:, 2]) == {1}
    names: dict[str, Any] = {"np": np, "Replay": transport.Replay, "obs": np.ones(17, np.float32), "reward": 1.0}
    exec(textwrap.dedent(DOCS.split("## Replay buffer")[1].split("\n- ")[0]), names)
    assert names["batch"]["obs"].shape == (256, 17)
    names = {"np": np, "Replay": transport.Replay, "replay": replay}
    names["fields"] = [("obs", "f32", (17,)), ("reward", "f32", ())]
    exec(textwrap.dedent(DOCS.split("## Saved buffers")[1].split("A run keeps")[0]), names)
    assert names["again"].committed() == [1, 0, 0, 0]
