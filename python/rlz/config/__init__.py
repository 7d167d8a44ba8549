"""The configuration of a run: one typed schema, presets in TOML, overrides that know where each value came from.

Imports neither torch nor gymnasium nor numpy.
"""

from rlz.config.model import read_config, run_config
from rlz.config.overrides import Resolved, resolve, resolve_with_origins
from rlz.config.schema import RunConfig
from rlz.config.seeds import Role, stream

__all__ = ["Resolved", "Role", "RunConfig", "read_config", "resolve", "resolve_with_origins", "run_config", "stream"]
