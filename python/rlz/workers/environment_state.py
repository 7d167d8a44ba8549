"""State of an environment as JSON values, where it can be had: MuJoCo and classic control of Gymnasium.

Only serial mode saves it, so that a resumed run goes on bit for bit. Elsewhere open episodes are cut as truncated.
"""

from typing import Any

import numpy as np

Json = dict[str, Any]

_WRAPPERS = {"TimeLimit", "OrderEnforcing", "PassiveEnvChecker"}
_CLASSIC = "gymnasium.envs.classic_control."
_MUJOCO = "gymnasium.envs.mujoco."
# Derived anew by each step from what is saved. There are more of them (constraints, islands): those whose size depends
# on the state are skipped by their shape.
_DERIVED = ("efc_", "contact")


def capture(env: Any) -> Json | None:
    """Give the state of an environment between two steps, or None when it cannot be had.

    Parameters
    ----------
    env : a Gymnasium environment with any of Gymnasium's own standard wrappers around it.
    """
    layers: list[Json] = []
    layer = env
    while layer is not env.unwrapped:
        if type(layer).__name__ not in _WRAPPERS or not type(layer).__module__.startswith("gymnasium.wrappers."):
            return None
        layers.append(_plain(layer, skip=("env",)))
        layer = layer.env
    if not type(layer).__module__.startswith((_CLASSIC, _MUJOCO)):
        return None
    state: Json = {"wrappers": layers, "base": _plain(layer), "random": _random_state(layer)}
    if hasattr(layer, "data") and hasattr(layer, "model"):
        state["time"] = float(layer.data.time).hex()
        state["data"] = {name: _encode(array) for name, array in _arrays(layer.data)}
    return state


def restore(env: Any, state: Json) -> None:
    """Bring an environment that was made and reset in the same way into a state from `capture`."""
    layer = env
    for values in state["wrappers"]:
        _set_plain(layer, values)
        layer = layer.env
    _set_plain(layer, state["base"])
    if state["random"] is not None:
        layer.np_random.bit_generator.state = state["random"]
    if "data" in state:
        layer.data.time = float.fromhex(state["time"])
        for name, array in _arrays(layer.data):
            saved = _decode(state["data"][name]) if name in state["data"] else None
            if saved is not None and saved.shape == array.shape:
                array[...] = saved


def _arrays(data: Any) -> list[tuple[str, Any]]:
    found = []
    for name in dir(data):
        if name.startswith(("_", *_DERIVED)):
            continue
        value = getattr(data, name)
        if isinstance(value, np.ndarray) and value.size and value.dtype.kind in "fiub":
            found.append((name, value))
    return found


def _random_state(env: Any) -> Json | None:
    generator = getattr(env, "_np_random", None)
    return None if generator is None else dict(generator.bit_generator.state)


def _plain(layer: Any, skip: tuple[str, ...] = ()) -> Json:
    """Attributes of an object that are plain data."""
    values = {}
    for name, value in vars(layer).items():
        if name in skip or name.startswith("_np_random"):
            continue
        if value is None or isinstance(value, bool | int | str):
            values[name] = {"value": value}
        elif isinstance(value, float | np.floating):
            values[name] = {"float": float(value).hex()}
        elif isinstance(value, np.ndarray) and value.dtype.kind in "fiub":
            values[name] = _encode(value)
    return values


def _set_plain(layer: Any, values: Json) -> None:
    for name, value in values.items():
        if "value" in value:
            setattr(layer, name, value["value"])
        elif "float" in value:
            setattr(layer, name, float.fromhex(value["float"]))
        else:
            setattr(layer, name, _decode(value))


def _encode(array: Any) -> Json:
    return {"dtype": array.dtype.str, "shape": list(array.shape), "hex": np.ascontiguousarray(array).tobytes().hex()}


def _decode(value: Json) -> Any:
    flat = np.frombuffer(bytes.fromhex(value["hex"]), np.dtype(value["dtype"]))
    return flat.reshape(value["shape"]).copy()
