"""Samplers of a free run wait until what they have sampled has been learned from."""

import math

from rlz._native import Limiter

NO_LIMIT = 2**64 - 1


class StepAllowance:
    """Moves the limit of env steps on with every update, so that each row is learned from `uses` times on average.

    Rows drawn by updates, divided by the env steps since learning began, are at least `uses`, but for a margin:
    samplers may be ahead by the steps that two updates pay for, or by one of each environment. Nothing is saved up:
    steps that slow samplers did not take are not owed to them.

    Parameters
    ----------
    limiter : of the run; its step limit is set.
    uses : times; 0: samplers never wait. May be changed.
    """

    def __init__(self, limiter: Limiter, uses: float, *, envs: int) -> None:
        self._limiter = limiter
        self._envs = envs
        self._until = float(max(limiter.learning_starts, limiter.env_steps))
        self.uses = uses

    def used(self, rows: int, batch_size: int) -> None:
        """Note that updates have drawn so many rows, in batches of `batch_size`; 0 rows at the start."""
        if self.uses <= 0:
            self._limiter.set_step_limit(NO_LIMIT)
            return
        margin = max(self._envs, math.ceil(2 * batch_size / self.uses))
        most = max(self._limiter.env_steps, self._limiter.learning_starts)
        self._until = min(self._until + rows / self.uses, float(most))
        self._limiter.set_step_limit(int(self._until) + margin)
