"""Bytes that rows take in the streams: what the Rust side allocates, known before anything is."""

import math
from collections.abc import Iterable

from rlz.answers import Field

_ITEM_BYTES = {"f16": 2, "bf16": 2, "u8": 1, "i8": 1, "bool": 1, "u16": 2, "i16": 2, "f64": 8, "u64": 8, "i64": 8}


def packed_bytes(fields: Iterable[Field]) -> int:
    """Bytes of one row in a replay buffer: its packed fields rounded up to 64, and 16 bytes of stamp."""
    offset = 0
    for _, dtype, shape in fields:
        size = _ITEM_BYTES.get(dtype, 4)
        offset = -(-offset // size) * size + size * math.prod(shape)
    return -(-offset // 64) * 64 + 16


def allocated_rows(capacity: int, lanes: int) -> int:
    """Rows of a replay buffer that are allocated: every lane has room for its share of the capacity, and a margin."""
    share = -(-capacity // lanes)
    return (share + min(max(share // 16, 2), 64)) * lanes
