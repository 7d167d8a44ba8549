"""Environments: making them, their spaces as a row schema, and the one place where actions are scaled.

Gymnasium is imported by the functions that need it, not by this package: a learner reads an `EnvSpec` without it.
"""

from rlz.envs.actions import ActionMap, actions_of
from rlz.envs.factory import inspect_env, make, make_env
from rlz.envs.spaces import EnvSpec

__all__ = ["ActionMap", "EnvSpec", "actions_of", "inspect_env", "make", "make_env"]
