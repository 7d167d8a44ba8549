import itertools

import numpy as np

from rlz.config import Role, stream


def test_streams_are_distinct_and_repeatable() -> None:
    states = {
        tuple(stream(seed, role, worker, env, incarnation).generate_state(4, np.uint64))
        for seed, role, worker, env, incarnation in itertools.product((0, 1), Role, range(3), range(3), range(2))
    }
    assert len(states) == 2 * len(Role) * 3 * 3 * 2
    again = stream(1, Role.ENV, 1, 2, 0).generate_state(4, np.uint64)
    assert tuple(again) in states


def test_seed_is_the_documented_sequence() -> None:
    expected = np.random.SeedSequence([5, 2, 3, 4, 1]).generate_state(4)
    assert (stream(5, Role.POLICY, worker=3, env=4, incarnation=1).generate_state(4) == expected).all()
    assert stream(2**63 - 1, Role.ENV).generate_state(1).dtype == np.uint32
