"""What went wrong while an environment or a wrapper was made, in words that say what to do."""

import errno
import importlib
import inspect
import re
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlz.errors import EnvError
from rlz.options.names import close, either

ALIKE = 0.7
"""Similarity from which on a registered id is suggested. Below, it shares a few letters: Hopper and Nope."""

_HERE = str(Path(__file__).parent)


def import_module(module: str, what: str) -> Any:
    """Import a module that the user named in `what`; EnvError says what is missing, or what it raised."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing = error.name or module
        raise EnvError(
            f"{what}: there is no module {missing!r}. Install its package into the environment of rlz, or run rlz in "
            f"the folder that holds {missing.partition('.')[0]}."
        ) from error
    except (Exception, SystemExit) as error:
        raise EnvError(f"{what}: importing {module!r} failed. {told(error)}") from error


def explain(env_id: str, kwargs: dict[str, Any], error: BaseException) -> EnvError:
    """Turn what `gymnasium.make` raised into one message."""
    from gymnasium import error as gym_error

    text = re.sub(r"\x1b\[\d+m", "", str(error)).strip()
    bare = env_id.rpartition(":")[2]
    if isinstance(error, gym_error.DependencyNotInstalled):
        return EnvError(f"{env_id} needs a package that is not installed. {text}")
    if _is_taken(error):
        return EnvError(
            f"{env_id} cannot be made: {text}. A run makes several instances: one for each environment of its samplers "
            "and one for the evaluator. Give each a port of its own: --env-kwargs port={5000+index}, with the name "
            "that the environment has for it; index counts the instances from 0"
        )
    if isinstance(error, gym_error.DeprecatedEnv | gym_error.UnregisteredEnv):
        near = _with_module(_similar(bare), env_id)
        what = f"There is no environment {env_id}."
        if near:
            return EnvError(f"{what} Did you mean {either(near)}?")
        if "/" in bare and ":" not in env_id:
            return EnvError(
                f"{what} Is the package that registers {bare.partition('/')[0]}/... missing? "
                f"Name its module: --env module:{bare}"
            )
        return EnvError(f"{what} An environment of your own is named with its module: --env my_module:{bare}")
    argument = re.search(r"unexpected keyword argument '(\w+)'", text)
    if argument and argument[1] in kwargs:
        return EnvError(
            f"{env_id} has no argument {argument[1]!r} (--env-kwargs {argument[1]}=...).{_arguments(bare, argument[1])}"
        )
    if missing := missing_package(error):
        return EnvError(f"{env_id} {missing}.")
    if isinstance(error, gym_error.Error | ImportError):
        near = _with_module([item for item in _similar(bare) if item != bare], env_id)
        return EnvError(f"{env_id} cannot be made: {text}{f' Others: {either(near)}.' if near else ''}")
    return EnvError(f"{env_id} cannot be made: its constructor raised {told(error)}")


def explain_wrapper(
    path: str, env_id: str, target: Any, arguments: Mapping[str, Any], error: BaseException
) -> EnvError:
    """Turn what a wrapper's constructor raised into one message; `arguments`: as they were given."""
    what = f"--wrapper {path} around {env_id}"
    if missing := missing_package(error):
        return EnvError(f"{what} {missing}.")
    needs, unknown = _missing_arguments(target, arguments)
    if isinstance(error, TypeError) and needs:
        form = ",".join(f"{name}=VALUE" for name in needs)
        return EnvError(f"{what} needs {' and '.join(needs)}. Give what is needed after the class: {path},{form}")
    if isinstance(error, TypeError) and unknown:
        return EnvError(f"{what} has no argument {unknown!r}.{_known_arguments(target, unknown)}")
    return EnvError(f"{what} raised {told(error)}")


def missing_package(error: BaseException) -> str:
    """Say which package is missing, where that is what an error says; else ""."""
    from gymnasium import error as gym_error

    if isinstance(error, ModuleNotFoundError):
        return f"needs the package {error.name!r}, which is not installed"
    if isinstance(error, gym_error.DependencyNotInstalled):
        return f"needs a package that is not installed: {str(error).strip().rstrip('.')}"
    return ""


def _is_taken(error: BaseException | None) -> bool:
    """Whether an address that is in use is behind an error."""
    while error is not None:
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            return True
        if re.search("address (is )?already in use|port .*(in use|taken|occupied)", str(error), re.IGNORECASE):
            return True
        error = error.__cause__ or error.__context__
    return False


def _missing_arguments(target: Any, arguments: Mapping[str, Any]) -> tuple[list[str], str]:
    """Arguments that a wrapper needs and was not given, and one that it does not have ("": none)."""
    try:
        parameters = list(inspect.signature(target).parameters.values())[1:]  # the first is the environment
    except (TypeError, ValueError):
        return [], ""
    named = [item for item in parameters if item.kind in (item.POSITIONAL_OR_KEYWORD, item.KEYWORD_ONLY)]
    needs = [item.name for item in named if item.default is item.empty and item.name not in arguments]
    if any(item.kind is item.VAR_KEYWORD for item in parameters):
        return needs, ""
    return needs, next((name for name in arguments if name not in {item.name for item in named}), "")


def _with_module(ids: list[str], asked: str) -> list[str]:
    """Ids as they have to be typed: those that a module of the user's registers need its name."""
    from gymnasium.envs.registration import registry

    module = asked.rpartition(":")[0]

    def own(name: str) -> bool:
        entry = registry[name].entry_point
        where = entry if isinstance(entry, str) else str(getattr(entry, "__module__", ""))
        return not where.startswith("gymnasium.")

    return [f"{module}:{name}" if module and own(name) else name for name in ids]


def _similar(name: str) -> list[str]:
    """Registered ids that look like `name`: closest names first, of each the version asked for, then the newest."""
    from gymnasium.envs.registration import registry

    names: dict[str, list[tuple[int, str]]] = {}
    for item, spec in registry.items():
        stem, _, version = item.rpartition("-v")
        removed = callable(spec.entry_point) and "raise" in getattr(spec.entry_point, "__name__", "")
        if stem and version.isdigit() and not removed and not stem.startswith("Gym"):
            names.setdefault(stem, []).append((int(version), item))
    stem, _, asked = name.rpartition("-v") if re.search(r"-v\d+$", name) else (name, "", "")
    found = []
    for near in [stem] if stem in names else close(stem, names, least=ALIKE):
        versions = sorted(names[near], key=lambda pair: (str(pair[0]) == asked, pair[0]), reverse=True)
        found += [item for _, item in versions[:2]]
    return found[:4]


def _arguments(name: str, given: str) -> str:
    """Name the arguments of an environment's constructor that look like `given`, or all of them."""
    from gymnasium.envs.registration import load_env_creator, registry

    try:
        entry = registry[name].entry_point
        return _known_arguments(load_env_creator(entry) if isinstance(entry, str) else entry, given)
    except Exception:  # a hint is no reason to fail
        return ""


def _known_arguments(target: Any, given: str) -> str:
    try:
        parameters = inspect.signature(target).parameters.values()
    except (TypeError, ValueError):
        return ""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    known = [parameter.name for parameter in parameters if parameter.kind in kinds]
    near = close(given, known)
    if near:
        return f" Did you mean {either(near)}?"
    return f" It has {', '.join(known)}." if known else ""


def told(error: BaseException) -> str:
    """Return the error and where in the user's code it arose."""
    cause = error.__cause__ if isinstance(error, TypeError) and error.__cause__ is not None else error
    frames = traceback.extract_tb(cause.__traceback__)
    user = frames and not frames[-1].filename.startswith(_HERE)
    where = f" ({frames[-1].filename}, line {frames[-1].lineno}, in {frames[-1].name})" if user else ""
    if isinstance(cause, SystemExit):
        return f"it called exit({'' if cause.code is None else repr(cause.code)}){where}"
    return f"{type(cause).__name__}: {cause}{where}"
