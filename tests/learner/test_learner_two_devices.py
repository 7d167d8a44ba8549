"""Critics and actor apart: what the two halves add up to, and who sees which version."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from rlz.algorithms.base import Algorithm
from rlz.errors import NonFiniteError
from rlz.learning.compiled import layouts
from rlz.learning.engine import Engine, EnginePlan
from rlz.learning.two_devices import Exchange, TwoDevices
from support.executors import CPU, make_batch, make_sac, make_state, make_td3

Make = Callable[[], Algorithm[Any]]
PLAN = EnginePlan(compile=False, threads=1, fixed=True)
both = pytest.mark.parametrize("make", [make_sac, make_td3], ids=["sac", "td3"])


def apart(algorithm: Algorithm[Any], state: Any, exchange: Exchange) -> TwoDevices:
    layout = layouts(make_batch().tensors())
    return TwoDevices(
        algorithm, state, layout=layout, devices=(CPU, CPU), seed=3, plan=PLAN, log=lambda _: None, exchange=exchange
    )


def trained(algorithm: Algorithm[Any], exchange: Exchange | None, updates: int = 9) -> Any:
    """State after some updates: on one device (None) or on two."""
    state = make_state(algorithm)
    if exchange is None:
        layout = layouts(make_batch().tensors())
        one = Engine(algorithm, state, layout=layout, device=CPU, seed=3, plan=PLAN, log=lambda _: None)
        for step in range(updates):
            one.update(make_batch(step), 1e-3)
        return state
    two = apart(algorithm, state, exchange)
    for step in range(updates):
        two.update(make_batch(step), 1e-3)
    whole = type(state)(*(tensor.clone() for tensor in two.settle()))
    two.close()
    return whole


def same(left: Any, right: Any) -> bool:
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


@both
def test_in_turns_they_are_the_update_of_one_device_bit_for_bit(make: Make) -> None:
    assert same(trained(make(), Exchange(every=1, max_staleness=0)), trained(make(), None))


@both
@pytest.mark.parametrize(("every", "staleness"), [(1, 1), (1, 3), (4, 3), (4, 7), (8, 15)])
def test_which_versions_meet_is_counted_not_timed(make: Make, every: int, staleness: int) -> None:
    runs = [trained(make(), Exchange(every, staleness)) for _ in range(2)]
    assert same(*runs)
    one = trained(make(), None)
    assert not torch.equal(runs[0].critic, one.critic)
    assert int(runs[0].updates) == int(one.updates)
    assert int(runs[0].actor_updates) == int(one.actor_updates)


@both
def test_each_side_sees_what_it_was_given_and_nothing_newer(make: Make) -> None:
    """Both halves by hand, in order, with the lag of the exchange."""
    algorithm, exchange, seen = make(), Exchange(every=2, max_staleness=3), []
    critic, actor = make_state(algorithm), make_state(algorithm)
    generator = torch.Generator().manual_seed(3)
    sides, given = algorithm.sides, {0: dict(actor._asdict())}
    rate = torch.tensor(1e-3, dtype=torch.float64)
    for step in range(9):
        noise = torch.empty(algorithm.noise_shape(16)).normal_(generator=generator)
        if step % 2 == 0:
            version = max(0, step - 2)
            critic = critic._replace(**{name: given[version][name] for name in sides[1].gives})
        seen.append(step - version)
        kinds = [side.cycle[step % len(side.cycle)] for side in sides]
        critic = algorithm.update(critic, make_batch(step), noise, rate, kinds[0]).state
        if step % 2 == 0:
            actor = actor._replace(**{name: getattr(critic, name) for name in sides[0].gives})
        if kinds[1] is not None:
            actor = algorithm.update(actor, make_batch(step), noise, rate, kinds[1]).state
        given[step + 1] = dict(actor._asdict())
    expected = critic._replace(**{name: getattr(actor, name) for name in sides[1].fields})
    found = trained(algorithm, exchange)
    for name, want, got in zip(expected._fields, expected, found, strict=True):
        assert torch.allclose(got, want, rtol=1e-6, atol=1e-7), name
    assert max(seen) == exchange.max_staleness


@pytest.mark.parametrize(
    ("every", "staleness", "lag"), [(1, 0, 0), (1, 1, 1), (1, 5, 5), (4, 3, 0), (4, 6, 0), (4, 7, 4), (8, 15, 8)]
)
def test_staleness_stays_within_its_bound(every: int, staleness: int, lag: int) -> None:
    exchange = Exchange(every, staleness)
    assert exchange.lag == lag
    sac = make_sac()
    two = apart(sac, make_state(sac), exchange)
    found = []
    for step in range(40):
        two.update(make_batch(step), 1e-3)
        found.append(two.staleness)
    two.close()
    assert max(found) == min(staleness, lag + every - 1)
    assert min(found[20:]) == lag


@both
def test_the_parts_of_a_state_have_one_owner_each(make: Make) -> None:
    algorithm = make()
    owned = [name for side in algorithm.sides for name in side.fields]
    state = make_state(algorithm)
    assert sorted(owned) == sorted(state._fields)
    noise, rate = torch.randn(algorithm.noise_shape(16)), torch.tensor(1e-3, dtype=torch.float64)
    for side in algorithm.sides:
        moved: set[str] = set()
        for kind in filter(None, side.cycle):
            new = algorithm.update(state, make_batch(), noise, rate, kind).state
            moved |= {name for name, a, b in zip(state._fields, state, new, strict=True) if a is not b}
        assert moved == set(side.fields)
        assert set(side.gives) <= set(side.fields)


def test_every_metric_is_measured_and_the_actor_is_the_newest() -> None:
    sac = make_sac()
    two = apart(sac, make_state(sac), Exchange(1, 0))
    assert two.take_metrics().isnan().all(), "no update yet"
    for step in range(4):
        two.update(make_batch(step), 1e-3)
    assert not two.take_metrics().isnan().any()
    newest = two.actor_parameters()  # of a fixed plan: nothing is in flight
    assert torch.equal(newest, two.settle().actor)
    two.close()


def test_an_actor_that_breaks_ends_the_run() -> None:
    sac = make_sac()
    two = apart(sac, make_state(sac), Exchange(1, 0))
    two.update(make_batch(), 1e-3)
    two.settle()
    two._actor_state.actor.fill_(float("nan"))
    two.update(make_batch(), 1e-3)
    with pytest.raises(NonFiniteError, match="actor_loss is not finite"):
        two.settle()
    two.close()
