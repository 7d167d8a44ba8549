import json
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from rlz.envs import EnvSpec, actions_of
from rlz.errors import EnvError

BOX = spaces.Box(-1, 1, (2,), np.float32)


class Fake(gymnasium.Env[Any, Any]):
    def __init__(self, observation: spaces.Space[Any], action: spaces.Space[Any]) -> None:
        self.observation_space = observation
        self.action_space = action


def spec_of(observation: spaces.Space[Any], action: spaces.Space[Any] = BOX, obs_dtype: str = "float32") -> EnvSpec:
    return EnvSpec.of("Fake-v0", Fake(observation, action), obs_dtype)


@pytest.mark.parametrize(
    ("dtype", "stored", "native"),
    [
        ("float64", "float32", "float64"),
        ("float32", "float32", "float32"),
        ("float16", "float16", "float16"),
        ("uint8", "uint8", "uint8"),
        ("int64", "int64", "int64"),
        ("int16", "int16", "int16"),
    ],
)
def test_storage_dtype(dtype: str, stored: str, native: str) -> None:
    space = spaces.Box(0, 100, (2, 3), np.dtype(dtype).type)
    assert spec_of(space).obs_dtype == stored
    assert spec_of(space, obs_dtype="native").obs_dtype == native


def test_row_schema_and_sizes() -> None:
    spec = spec_of(spaces.Box(0, 255, (4, 4, 3), np.uint8), spaces.Box(0, 1, (2, 2), np.float64))
    assert (spec.obs_dim, spec.action_dim, spec.action_dtype) == (48, 4, "float64")
    assert spec.fields() == [
        ("obs", "u8", (4, 4, 3)),
        ("action", "f32", (4,)),
        ("next_obs", "u8", (4, 4, 3)),
        ("reward", "f32", ()),
        ("discount", "f32", ()),
    ]
    assert spec_of(spaces.Box(0, 1, (), np.float32)).obs_dim == 1


def test_json_round_trip_is_exact() -> None:
    low = np.float32([0.1, -1e14])
    spec = spec_of(BOX, spaces.Box(low, np.float32([0.3, 1e-45]), dtype=np.float32))
    again = EnvSpec.from_json(json.loads(json.dumps(spec.to_json())))
    assert again == spec
    assert isinstance(again.action_low, tuple)
    assert np.float32(again.action_low).tolist() == low.tolist()


@pytest.mark.parametrize(
    ("space", "name"),
    [
        (spaces.Dict({"a": BOX}), "Dict("),
        (spaces.Tuple((BOX,)), "Tuple("),
        (spaces.Text(3), "Text("),
        (spaces.Box(0, 1, (0,), np.float32), "no number"),
    ],
)
def test_other_spaces_are_named(space: spaces.Space[Any], name: str) -> None:
    for which, arguments in (("observation_space", (space, BOX)), ("action_space", (BOX, space))):
        with pytest.raises(EnvError) as caught:
            spec_of(*arguments)
        assert all(word in str(caught.value) for word in ("Fake-v0", which, name))


@pytest.mark.parametrize(
    "space", [spaces.Discrete(3), spaces.MultiDiscrete([2, 3]), spaces.Dict({"a": BOX}), spaces.Tuple((BOX,))]
)
def test_the_wrapper_that_an_observation_needs_is_named_and_helps(space: spaces.Space[Any]) -> None:
    with pytest.raises(EnvError, match=r"--wrapper gymnasium\.wrappers:FlattenObservation"):
        spec_of(space)
    wrapped = gymnasium.wrappers.FlattenObservation(Fake(space, BOX))
    assert len(EnvSpec.of("Fake-v0", wrapped).obs_shape) == 1


@pytest.mark.parametrize(
    ("space", "shape", "choices"),
    [
        (spaces.Discrete(3), (), (3,)),
        (spaces.Discrete(3, start=-1), (), (3,)),
        (spaces.MultiDiscrete([2, 5]), (2,), (2, 5)),
        (spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[0, 1], [2, 3]]), (2, 2), (2, 3, 4, 5)),
        (spaces.MultiBinary(3), (3,), (2, 2, 2)),
    ],
)
def test_choices_are_indices_in_rows_and_the_spaces_own_in_the_environment(
    space: spaces.Space[Any], shape: tuple[int, ...], choices: tuple[int, ...]
) -> None:
    spec = spec_of(BOX, space)
    assert (spec.discrete, spec.action_shape, spec.action_choices, spec.action_dim) == (
        *(True, shape, choices),
        len(choices),
    )
    assert spec.fields()[1] == ("action", "i64", (len(choices),))
    assert EnvSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec
    actions = actions_of(spec)
    drawn = np.zeros((200 * max(choices), len(choices)), spec.row_action_dtype)
    actions.uniform(np.random.default_rng(1), drawn)
    for component, count in zip(drawn.T, choices, strict=True):
        share = np.bincount(component, minlength=count) / len(drawn)
        np.testing.assert_allclose(share, 1 / count, atol=0.07)
    for row in drawn[:20]:
        action = actions.to_env(row)
        assert space.contains(action)
        assert action.dtype == space.dtype
        assert (np.asarray(action) - getattr(space, "start", 0)).reshape(-1).tolist() == row.tolist()
    with pytest.raises(EnvError, match=r"Fake-v0 has the action_space (Multi)?Discrete\(.*sac needs continuous"):
        spec.require_box_actions("sac")


def test_infinite_and_integer_actions() -> None:
    bounds = spaces.Box(np.float32([0, -np.inf]), np.float32([1, 1]), dtype=np.float32)
    with pytest.raises(EnvError, match=r"component 1 goes from -inf to 1\.0\. Finite bounds are needed"):
        spec_of(BOX, bounds)
    with pytest.raises(EnvError, match="int32"):
        spec_of(BOX, spaces.Box(0, 5, (2,), np.int32))
