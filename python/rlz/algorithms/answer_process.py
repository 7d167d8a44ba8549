"""The child process that asks a user's algorithm: `python -m rlz.algorithms.answer_process`, a question on stdin.

The last line of its output is JSON: "answer", or "error" for people, with the user's traceback.
"""

from __future__ import annotations

import json
import os
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rlz.algorithms.registry import algorithm_type, is_own, make_algorithm
from rlz.envs.spaces import EnvSpec
from rlz.errors import RlzError
from rlz.references import label


def main() -> int:
    """Answer, and return the exit status."""
    given = json.loads(sys.stdin.read())
    sys.path.extend(entry for entry in given["path"] if entry not in sys.path)
    question = json.loads(given["question"])
    with _quiet():
        found = _answer(question)
    print("\n" + json.dumps(found), flush=True)
    return 0


def _answer(question: dict[str, Any]) -> dict[str, Any]:
    algo = question["algo"]
    try:
        if question["what"] == "settings":
            from rlz.algorithms.settings_json import description

            return {"answer": description(algorithm_type(algo).Settings)}
        algorithm = make_algorithm(algo, question["values"], EnvSpec.from_json(question["env_spec"]))
        return {"answer": algorithm.answers().to_json()}
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = str(first["loc"][0]).replace("_", "-") if first["loc"] else ""
        reason = first["msg"].removeprefix("Value error, ")
        return {"error": f"--{name} {first['input']}: {reason}" if name else reason}
    except Exception as error:
        whole = isinstance(error, RlzError) and (error.__cause__ is None or _only_missing(error.__cause__))
        trace = "" if whole else "\n" + _trace(error.__cause__ if isinstance(error, RlzError) else error)
        what = str(error) if isinstance(error, RlzError) else f"{type(error).__name__}: {error}"
        who = f"{label(algo)}: " if is_own(algo) else ""  # else code that an option names, which the message says
        return {"error": f"{who}{what}{trace}".rstrip()}


def _only_missing(error: BaseException) -> bool:
    """A module that rlz was told to import does not exist; nothing of the user's has run."""
    frames = traceback.extract_tb(error.__traceback__)
    return isinstance(error, ModuleNotFoundError) and not any(_of_user(frame.filename) for frame in frames)


def _of_user(file: str) -> bool:
    """The file is no part of rlz, Python or an installed package."""
    return not file.startswith((str(Path(__file__).parents[1]), *sysconfig.get_paths().values(), "<"))


def _trace(error: BaseException | None) -> str:
    """The traceback, from the first line of the user's own code."""
    if error is None:
        return ""
    step = error.__traceback__
    while step is not None and step.tb_next is not None and not _of_user(step.tb_frame.f_code.co_filename):
        step = step.tb_next
    return "".join(traceback.format_exception(type(error), error, step))


@contextmanager
def _quiet() -> Iterator[None]:
    """What the user's code prints goes to stderr: stdout is for the answer."""
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
        sys.stdout.flush()
    finally:
        os.dup2(kept, 1)
        os.close(kept)


if __name__ == "__main__":
    sys.exit(main())
