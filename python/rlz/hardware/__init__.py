"""What the machine is (`detect`) and what it can do for an environment (`profile`)."""

from rlz.hardware.detect import Hardware, detect
from rlz.hardware.probe import profile

__all__ = ["Hardware", "detect", "profile"]
