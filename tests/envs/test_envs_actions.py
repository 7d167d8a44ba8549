import numpy as np
import pytest
from numpy.typing import NDArray

from rlz.envs import ActionMap, EnvSpec

BOUNDS = [
    (np.full(3, -1, np.float32), np.full(3, 1, np.float32)),
    (np.array([-2.0], np.float32), np.array([2.0], np.float32)),
    (np.array([0.0, -0.1, 1e-8]), np.array([0.3, 7.7, 1e8])),
    (np.array([[0.1, -3.3], [5.0, -1e30]], np.float32), np.array([[0.7, 0.0], [5.0, 1e30]], np.float32)),
    (np.array([-1e308]), np.array([1.7e308])),
    (np.float16([-0.1, 0.2]), np.float16([0.3, 60000.0])),
]


@pytest.mark.parametrize(("low", "high"), BOUNDS)
def test_exact_at_bounds_and_never_outside(low: NDArray[np.floating], high: NDArray[np.floating]) -> None:
    mapped = ActionMap(low, high)
    assert (mapped.to_env(np.full(low.size, -1, np.float32)) == low).all()
    assert (mapped.to_env(np.full(low.size, 1, np.float32)) == high).all()
    rng = np.random.default_rng(0)
    near = np.nextafter(np.float32(1), np.float32(0))
    for scale in (1.0, float(near)):
        for unit in rng.uniform(-scale, scale, (500, low.size)).astype(np.float32):
            action = mapped.to_env(unit)
            assert action.shape == low.shape
            assert action.dtype == low.dtype
            assert (action >= low).all()
            assert (action <= high).all()
    for unit in (near, -near):
        action = mapped.to_env(np.full(low.size, unit, np.float32))
        assert (action >= low).all()
        assert (action <= high).all()


def test_outside_is_clipped_and_nan_stays() -> None:
    mapped = ActionMap(np.array([-2.0, 0.0]), np.array([2.0, 1.0]))
    assert mapped.to_env(np.float32([9, -9])).tolist() == [2.0, 0.0]
    assert np.isnan(mapped.to_env(np.float32([np.nan, 0]))).tolist() == [True, False]


@pytest.mark.parametrize(("low", "high"), BOUNDS)
def test_it_is_affine(low: NDArray[np.floating], high: NDArray[np.floating]) -> None:
    mapped = ActionMap(low, high)
    first, last = low.astype(np.float64).reshape(-1), high.astype(np.float64).reshape(-1)
    for unit in np.random.default_rng(1).uniform(-1, 1, (50, low.size)).astype(np.float32):
        expected = ((1.0 - unit) * 0.5) * first + ((1.0 + unit) * 0.5) * last
        step = 2e-3 if low.dtype == np.float16 else 1e-5
        scale = np.maximum(np.abs(first), np.abs(last))
        assert (np.abs(mapped.to_env(unit).reshape(-1) - expected) <= step * scale).all()


def test_middle_of_asymmetric_bounds() -> None:
    assert ActionMap([0.0, -1.0], [3.0, 0.0]).to_env(np.zeros(2, np.float32)).tolist() == [1.5, -0.5]


def test_every_action_is_a_new_array() -> None:
    for low in (-1.0, -2.0):
        mapped, unit = ActionMap(np.float32([low]), np.float32([1])), np.float32([0.5])
        first = mapped.to_env(unit)
        assert first is not unit
        assert not np.shares_memory(first, mapped.to_env(unit))
        assert not np.shares_memory(first, unit)


def test_bounds_are_checked() -> None:
    for low, high in (([0.0], [np.inf]), ([1.0], [0.0]), ([0.0], [1.0, 2.0]), ([np.nan], [1.0])):
        with pytest.raises(ValueError, match="bounds"):
            ActionMap(low, high)


def test_of_spec() -> None:
    spec = EnvSpec("A", (1,), "float32", (2, 1), "float64", (-1.0, 0.0), (1.0, 4.0), None)
    mapped = ActionMap.of(spec)
    action = mapped.to_env(np.float32([1, 0]))
    assert mapped.dim == 2
    assert action.dtype == np.float64
    assert action.tolist() == [[1.0], [2.0]]
