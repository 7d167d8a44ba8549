"""What the machine is (module `detect`) and what it can do for an environment (`profile`)."""

from rlz.planning.probe import profile

__all__ = ["profile"]
