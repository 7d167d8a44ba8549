"""Negative control: `rlz` with the bootstrapped value subtracted instead of added. Same command line as `rlz`."""

import sys

from rlz.algorithms.sac import Sac
from rlz.algorithms.td3 import Td3
from rlz.cli import main


def subtracting(right):
    """`td_target` of an algorithm (batch and noise are its last arguments) with r - value for r + value."""

    def wrong(self, *arguments):
        return 2.0 * arguments[-2].reward - right(self, *arguments)

    return wrong


for algorithm in (Sac, Td3):
    algorithm.td_target = subtracting(algorithm.td_target)
sys.exit(main())
