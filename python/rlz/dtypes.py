"""Names of dtypes: those of rows and parameters in `rlz._native` ("f32") beside numpy's ("float32")."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

NATIVE: Mapping[str, str] = MappingProxyType(
    {
        "float16": "f16",
        "float32": "f32",
        "float64": "f64",
        "uint8": "u8",
        "int8": "i8",
        "uint16": "u16",
        "int16": "i16",
        "uint32": "u32",
        "int32": "i32",
        "uint64": "u64",
        "int64": "i64",
        "bool": "bool",
    }
)
"""From numpy's name."""

_NUMPY = {native: np.dtype(name) for name, native in NATIVE.items()}


def numpy_dtype(native: str) -> "np.dtype[Any]":
    """The numpy dtype of a native name."""
    return _NUMPY[native]
