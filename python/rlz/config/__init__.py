"""The configuration of a run: one typed schema, presets in TOML, overrides that know where each value came from.

Imports neither torch nor gymnasium nor numpy.
"""

from rlz.config.overrides import Resolved, resolve, resolve_with_origins
from rlz.config.presets import algorithms
from rlz.config.schema import RunConfig
from rlz.config.seeds import Role, stream

__all__ = ["Resolved", "Role", "RunConfig", "algorithms", "resolve", "resolve_with_origins", "stream"]
