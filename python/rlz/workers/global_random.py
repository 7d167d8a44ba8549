"""The random generators that Python and numpy keep for a whole process (`random`, `np.random`).

rlz draws from none of them, environments do. A worker seeds them, so that such environments repeat themselves too.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np


def seed_globals(sequence: np.random.SeedSequence) -> None:
    """Seed both generators."""
    words = sequence.generate_state(8)
    random.seed(words.tobytes())
    np.random.seed(words)


@contextmanager
def globals_apart(sequence: np.random.SeedSequence) -> Iterator[None]:
    """Seed both generators, and give them back their states at the end.

    For evaluations: in serial mode they share the process with the samplers, and must not change what those draw.
    """
    python, legacy = random.getstate(), np.random.get_state()
    seed_globals(sequence)
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(legacy)
