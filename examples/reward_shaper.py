"""A worker of one's own between samplers and learner: it changes the rewards of all rows before they are learned from.

    rlz train sac --env Pendulum-v1 --graph examples/reward_shaper.py:graph

Pendulum's reward falls with the torque. Here the learner sees it without that cost; the evaluator, which plays the
environment as it is, still counts it. `rlz train ... --graph examples/reward_shaper.py:graph --show-graph` shows where
the worker stands.
"""

from typing import Any

import numpy as np

from rlz.answers import Answers
from rlz.graph import Graph, Node
from rlz.workers.relabel import Relabeller

MAX_TORQUE = 2.0
ROWS = 10_000


class RewardShaper(Relabeller):
    """Takes the cost of the torque, 0.001 torque^2, out of the reward of each row."""

    def relabel(self, rows: dict[str, Any]) -> None:
        """Change rewards in place. Actions are in [-1, 1] in rows."""
        torque = MAX_TORQUE * rows["action"][:, 0]
        rows["reward"] += np.float32(0.001) * torque**2


def graph(standard: Graph, answers: Answers) -> Graph:
    """The usual graph, with the shaper between what samplers give and what the learner takes."""
    return standard.between("replay", Node("shaper", f"{__file__}:RewardShaper"), capacity=ROWS)
