"""What every policy must do, as checks that any policy can be put through: `for check in CHECKS: check(case)`.

A user's own acting rule passes them too, or the check that fails says what it does wrong.
"""

import json
import random
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlz._native import ParameterStore
from rlz.acting import Policy, make_policy
from rlz.answers import PolicySpec
from rlz.envs.spaces import EnvSpec

ROWS = 7


@dataclass(frozen=True)
class Case:
    """A policy under test.

    Attributes
    ----------
    spec : of the policy.
    spaces : it acts in.
    make : the policy from a spec and a seed; a test of the suite puts a broken one here.
    explores : whether two draws for the same observations differ.
    bounded : whether its actions of a Box are in [-1, 1]; those of a Gaussian are clipped by who plays them.
    """

    spec: PolicySpec
    spaces: EnvSpec
    make: Callable[[PolicySpec, np.random.SeedSequence], Policy] = make_policy
    explores: bool = True
    bounded: bool = True

    def policy(self, seed: int = 1, parameters: int | None = 1) -> Policy:
        """A fresh policy with the parameters of a seed."""
        policy = self.make(self.spec, np.random.SeedSequence(seed))
        if parameters is not None:
            policy.load(self.parameters(parameters))
        return policy

    def parameters(self, seed: int) -> NDArray[np.uint8]:
        """Parameters of a seed, packed."""
        generator = np.random.default_rng(seed)
        parts = []
        for name, dtype, shape in self.spec.manifest:
            if dtype == "f32":
                values = np.asarray(0.7 * generator.standard_normal(shape), np.float32).reshape(-1)
                parts.append((np.abs(values) if name.endswith("var") else values).view(np.uint8))
            else:
                parts.append(np.zeros(shape, {"i64": np.int64, "f64": np.float64}[dtype]).reshape(-1).view(np.uint8))
        return np.concatenate(parts)

    def obs(self, seed: int = 1, rows: int = ROWS) -> NDArray[Any]:
        """Observations [rows, obs_dim] in the storage dtype."""
        values = 3 * np.random.default_rng(seed).standard_normal((rows, self.spaces.obs_dim))
        return values.astype(self.spaces.obs_dtype)

    def act(self, policy: Policy, obs: NDArray[Any] | None = None, **more: Any) -> NDArray[Any]:
        """Actions for observations (default: the usual ones), in a fresh array of impossible numbers."""
        obs = self.obs() if obs is None else obs
        actions = self.blank(len(obs))
        policy.act(obs, actions, **more)
        return actions

    def blank(self, rows: int = ROWS) -> NDArray[Any]:
        """Actions that no policy gives."""
        dtype = self.spaces.row_action_dtype
        return np.full((rows, self.spaces.action_dim), np.nan if dtype.kind == "f" else -99, dtype)

    def is_action(self, actions: NDArray[Any]) -> bool:
        """Whether all of them are actions as rlz holds them."""
        if self.spaces.discrete:
            return bool(((actions >= 0) & (actions < np.array(self.spaces.action_choices))).all())
        return bool((np.abs(actions) <= (1.0 if self.bounded else np.finfo(np.float32).max)).all())


def gives_actions(case: Case) -> None:
    """Every row is an action, deterministic or not, and of a uniform one too."""
    policy = case.policy()
    uniform = case.blank(50)
    policy.uniform(uniform)
    for actions in (case.act(policy), case.act(policy, deterministic=True), uniform):
        assert case.is_action(actions), actions


def rows_do_not_see_each_other(case: Case) -> None:
    """An action depends on its own observation: a batch acts like its rows."""
    policy, obs = case.policy(), case.obs()
    together = case.act(policy, obs, deterministic=True)
    alone = np.concatenate([case.act(policy, row[None], deterministic=True) for row in obs])
    np.testing.assert_allclose(together, alone, atol=1e-5)
    assert (together != together[0]).any(), "the same action whatever is observed"


def deterministic_draws_nothing(case: Case) -> None:
    """The same action each time, of any seed; what is drawn later does not change."""
    policy, other = case.policy(1), case.policy(2)
    before = policy.state
    first, again = (case.act(policy, deterministic=True) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(first, case.act(other, deterministic=True))
    assert policy.state == before


def draws_follow_seed_and_state(case: Case) -> None:
    """One seed repeats itself, another differs, and a saved state goes on exactly: actions and uniform ones."""

    def draw(policy: Policy) -> NDArray[Any]:
        drawn = []
        for progress in (0.0, 0.01, 0.02):
            uniform = case.blank(30)
            policy.uniform(uniform)
            drawn += [case.act(policy, progress=progress), uniform]
        return np.concatenate(drawn)

    policy = case.policy(1)
    first = draw(policy)
    np.testing.assert_array_equal(first, draw(case.policy(1)))
    assert (first != draw(case.policy(2))).any()
    state = policy.state
    further = draw(policy)
    resumed = case.policy(5)
    resumed.state = state
    np.testing.assert_array_equal(further, draw(resumed))
    if case.explores:
        obs = np.repeat(case.obs(rows=1), 200, 0)
        assert len(np.unique(case.act(policy, obs, progress=0.0), axis=0)) > 1, "nothing is explored"


def uniform_is_uniform(case: Case) -> None:
    """Warm-up actions cover the space evenly, whatever the parameters are."""
    actions = case.blank(6000)
    case.policy(parameters=None).uniform(actions)
    if case.spaces.discrete:
        for column, count in zip(actions.T, case.spaces.action_choices, strict=True):
            np.testing.assert_allclose(np.bincount(column, minlength=count) / len(column), 1 / count, atol=0.05)
    else:
        assert np.abs(actions.mean(0)).max() < 0.05
        assert np.abs(actions.var(0) - 1 / 3).max() < 0.03


def parameters_decide(case: Case) -> None:
    """Loading other parameters changes actions at once; the same ones give the same; a wrong size changes nothing."""
    policy = case.policy(parameters=1)
    first = case.act(policy, deterministic=True)
    policy.load(case.parameters(2))
    second = case.act(policy, deterministic=True)
    assert (first != second).any()
    for wrong in (np.zeros(policy.nbytes + 4, np.uint8), np.zeros(max(policy.nbytes - 4, 0), np.uint8)):
        try:
            policy.load(wrong)
        except ValueError:
            pass
        else:
            raise AssertionError("parameters of a wrong size were taken")
    np.testing.assert_array_equal(second, case.act(policy, deterministic=True))
    policy.load(case.parameters(1))
    np.testing.assert_array_equal(first, case.act(policy, deterministic=True))


def refresh_follows_the_newest_version(case: Case) -> None:
    """Version 0 before the first; then the newest and its very parameters; unchanged while nothing is published."""
    policy, other = case.policy(parameters=3), case.policy(parameters=None)
    store = ParameterStore.create(list(case.spec.manifest), leases=1, run_id=1)
    with store, store.publisher(worker=2) as publisher, store.subscriber(worker=3) as subscriber:
        assert store.nbytes == policy.nbytes
        before = case.act(policy, deterministic=True)
        assert (policy.version, policy.refresh(subscriber)) == (0, 0)
        np.testing.assert_array_equal(before, case.act(policy, deterministic=True))
        for version in (1, 2, 4):
            publisher.publish(case.parameters(version), env_steps=0, updates=0)
            if version == 4:
                publisher.publish(case.parameters(version), env_steps=0, updates=0)
            assert policy.refresh(subscriber) == policy.version == version
            other.load(case.parameters(version))
            np.testing.assert_array_equal(
                case.act(policy, deterministic=True), case.act(other, deterministic=True), err_msg=f"version {version}"
            )
            assert policy.refresh(subscriber) == version


def leaves_others_alone(case: Case) -> None:
    """Generators of the process, the caller's observations, and actions that were given before stay as they are."""
    policy, obs = case.policy(), case.obs()
    kept = obs.copy()
    torch = sys.modules.get("torch")
    python, legacy = random.getstate(), repr(np.random.get_state(legacy=False))
    tensor = None if torch is None else torch.get_rng_state()
    first = case.act(policy, obs)
    copied = first.copy()
    case.act(policy, case.obs(2))
    policy.uniform(case.blank())
    np.testing.assert_array_equal(obs, kept)
    np.testing.assert_array_equal(first, copied)
    assert random.getstate() == python
    assert repr(np.random.get_state(legacy=False)) == legacy
    assert tensor is None or bool((tensor == torch.get_rng_state()).all())  # type: ignore[union-attr]


def gives_the_extras_it_promises(case: Case) -> None:
    """Each array that is asked for is filled, and asking for them changes no action."""
    filled = {name: np.full((ROWS, *shape), np.nan, np.float32) for name, _, shape in case.spec.extras}
    one, other = case.policy(), case.policy()
    np.testing.assert_array_equal(case.act(one, extras=filled), case.act(other))
    for name, values in filled.items():
        assert np.isfinite(values).all(), name


def its_spec_travels_as_json(case: Case) -> None:
    """The policy that is made of a copy is the same."""
    copy = PolicySpec.from_json(json.loads(json.dumps(asdict(case.spec))))
    assert copy == case.spec
    other = case.make(copy, np.random.SeedSequence(1))
    other.load(case.parameters(1))
    np.testing.assert_array_equal(case.act(case.policy()), case.act(other))


CHECKS: tuple[Callable[[Case], None], ...] = (
    gives_actions,
    rows_do_not_see_each_other,
    deterministic_draws_nothing,
    draws_follow_seed_and_state,
    uniform_is_uniform,
    parameters_decide,
    refresh_follows_the_newest_version,
    leaves_others_alone,
    gives_the_extras_it_promises,
    its_spec_travels_as_json,
)
