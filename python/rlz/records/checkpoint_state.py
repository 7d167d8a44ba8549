"""`state.json` of a checkpoint: its fields and their types, checked on every load, and checksums of the other files."""

import json
import zlib
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from rlz.errors import CheckpointError
from rlz.records.replay_files import SavedReplay
from rlz.records.totals import Totals

FORMAT = 2
STATE = "state.json"

Count = Annotated[int, Field(ge=0)]
Hex = Annotated[str, StringConstraints(pattern=r"^([0-9a-f]{2})*$")]
"""Bytes, as hexadecimal text."""


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True)


class Checksum(_Strict):
    """Size in bytes and CRC-32 of a file."""

    nbytes: Count
    crc32: Count

    @staticmethod
    def of(data: bytes) -> "Checksum":
        """Measure a file's contents."""
        return Checksum(nbytes=len(data), crc32=zlib.crc32(data))


class RandomStates(_Strict):
    """States of the learner's random streams: draws from the replay buffer, noise of the updates."""

    replay: Hex
    learner: Hex


class State(_Strict):
    """Everything in `state.json`.

    `files`: checksums of the other files in the folder; empty in checkpoints that are older than checksums.
    `workers`: states of the workers that took turns with the one that wrote it (see `Stateful`).
    `totals`: what the run has counted up to the cut.
    """

    format: int
    created: float
    env_steps: Count
    updates: Count
    counters: dict[str, int]
    rng: RandomStates
    extra: dict[str, Any]
    workers: dict[str, dict[str, Any]]
    replay: SavedReplay | None
    files: dict[str, Checksum] = {}
    totals: Totals = Totals()

    def read(self, path: Path) -> bytes:
        """Read a file of the checkpoint and compare it with its checksum, where there is one.

        Raises
        ------
        CheckpointError
            The file is missing or is not what was written.
        """
        try:
            data = path.read_bytes()
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error
        expected = self.files.get(path.name)
        if expected is not None and expected.nbytes != len(data):
            raise CheckpointError(f"{path} has {len(data)} bytes, expected {expected.nbytes}")
        if expected is not None and expected != Checksum.of(data):
            raise CheckpointError(
                f"{path} is damaged: its CRC-32 is {zlib.crc32(data):08x}, expected {expected.crc32:08x}"
            )
        return data


def read_state(folder: Path) -> State:
    """Read and check `state.json` of a checkpoint folder.

    Raises
    ------
    CheckpointError
        It is missing, broken, or of another format; says what.
    """
    path = folder / STATE
    try:
        text = path.read_bytes()
        value = json.loads(text)
    except OSError as error:
        raise CheckpointError(f"{folder} is no checkpoint: {error.strerror or error}") from error
    except ValueError as error:
        raise CheckpointError(f"{path} is broken: {error}") from error
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        found = value.get("format") if isinstance(value, dict) else type(value).__name__
        raise CheckpointError(f"{folder} has checkpoint format {found}; this rlz reads format {FORMAT}")
    try:
        return State.model_validate_json(text)
    except ValidationError as error:
        problems = (f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in error.errors()[:3])
        raise CheckpointError(f"{path} is broken: {'; '.join(problems)}") from error
