"""Making environments, with errors that say what to do and Gymnasium's warnings as one short note each."""

import importlib
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from rlz.envs.explain import explain, explain_wrapper, import_module, missing_package, told
from rlz.envs.folder import Folder
from rlz.envs.instances import spare_index, with_index
from rlz.envs.own import is_in_module, is_own, make_own
from rlz.envs.spaces import EnvSpec
from rlz.errors import EnvError
from rlz.options import literals
from rlz.options.literals import decode
from rlz.options.names import close, either
from rlz.references import label
from rlz.system.descendants import ended_afterwards

if TYPE_CHECKING:
    import gymnasium

    from rlz.config import RunConfig

OnNote = Callable[[str], None]


def make(
    config: "RunConfig", *, index: int = 0, on_note: OnNote | None = None, **kwargs: Any
) -> "gymnasium.Env[Any, Any]":
    """Make the environment of a run: constructor arguments, Gymnasium's time limit, then the wrappers.

    Parameters
    ----------
    config
        Names environment, `env_kwargs` and `wrapper`.
    index
        Of this instance, for arguments such as `port={5000+index}` (`instances.py`).
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
    return _make(config.env, config.env_kwargs, extra, config.wrapper, index, on_note or _drop)


def make_env(description: Mapping[str, Any], **kwargs: Any) -> "gymnasium.Env[Any, Any]":
    """Make an environment from its description in a `policy.json`; `kwargs` as in `make`."""
    from rlz.envs.running_state import refuse_running_state

    extra = {"max_episode_steps": description.get("max_episode_steps"), **kwargs}
    index, arguments = description.get("index", 0), decode(description["kwargs"])
    env = _make(description["id"], arguments, extra, description["wrapper"], index, _drop)
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
        env = make(config, index=spare_index(config), on_note=on_note or _print)
        try:
            refuse_running_state(env, config.env)
            return EnvSpec.of(label(config.env), env, config.obs_dtype)
        except AttributeError as error:
            raise EnvError(f"{config.env} cannot be used: {told(error)}") from error
        finally:
            with suppress(Exception, SystemExit):  # closing changes no result
                env.close()


def _drop(note: str) -> None:
    del note


def _print(note: str) -> None:
    print(f"note: {note}", file=sys.stderr)


def _make(
    env_id: str,
    kwargs: Mapping[str, Any],
    extra: Mapping[str, Any],
    wrapper: Sequence[str],
    index: int,
    on_note: OnNote,
) -> "gymnasium.Env[Any, Any]":
    kwargs = {**with_index(kwargs, index), **{key: value for key, value in extra.items() if value is not None}}
    folder = Folder()
    with folder.entered(), _notes(on_note):
        import gymnasium

        if ":" in env_id or wrapper:
            _find_modules_here()
        if ":" in env_id and not is_own(env_id):
            if not all(env_id.rpartition(":")[::2]):
                raise EnvError(f"--env {env_id}: expected the id of an environment, or module:id")
            import_module(env_id.rpartition(":")[0], f"--env {env_id}")
        own = is_own(env_id) or is_in_module(env_id)
        with _MUJOCO.noted(env_id.rpartition(":")[2], on_note):
            try:
                env: gymnasium.Env[Any, Any] = (
                    make_own(env_id, kwargs) if own else gymnasium.make(env_id, disable_env_checker=True, **kwargs)
                )
            except EnvError:
                raise
            except (Exception, SystemExit) as error:
                raise explain(env_id, kwargs, error) from error
            for text in wrapper:
                env = _wrapped(env, env_id, text, index)
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


def _wrapped(env: "gymnasium.Env[Any, Any]", env_id: str, text: str, index: int) -> "gymnasium.Env[Any, Any]":
    import gymnasium

    path, *given = literals.split(text)
    arguments = with_index(literals.pairs(given), index)
    module_name, _, class_name = path.partition(":")
    target: Any = import_module(module_name, f"--wrapper {path}")
    for part in class_name.split("."):
        try:
            target = getattr(target, part)
        except AttributeError as error:
            near = close(part, [item for item in dir(target) if not item.startswith("_")])
            raise EnvError(
                f"--wrapper {path}: {module_name} has no {part!r}.{f' Did you mean {either(near)}?' if near else ''}"
            ) from error
        except (Exception, SystemExit) as error:  # Gymnasium imports its wrappers when they are asked for
            raise EnvError(f"--wrapper {path} cannot be loaded: {missing_package(error) or told(error)}") from error
    try:
        wrapped = target(env, **arguments)
    except (Exception, SystemExit) as error:
        raise explain_wrapper(path, env_id, target, arguments, error) from error
    if not isinstance(wrapped, gymnasium.Env):
        raise EnvError(f"--wrapper {path} gave a {type(wrapped).__name__}, which is no gymnasium.Env.")
    return wrapped
