"""Names of the algorithms, where each comes from, and what is asked of it before a run: its settings and answers.

rlz's own algorithms answer without torch. A user's file may import what it likes, so it is asked by a short child
process (`answer_process.py`), and what it answers is kept in a cache.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from rlz.answers import Answers
from rlz.errors import ConfigError, EnvError
from rlz.references import file_of, label, leads_nowhere, load
from rlz.system.files import replace_file
from rlz.system.user_cache import drop_oldest, user_cache

if TYPE_CHECKING:
    from rlz.algorithms.base import Algorithm
    from rlz.algorithms.settings import Settings
    from rlz.envs.spaces import EnvSpec

BUILT_IN: Mapping[str, str] = MappingProxyType(
    {
        "sac": "rlz.algorithms.sac:Sac",
        "td3": "rlz.algorithms.td3:Td3",
        "ddpg": "rlz.algorithms.ddpg:Ddpg",
        "dqn": "rlz.algorithms.dqn:Dqn",
        "sac-discrete": "rlz.algorithms.sac_discrete:SacDiscrete",
        "ppo": "rlz.algorithms.ppo:Ppo",
        "appo": "rlz.algorithms.appo:Appo",
    }
)
"""Module and class of each algorithm by its name."""

CACHE_ENTRIES = 256
"""Answers that are kept; some kB each."""


def is_own(algo: str) -> bool:
    """The algorithm is a user's: file.py:Class, module:Class, or a class that was given to `rlz.train`."""
    return ":" in algo


def algorithm_type(algo: str) -> type[Algorithm[Any]]:
    """Import the class of an algorithm.

    Raises
    ------
    ConfigError
        There is none, or it is no algorithm.
    """
    if not is_own(algo):
        if algo not in BUILT_IN:
            raise ConfigError(f"Unknown algorithm {algo!r}. Algorithms: {', '.join(BUILT_IN)}.")
        module, _, name = BUILT_IN[algo].partition(":")
        built_in: type[Algorithm[Any]] = getattr(import_module(module), name)
        return built_in
    from rlz.algorithms.base import Algorithm

    found = load(algo)
    if not isinstance(found, type) or not issubclass(found, Algorithm):
        raise ConfigError(
            f"{label(algo)} is no algorithm. A class of your own derives from rlz.TorchAlgorithm (modules, optimisers "
            "and learn(batch, update)) or from rlz.Algorithm (a pure update)."
        )
    return found


@cache
def settings_type(algo: str) -> type[Settings]:
    """The class of an algorithm's settings. Of a user's own where torch is not loaded: one with the same options."""
    if leads_nowhere(algo):
        raise ConfigError(f"{algo}: there is no such file.")
    if not is_own(algo) or "torch" in sys.modules:
        return algorithm_type(algo).Settings
    from rlz.algorithms.settings_json import settings_class

    return settings_class(_asked(algo, "settings", {}))


def settings_of(algo: str, values: Mapping[str, Any]) -> Settings:
    """The settings among the values of a run, by the algorithm's own class."""
    kind = algorithm_type(algo).Settings
    return kind.model_validate({name: value for name, value in values.items() if name in kind.model_fields})


def make_algorithm(algo: str, values: Mapping[str, Any], env_spec: EnvSpec) -> Algorithm[Any]:
    """The algorithm with the settings among the values of a run."""
    return algorithm_type(algo)(settings_of(algo, values), env_spec)


def answers_of(algo: str, values: Mapping[str, Any], env_spec: EnvSpec) -> Answers:
    """What an algorithm answers for an environment.

    Raises
    ------
    EnvError
        It is for other actions; names algorithms that fit.
    ConfigError
        It cannot be made, or raises; with the user's traceback.
    """
    settings = settings_type(algo)
    code = [values[name] for name in settings.code if values.get(name)]
    if "torch" in sys.modules or not (is_own(algo) or code):
        try:
            return make_algorithm(algo, values, env_spec).answers()
        except EnvError as error:
            raise EnvError(f"{error} Algorithms that fit: {', '.join(fitting(env_spec)) or 'none'}.") from error
    own = {name: value for name, value in values.items() if name in settings.model_fields}
    return Answers.from_json(_asked(algo, "answers", {"values": own, "env_spec": env_spec.to_json()}, code))


def fitting(env_spec: EnvSpec) -> list[str]:
    """Names of rlz's algorithms that take the actions of an environment."""
    found = []
    for algo in BUILT_IN:
        with suppress(EnvError):
            make_algorithm(algo, {}, env_spec)
            found.append(algo)
    return found


def _asked(
    algo: str, what: Literal["settings", "answers"], question: Mapping[str, Any], code: Sequence[str] = ()
) -> Any:
    """Ask a class in a child process, unless it was asked the same before. `code`: a user's own, beside the class."""
    text = json.dumps({"algo": algo, "what": what, **question}, sort_keys=True)
    kept = user_cache("algorithms") / f"{_digest((algo, *code), text)}.json"
    try:
        return json.loads(kept.read_text())
    except (OSError, ValueError):
        pass
    command = [sys.executable, "-m", "rlz.algorithms.answer_process"]
    path = [entry or str(Path.cwd()) for entry in sys.path]
    done = subprocess.run(command, input=json.dumps({"path": path, "question": text}), capture_output=True, text=True)
    try:
        found = json.loads(done.stdout.strip().rpartition("\n")[2] or "{}")
    except ValueError:
        found = {}
    if "error" in found:
        raise ConfigError(found["error"])
    if "answer" not in found:
        last = (done.stderr.strip() or f"it ended with status {done.returncode}").splitlines()[-1]
        raise ConfigError(f"{label(algo)} could not be asked what it is: {last}")
    try:
        kept.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        drop_oldest(kept.parent, "*.json", CACHE_ENTRIES)
        replace_file(kept, json.dumps(found["answer"]).encode())
    except OSError:
        pass  # asked again next time
    return found["answer"]


def _digest(names: tuple[str, ...], text: str) -> str:
    """Of the question, the user's files and rlz itself: what is kept holds for these alone."""
    digest = hashlib.sha256(text.encode())
    own = [file for name in names if (file := file_of(name)) is not None]
    package = Path(__file__).parents[1]
    for source in (*own, *sorted([*package.glob("a*/*.py"), *package.glob("networks/*.py")])):
        digest.update(source.read_bytes() + b"\0")
    return digest.hexdigest()[:32]
