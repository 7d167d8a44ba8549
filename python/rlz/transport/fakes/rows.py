"""Rows of fields, packed as the streams pack them: in order, each at its natural alignment, whole cache lines."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Field = tuple[str, str, tuple[int, ...]]
Placed = tuple[str, str, tuple[int, ...], int]
Row = NDArray[np.uint8]

NUMPY = {
    "f16": "<f2",
    "bf16": "<u2",
    "f32": "<f4",
    "f64": "<f8",
    "u8": "u1",
    "i8": "i1",
    "u16": "<u2",
    "i16": "<i2",
    "u32": "<u4",
    "i32": "<i4",
    "u64": "<u8",
    "i64": "<i8",
    "bool": "?",
}
"""Numpy's dtypes by name. It has no bfloat16: its bits travel as uint16."""

LINE = 64
MOST_DIMENSIONS = 8


class Layout:
    """Where each field of a row lies.

    Parameters
    ----------
    fields : (name, dtype, shape).
    align : place fields at their natural alignment, and pad the row; False: back to back.

    Raises
    ------
    ValueError
        No field, two of one name, an unknown dtype, or a shape that cannot be.
    """

    def __init__(self, fields: Sequence[Field], *, align: bool = True) -> None:
        self.fields: list[Placed] = []
        end = 0
        for name, dtype, shape in fields:
            if dtype not in NUMPY:
                raise ValueError(f"dtype: given {dtype!r}, expected one of {' '.join(NUMPY)}")
            if not name or name in self.names:
                raise ValueError(f"fields: given the name {name!r}, expected names that differ")
            if len(shape) > MOST_DIMENSIONS or 0 in shape:
                raise ValueError(f"field {name!r}: given shape {shape}, expected up to 8 dimensions, none of them 0")
            kind = np.dtype(NUMPY[dtype])
            offset = -(-end // kind.itemsize) * kind.itemsize if align else end
            self.fields.append((name, dtype, tuple(shape), offset))
            end = offset + kind.itemsize * int(np.prod(shape))
        if not self.fields:
            raise ValueError("fields: given none, expected at least one field")
        self.nbytes = end
        self.stride = -(-end // LINE) * LINE

    @property
    def names(self) -> list[str]:
        """Names of the fields, in order."""
        return [field[0] for field in self.fields]

    def view(self, row: Row, name: str) -> NDArray[Any]:
        """A field of a row, as an array on its memory. KeyError when there is none of that name."""
        for field, dtype, shape, offset in self.fields:
            if field == name:
                return np.ndarray(shape, NUMPY[dtype], row, offset)
        raise KeyError(f"{name!r}: expected one of the fields {', '.join(self.names)}")

    def put(self, row: Row, name: str, value: Any) -> None:
        """Write a field; TypeError and ValueError as the streams."""
        target = self.view(row, name)
        dtype = next(dtype for field, dtype, _, _ in self.fields if field == name)
        expected = f"field {name!r}: expected a C-contiguous {target.dtype} array of shape {target.shape}"
        if isinstance(value, np.ndarray):
            if value.dtype != target.dtype or not value.flags.c_contiguous:
                raise TypeError(f"{expected}, got a {value.dtype} one")
            if value.shape != target.shape:
                raise ValueError(f"{expected}, got one of shape {value.shape}")
            target[...] = value
        elif target.shape:
            raise TypeError(f"{expected}, got a {type(value).__name__}")
        else:
            target[...] = _number(name, dtype, target.dtype, value)

    def pack(self, values: Sequence[Any]) -> Row:
        """Pack one value per field."""
        if not isinstance(values, tuple | list):
            raise TypeError(f"row: expected a tuple or list, got a {type(values).__name__}")
        if len(values) != len(self.fields):
            raise ValueError(f"row: given {len(values)} values, expected {len(self.fields)}: {', '.join(self.names)}")
        row = np.zeros(self.stride, np.uint8)
        for name, value in zip(self.names, values, strict=True):
            self.put(row, name, value)
        return row


def _number(name: str, dtype: str, kind: np.dtype[Any], value: Any) -> Any:
    """A Python number as one of a dtype, checked as the streams do."""
    if kind.kind == "b":
        if not isinstance(value, bool | np.bool_):
            raise TypeError(f"field {name!r}: expected a bool, got a {type(value).__name__}")
        return value
    if kind.kind in "iu" and dtype != "bf16":
        number = value.__index__() if hasattr(value, "__index__") else None
        if number is None:
            raise TypeError(f"field {name!r}: expected an integer for {kind}, got a {type(value).__name__}")
        if not np.iinfo(kind).min <= number <= np.iinfo(kind).max:
            raise ValueError(f"field {name!r}: {number} does not fit into {kind}")
        return number
    if not hasattr(value, "__float__") and not hasattr(value, "__index__"):
        raise TypeError(f"field {name!r}: expected a number for {dtype}, got a {type(value).__name__}")
    exact = float(value)
    with np.errstate(over="ignore"):
        near = _to_bfloat16(exact) if dtype == "bf16" else kind.type(exact)
    infinite = near & _BF16_INF == _BF16_INF if dtype == "bf16" else not np.isfinite(near)
    if np.isfinite(exact) and infinite:
        raise ValueError(f"field {name!r}: {exact} does not fit into {dtype}")
    return near


_BF16_INF = 0x7F80
"""Bits of infinity."""


def _to_bfloat16(value: float) -> int:
    """Bits of the nearest bfloat16, ties to even."""
    bits = int(np.float32(value).view(np.uint32))
    if np.isnan(value):
        return bits >> 16 | 0x40
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
