"""Making environments, with errors that say what to do and Gymnasium's warnings as one short note each."""

import importlib
import inspect
import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from rlz.config.names import close, either
from rlz.envs.folder import Folder
from rlz.envs.spaces import EnvSpec
from rlz.errors import EnvError
from rlz.options.literals import decode
from rlz.system.descendants import ended_afterwards

if TYPE_CHECKING:
    import gymnasium

    from rlz.config import RunConfig

OnNote = Callable[[str], None]


def make(config: "RunConfig", *, on_note: OnNote | None = None, **kwargs: Any) -> "gymnasium.Env[Any, Any]":
    """Make the environment of a run: constructor arguments, Gymnasium's time limit, then the wrappers.

    Parameters
    ----------
    config
        Names environment, `env_kwargs` and `wrapper`.
    on_note
        Called with each thing that Gymnasium or MuJoCo warned about while the environment was made; dropped otherwise.
    kwargs
        Further arguments of `gymnasium.make`, such as `render_mode="rgb_array"`; None leaves one out.

    Raises
    ------
    EnvError
        Unknown id (with close ones), missing package, wrong argument, or the constructor or a wrapper raised.
    """
    extra = {"max_episode_steps": config.max_episode_steps, **kwargs}
    return _make(config.env, config.env_kwargs, extra, config.wrapper, on_note or _drop)


def make_env(description: Mapping[str, Any], **kwargs: Any) -> "gymnasium.Env[Any, Any]":
    """Make an environment from its description in a `policy.json`; `kwargs` as in `make`."""
    from rlz.envs.running_state import refuse_running_state

    extra = {"max_episode_steps": description.get("max_episode_steps"), **kwargs}
    env = _make(description["id"], decode(description["kwargs"]), extra, description["wrapper"], _drop)
    try:
        refuse_running_state(env, description["id"])
    except EnvError:
        with suppress(Exception, SystemExit):
            env.close()
        raise
    return env


def inspect_env(config: "RunConfig", *, on_note: OnNote | None = None) -> EnvSpec:
    """Make the environment once, check its spaces and wrappers, close it, and end the processes that it left.

    Notes go to standard error unless `on_note` is given. EnvError as `make`, or naming what is not
    supported: a space, or a wrapper with a running state.
    """
    from rlz.envs.running_state import refuse_running_state

    with ended_afterwards(), Folder().entered():
        env = make(config, on_note=on_note or _print)
        try:
            refuse_running_state(env, config.env)
            return EnvSpec.of(config.env, env, config.obs_dtype)
        except AttributeError as error:
            raise EnvError(f"{config.env} cannot be used: {_told(error)}") from error
        finally:
            with suppress(Exception, SystemExit):  # closing changes no result
                env.close()


def _drop(note: str) -> None:
    del note


def _print(note: str) -> None:
    print(f"note: {note}", file=sys.stderr)


def _make(
    env_id: str, kwargs: Mapping[str, Any], extra: Mapping[str, Any], wrapper: Sequence[str], on_note: OnNote
) -> "gymnasium.Env[Any, Any]":
    kwargs = {**kwargs, **{key: value for key, value in extra.items() if value is not None}}
    folder = Folder()
    with folder.entered(), _notes(on_note):
        import gymnasium

        if ":" in env_id or wrapper:
            _find_modules_here()
        if ":" in env_id:
            if not all(env_id.rpartition(":")[::2]):
                raise EnvError(f"--env {env_id}: expected the id of an environment, or module:id")
            _import(env_id.rpartition(":")[0], f"--env {env_id}")
        with _MUJOCO.noted(env_id.rpartition(":")[2], on_note):
            try:
                env: gymnasium.Env[Any, Any] = gymnasium.make(env_id, disable_env_checker=True, **kwargs)
            except (Exception, SystemExit) as error:
                raise _explain(env_id, kwargs, error) from error
            for path in wrapper:
                env = _wrapped(env, env_id, path)
    if not folder.own:
        return env
    from rlz.envs.in_own_folder import InOwnFolder

    return InOwnFolder(env, folder)


@contextmanager
def _notes(on_note: OnNote) -> Iterator[None]:
    """Turn warnings into notes: without colours, file names and repetition."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    said = set()
    for item in caught:
        text = re.sub(r"\x1b\[\d+m|WARN: ", "", str(item.message)).strip()
        # "The environment Ant-v4 is out of date. You should consider upgrading to version `v5`."
        old = re.fullmatch(r"The environment (\S+?)-v\d+ is out of date\..*version `(v\d+)`\.", text)
        if old:
            text = f"Gymnasium has a newer {old[1]}-{old[2]}; scores of the two differ."
        if text not in said:
            said.add(text)
            on_note(text)


def _find_modules_here() -> None:
    """`rlz` is a console script: unlike `python -m`, it does not look for modules in the current folder."""
    here = os.getcwd()  # noqa: PTH109  (sys.path holds texts)
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)


def _import(module: str, what: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing = error.name or module
        raise EnvError(
            f"{what}: there is no module {missing!r}. Install its package into the environment of rlz, or run rlz in "
            f"the folder that holds {missing.partition('.')[0]}."
        ) from error
    except (Exception, SystemExit) as error:
        raise EnvError(f"{what}: importing {module!r} failed. {_told(error)}") from error


class _MujocoWarnings:
    """MuJoCo's warnings, each kind once: as notes while an environment is made, to standard error (a log) later.

    Without a handler, MuJoCo's C code prints them and writes MUJOCO_LOG.TXT into the user's folder.
    """

    def __init__(self) -> None:
        self._on_note: OnNote = _print
        self._told: set[str] = set()

    def __call__(self, text: str) -> None:
        text = " ".join(str(text).split())
        kind = re.sub(r"[\d.]+", "#", text)  # times and indices make the same warning look new
        if kind not in self._told:
            self._told.add(kind)
            self._on_note(f"MuJoCo: {text}")

    @contextmanager
    def noted(self, env_id: str, on_note: OnNote) -> Iterator[None]:
        """Handle the warnings of an environment, from its first model on."""
        from gymnasium.envs.registration import registry

        spec = registry.get(env_id)
        if spec is not None and isinstance(spec.entry_point, str):
            # The module that will import mujoco must have done so before the first model is compiled.
            with suppress(Exception):  # gymnasium.make meets the same error, and there it is explained
                importlib.import_module(spec.entry_point.partition(":")[0])
        if "mujoco" in sys.modules:
            sys.modules["mujoco"].set_mju_user_warning(self)
        self._on_note = on_note
        try:
            yield
        finally:
            self._on_note = _print


_MUJOCO = _MujocoWarnings()


def _explain(env_id: str, kwargs: dict[str, Any], error: BaseException) -> EnvError:
    """Turn what `gymnasium.make` raised into one message."""
    from gymnasium import error as gym_error

    text = re.sub(r"\x1b\[\d+m", "", str(error)).strip()
    bare = env_id.rpartition(":")[2]
    if isinstance(error, gym_error.DependencyNotInstalled):
        return EnvError(f"{env_id} needs a package that is not installed. {text}")
    if isinstance(error, gym_error.DeprecatedEnv | gym_error.UnregisteredEnv):
        near = _similar(bare)
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
    if isinstance(error, ModuleNotFoundError):
        return EnvError(f"{env_id} needs the package {error.name!r}, which is not installed.")
    if isinstance(error, gym_error.Error | ImportError):
        near = [item for item in _similar(bare) if item != bare]
        return EnvError(f"{env_id} cannot be made: {text}{f' Others: {either(near)}.' if near else ''}")
    return EnvError(f"{env_id} cannot be made: its constructor raised {_told(error)}")


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
    for near in [stem] if stem in names else close(stem, names):
        versions = sorted(names[near], key=lambda pair: (str(pair[0]) == asked, pair[0]), reverse=True)
        found += [item for _, item in versions[:2]]
    return found[:4]


def _arguments(name: str, given: str) -> str:
    """Name the constructor's arguments that look like `given`, or all of them."""
    from gymnasium.envs.registration import load_env_creator, registry

    try:
        entry = registry[name].entry_point
        creator = load_env_creator(entry) if isinstance(entry, str) else entry
        known = [
            parameter.name
            for parameter in inspect.signature(creator).parameters.values()  # type: ignore[arg-type]
            if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        ]
    except Exception:  # a hint is no reason to fail
        return ""
    near = close(given, known)
    if near:
        return f" Did you mean {either(near)}?"
    return f" It has {', '.join(known)}." if known else ""


def _wrapped(env: "gymnasium.Env[Any, Any]", env_id: str, path: str) -> "gymnasium.Env[Any, Any]":
    import gymnasium

    module_name, _, class_name = path.partition(":")
    target: Any = _import(module_name, f"--wrapper {path}")
    for part in class_name.split("."):
        if not hasattr(target, part):
            near = close(part, [item for item in dir(target) if not item.startswith("_")])
            raise EnvError(
                f"--wrapper {path}: {module_name} has no {part!r}.{f' Did you mean {either(near)}?' if near else ''}"
            )
        target = getattr(target, part)
    try:
        wrapped = target(env)
    except (Exception, SystemExit) as error:
        raise EnvError(f"--wrapper {path} around {env_id} raised {_told(error)}") from error
    if not isinstance(wrapped, gymnasium.Env):
        raise EnvError(f"--wrapper {path} gave a {type(wrapped).__name__}, which is no gymnasium.Env.")
    return wrapped


def _told(error: BaseException) -> str:
    """Return the error and where in the user's code it arose."""
    cause = error.__cause__ if isinstance(error, TypeError) and error.__cause__ is not None else error
    frames = traceback.extract_tb(cause.__traceback__)
    user = frames and frames[-1].filename != __file__
    where = f" ({frames[-1].filename}, line {frames[-1].lineno}, in {frames[-1].name})" if user else ""
    if isinstance(cause, SystemExit):
        return f"it called exit({'' if cause.code is None else repr(cause.code)}){where}"
    return f"{type(cause).__name__}: {cause}{where}"
