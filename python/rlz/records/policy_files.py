"""Writing `policy.safetensors` and `policy.json`, the two files that every checkpoint has (read by `rlz.load`)."""

import json
import shutil
import uuid
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rlz.config.model import ask
from rlz.errors import NonFiniteError
from rlz.system.files import new_folder, point_to, replace_file, write_file

if TYPE_CHECKING:
    from rlz.answers import PolicySpec
    from rlz.config import RunConfig
    from rlz.envs.spaces import EnvSpec

DESCRIPTION = "policy.json"
TENSORS = "policy.safetensors"


@dataclass(frozen=True)
class PolicyFiles:
    """A policy ready to be written: `policy.json` and the tensors of the actor by name."""

    description: dict[str, Any]
    tensors: dict[str, NDArray[Any]]

    @staticmethod
    def of(
        config: "RunConfig",
        env_spec: "EnvSpec",
        parameters: NDArray[np.uint8],
        *,
        version: int,
        env_steps: int,
        updates: int,
        evaluation: dict[str, Any] | None = None,
        acts: "PolicySpec | None" = None,
    ) -> "PolicyFiles":
        """Describe a packed actor, as it was published.

        `acts`: what acts, as the algorithm has answered before the run; None asks it, which runs a user's code.

        Raises
        ------
        NonFiniteError
            A parameter is not finite.
        """
        from rlz.loaded_policy import describe, split_parameters

        policy = ask(config, env_spec).policy if acts is None else acts
        tensors = split_parameters(policy.manifest, parameters)
        check_finite(tensors, "policy")
        description = describe(config, env_spec, policy, version=version, env_steps=env_steps)
        description["updates"] = updates
        if evaluation is not None:
            description["evaluation"] = evaluation
        return PolicyFiles(description, tensors)

    def write(self, folder: Path) -> None:
        """Write both files into a folder that nobody reads yet."""
        from safetensors.numpy import save

        data = save(self.tensors)  # not save_file: it reports a full disk as an error of the format
        write_file(folder / TENSORS, data)
        description = {**self.description, "crc32": zlib.crc32(data)}
        write_file(folder / DESCRIPTION, (json.dumps(description, indent=2) + "\n").encode())


def check_finite(tensors: dict[str, NDArray[Any]], what: str) -> None:
    """Raise NonFiniteError naming the first tensor that holds a number that is not finite."""
    for name, tensor in tensors.items():
        if tensor.dtype.kind in "fc" and not np.isfinite(tensor).all():
            bad = int(tensor.size - np.isfinite(tensor).sum())
            raise NonFiniteError(f"{what} tensor {name!r} holds {bad} of {tensor.size} numbers that are not finite")


def write_scored(checkpoints: Path, files: PolicyFiles, *, best: bool) -> None:
    """Put a policy in place as `evaluated`, and as `best` where it is the best one: links to one folder beside them.

    Parameters
    ----------
    checkpoints : of the run. Each link always leads to a whole policy.
    files : what to write.
    best : whether `best` is to lead there as well.

    Raises
    ------
    OSError
        The disk is full, or the folder cannot be written. The previous policies stay.
    """
    links = [checkpoints / name for name in ("evaluated", "best")]
    old = {link.resolve() for link in links if link.is_symlink()}
    folder = checkpoints / f"scored-{files.description['env_steps']:012d}-{uuid.uuid4().hex[:6]}"
    with new_folder(folder) as temporary:
        files.write(temporary)
    for link in links[: 1 + best]:
        point_to(link, folder.name)
    for left in old - {link.resolve() for link in links}:
        shutil.rmtree(left, ignore_errors=True)


def add_held_out(link: Path, score: Mapping[str, float]) -> None:
    """Note in the description of the best policy how it did on starts that did not choose it. Raises OSError."""
    path = link.resolve() / DESCRIPTION
    description = json.loads(path.read_text()) | {"held_out": dict(score)}
    replace_file(path, (json.dumps(description, indent=2) + "\n").encode())


def read_description(folder: Path) -> dict[str, Any] | None:
    """Read `policy.json` of a folder; None when there is none that can be read."""
    try:
        value = json.loads((folder / DESCRIPTION).read_text())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None
