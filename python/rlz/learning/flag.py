"""The flag that updates set on their device, read by the host without waiting for the newest of them."""

from __future__ import annotations

from collections import deque

import torch
from torch import Tensor

from rlz.learning.streams import recorded


class LateFlag:
    """Reads a flag one launch late: while the device works on a launch, the host looks at what the one before has left.

    So the host is at most one launch ahead.

    Parameters
    ----------
    flag : [], int64, on the device; 0 until something is wrong, and never 0 again.
    late : False: `read` waits for the newest launch, as it does on a CPU.
    """

    def __init__(self, flag: Tensor, *, late: bool) -> None:
        self._flag = flag
        self._late = late
        self._hosts = [torch.zeros((), dtype=flag.dtype, pin_memory=flag.is_cuda) for _ in range(2)]
        self._found = 0
        self._posted: deque[tuple[Tensor, torch.cuda.Event | None]] = deque()

    def post(self) -> None:
        """Have the flag copied when everything that was launched so far is done."""
        host = self._hosts[0]
        self._hosts.reverse()
        host.copy_(self._flag, non_blocking=True)
        self._posted.append((host, recorded(self._flag.device)))

    def read(self, *, newest: bool = False) -> int:
        """The flag after the launch before the newest, or after the `newest`."""
        left = 1 if self._late and not newest else 0
        while len(self._posted) > left:
            host, copied = self._posted.popleft()
            if copied is not None:
                copied.synchronize()
            self._found = self._found or int(host)
        return self._found
