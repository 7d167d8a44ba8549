"""How one option is stated: type, default, range, help, and how its texts are read.

Run configurations, algorithms and users' files state theirs with it.
"""

from rlz.options.option import Integer, Number, Panel, changed, option

__all__ = ["Integer", "Number", "Panel", "changed", "option"]
