"""Every stream of random numbers of a run, derived from its one seed.

A stream is `SeedSequence([run seed, role, worker, environment, incarnation])`. A restarted or resumed worker has a new
incarnation, so it never repeats an episode or noise of its predecessor.
"""

from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np


class Role(IntEnum):
    """Who draws from a stream. The numbers are part of what a seed means: never renumber."""

    ENV = 1
    """First reset of a training environment."""
    POLICY = 2
    """A sampler's action noise and warm-up actions."""
    REPLAY = 3
    """Rows drawn for a batch."""
    NETWORK = 4
    """Initial weights."""
    LEARNER = 5
    """Noise inside an update (next actions, policy samples)."""
    EVALUATION = 6
    """Reset seeds of evaluation episodes: disjoint from training by the role."""
    GLOBALS = 7
    """Generators that Python and numpy keep for a worker's process: rlz draws from none, environments may."""


def stream(seed: int, role: Role, worker: int = 0, env: int = 0, incarnation: int = 0) -> "np.random.SeedSequence":
    """Return the seed sequence of one stream.

    Parameters
    ----------
    seed
        The run's seed, at least 0.
    role
        What the stream is for.
    worker, env, incarnation
        Index of the worker, of the environment (slot over the whole run), and how often the worker was started before.

    Notes
    -----
    `generate_state(4, np.uint64)` seeds the native generators; `generate_state(1)[0]` is a 32-bit seed for `reset`.
    """
    import numpy as np

    return np.random.SeedSequence([seed, int(role), worker, env, incarnation])
