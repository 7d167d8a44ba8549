"""Never more runs than fit: cores of their own for each, and memory by the estimate that a run is checked with."""

from __future__ import annotations

import os
from collections.abc import Callable

from rlz.config.model import ask
from rlz.config.schema import RunConfig
from rlz.envs import inspect_env
from rlz.planning.needs import estimate
from rlz.system.cores import cores
from rlz.system.memory import limits


def need(config: RunConfig) -> int:
    """Bytes that a run will take, by what its environment and algorithm say."""
    spec = inspect_env(config)
    return estimate(config, spec, ask(config, spec)).total


class Room:
    """Sets of cores, and memory, that runs take and give back.

    Parameters
    ----------
    cores_per_run : in each set. A machine with fewer has one set of what it has.
    memory : bytes for all runs together; default: what this process may have now.
    """

    def __init__(self, cores_per_run: int, memory: int | None = None) -> None:
        allowed = sorted(os.sched_getaffinity(0))[: cores()]
        each = min(cores_per_run, len(allowed))
        self._free = [tuple(allowed[first : first + each]) for first in range(0, len(allowed) - each + 1, each)]
        self.sets = len(self._free)
        self._memory = min((limit.available for limit in limits()), default=2**62) if memory is None else memory
        self._taken: dict[tuple[int, ...], int] = {}

    def take(self, need: Callable[[], int]) -> tuple[int, ...] | None:
        """Cores for one more run that needs so many bytes; None while there is no room for it.

        A run has room where no other one is, whatever it needs: it says itself what does not fit.
        """
        if not self._free:
            return None
        bytes_ = need()
        if self._taken and sum(self._taken.values()) + bytes_ > self._memory:
            return None
        found = self._free.pop(0)
        self._taken[found] = bytes_
        return found

    def give_back(self, cores: tuple[int, ...]) -> None:
        """Its run has ended."""
        del self._taken[cores]
        self._free.append(cores)
