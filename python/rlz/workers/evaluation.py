"""Playing whole episodes with a fixed policy: the one code path of evaluation, in training and after (`rlz eval`)."""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rlz.config.seeds import Role, stream
from rlz.envs.limits import longest_evaluation
from rlz.transport.stats import SUCCESS
from rlz.workers.environment import Environment, evaluation_seed
from rlz.workers.global_random import globals_apart

if TYPE_CHECKING:
    from rlz.acting import Policy
    from rlz.envs.spaces import EnvSpec


@dataclass(frozen=True)
class Episodes:
    """Episodes of one policy, in the order of their reset seeds.

    Attributes
    ----------
    returns : sum of the environment's own (unnormalised, undiscounted) rewards of each episode.
    lengths : env steps of each episode.
    wall_s : seconds it took.
    at_end : numbers of each episode's last info, by the keys that were asked for (`Environment.at_end`).
    cut : episodes that did not end and were cut (`envs.limits.longest_evaluation`).
    """

    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    wall_s: float
    cut: int = 0
    at_end: tuple[tuple[float, ...], ...] = ()

    @property
    def return_mean(self) -> float:
        """Mean return."""
        return float(np.mean(self.returns))

    @property
    def return_std(self) -> float:
        """Standard deviation of the returns (of the population: no correction for the sample size)."""
        return float(np.std(self.returns))

    @property
    def means_at_end(self) -> tuple[float, ...]:
        """Mean of each number of the last infos, over the episodes that have it; NaN where none has."""
        found = ([value for value in column if not math.isnan(value)] for column in zip(*self.at_end, strict=True))
        return tuple(float(np.mean(column)) if column else math.nan for column in found)

    @property
    def length_mean(self) -> float:
        """Mean length."""
        return float(np.mean(self.lengths))

    @property
    def length_std(self) -> float:
        """Standard deviation of the lengths."""
        return float(np.std(self.lengths))

    def score(self) -> dict[str, float]:
        """What `policy.json` keeps of it."""
        return {
            "return_mean": self.return_mean,
            "return_std": self.return_std,
            "length_mean": self.length_mean,
            "episodes": len(self.returns),
        }


def evaluation_seeds(episodes: int) -> list[int]:
    """Reset seeds of the evaluation episodes in training; `checkpoints/best` is chosen by them.

    A fixed list: the same for every evaluation of every run, so that figures of different runs and seeds compare the
    same starts. A longer list begins with the shorter one. Never a reset seed of training (`environment.py`).
    """
    return [evaluation_seed(stream(0, Role.EVALUATION, env=i)) for i in range(episodes)]


def held_out_seeds(episodes: int) -> list[int]:
    """Reset seeds that no evaluation in training uses: the score of a policy that was chosen by those is biased.

    A fixed list too, of the same kind as `evaluation_seeds`.
    """
    return [evaluation_seed(stream(0, Role.EVALUATION, worker=1, env=i)) for i in range(episodes)]


def own_globals() -> AbstractContextManager[None]:
    """Make an environment for evaluations in it: alike in every run and in `rlz eval` (`global_random.py`)."""
    return globals_apart(stream(0, Role.GLOBALS))


def play(
    env: Environment,
    policy: "Policy",
    env_spec: "EnvSpec",
    seeds: Sequence[int],
    *,
    at_end: Sequence[str] = (SUCCESS,),
    go_on: Callable[[], bool] | None = None,
    played: Callable[[], None] | None = None,
    frame: Callable[[Any], None] | None = None,
) -> Episodes | None:
    """Play one deterministic episode for each reset seed.

    Parameters
    ----------
    env : environment to play on.
    policy : the actor, loaded.
    env_spec : spaces of the environment; observations are stored as in training.
    seeds : one per episode.
    at_end : keys of numbers in an episode's last info to report.
    go_on : asked before every step; False gives up.
    played : called after every episode.
    frame : called with every rendered frame.

    Returns
    -------
    The evaluation, or None when `go_on` said no.
    """
    obs: NDArray[Any] = np.zeros((1, env_spec.obs_dim), env_spec.obs_dtype)
    action: NDArray[Any] = np.zeros((1, env_spec.action_dim), env_spec.row_action_dtype)
    began = time.monotonic()
    returns: list[float] = []
    lengths: list[int] = []
    ends: list[tuple[float, ...]] = []
    cut, longest = 0, longest_evaluation(env_spec)
    for seed in seeds:
        # An episode is a function of policy and seed, also where the environment draws from the process's generators.
        with globals_apart(np.random.SeedSequence(seed)):
            env.reset(obs[0], seed)
            if frame is not None:
                frame(env.render())
            total, length, done = 0.0, 0, False
            while not done:
                if go_on is not None and not go_on():
                    return None
                policy.act(obs, action, deterministic=True)
                reward, terminated, truncated = env.step(action[0], obs[0])
                if frame is not None:
                    frame(env.render())
                total += reward
                length += 1
                done = terminated or truncated or length >= longest
        ends.append(env.at_end(at_end))
        cut += not (terminated or truncated)
        returns.append(total)
        lengths.append(length)
        if played is not None:
            played()
    return Episodes(tuple(returns), tuple(lengths), time.monotonic() - began, cut, tuple(ends))
