"""Negative control: `rlz` with the bootstrapped value subtracted instead of added. Same command line as `rlz`."""

import sys

from rlz.algorithms.sac import Sac
from rlz.cli import main

right = Sac.td_target


def wrong(self, actor, target, alpha, batch, noise):
    return 2.0 * batch.reward - right(self, actor, target, alpha, batch, noise)


Sac.td_target = wrong
sys.exit(main())
