"""Environments of a user's own that are not registered: a class or a factory function, by its name or as an object."""

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rlz.errors import ConfigError, EnvError
from rlz.references import PICKLE, label, load

if TYPE_CHECKING:
    import gymnasium


def is_own(env: str) -> bool:
    """`file.py:Name`, or a class or function that was given to `rlz.train`. Gymnasium knows all else."""
    return ".py:" in env or env.startswith(PICKLE)


def is_in_module(env: str) -> bool:
    """`module:Name`, the module imported: a name in it, which it has not registered as an id."""
    from gymnasium import registry

    module, _, name = env.rpartition(":")
    known = any(spec.id == name or spec.id.rpartition("-v")[0] == name for spec in registry.values())
    return not known and callable(getattr(sys.modules.get(module), name, None))


def make_own(env: str, kwargs: Mapping[str, Any]) -> "gymnasium.Env[Any, Any]":
    """Call the class or function. `max_episode_steps` and `render_mode` are as of `gymnasium.make`.

    Raises
    ------
    EnvError
        It cannot be found, raises, or gives no Gymnasium environment; with the user's own error as its cause.
    """
    import gymnasium
    from gymnasium.wrappers import TimeLimit

    own = dict(kwargs)
    limit = own.pop("max_episode_steps", None)
    name = label(env)
    try:
        made = load(env)(**own)
    except ConfigError as error:
        raise EnvError(f"--env {error}") from error.__cause__
    except (Exception, SystemExit) as error:
        raise EnvError(f"{name} could not be made: {type(error).__name__}: {error}") from error
    if not isinstance(made, gymnasium.Env):
        raise EnvError(f"{name} gave a {type(made).__name__}, expected a gymnasium.Env (the newest API: reset, step)")
    return made if limit is None else TimeLimit(made, int(limit))
