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
    table = [line for line in DOCS.split("## What happens when")[1].splitlines() if line.startswith("|")][2:]
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


def test_the_code_of_the_document_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fields = [("obs", "f32", (64, 17)), ("reward", "f32", (64,))]
    queue = transport.TrajectoryQueue.create(fields, slots=32, run_id=1)
    producer, consumer = queue.producer(worker=2), queue.consumer(worker=1)
    producer.put(obs=np.ones((64, 17), np.float32), reward=np.ones(64, np.float32), timeout=None)
    with consumer.pop(timeout=None) as segment:
        assert segment["obs"].mean() == 1
    replay = transport.Replay.create([("obs", "f32", (17,)), ("reward", "f32", ())], buffer_size=100, lanes=4, run_id=1)
    writer = replay.writer([0, 1], worker=2)
    writer.append(0, (np.ones(17, np.float32), 1.0), version=0)
    rows, ids = np.empty((256, replay.stride), np.uint8), np.empty((256, 3), np.uint64)
    replay.sampler(seed=[1, 2, 3, 4]).sample(rows, ids=ids)
    assert set(ids[:, 2]) == {1}
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"np": np, "Replay": transport.Replay, "replay": replay}
    names["fields"] = [("obs", "f32", (17,)), ("reward", "f32", ())]
    exec(textwrap.dedent(DOCS.split("## Saved buffers")[1].split("A run keeps")[0]), names)
    assert names["again"].committed() == [1, 0, 0, 0]
