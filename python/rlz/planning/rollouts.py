"""The plan of a run that learns from rollouts: it follows from the number of cores, so nothing has to be measured.

How many environments there are is part of what is learned (a rollout has a segment of each) and stays the user's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlz.answers import Rollout
from rlz.planning.needs import STEPPER_BYTES
from rlz.planning.plan import Plan
from rlz.system.detect import detect
from rlz.system.memory import limits

if TYPE_CHECKING:
    from rlz.config import RunConfig


def of_rollouts(config: RunConfig, given: tuple[str, ...], *, cores: int | None = None) -> Plan:
    """Choose the number of samplers.

    Parameters
    ----------
    config : of a run whose data are a `Rollout`.
    given : options that the user gave; they are kept.
    cores : of the machine; None: looks.
    """
    data = config.data()
    assert isinstance(data, Rollout)
    facts = {"num_envs": "part of what is learned: a rollout has a segment of each environment"}
    if "samplers" in given:
        return Plan(basis="rollouts", given=given, facts=facts)
    cores = detect().cores if cores is None else cores
    memory = min((limit.available for limit in limits()), default=1 << 62)
    most = max(1, min(cores, config.num_envs // config.env_groups, memory // (4 * STEPPER_BYTES)))
    if most < cores:
        why = f"there are {config.num_envs} environments" if most == config.num_envs else "as many as have room"
    elif data.max_lag == 0:
        why = f"one for each of {cores} cores: the learner waits while they step, and they wait while it learns"
    else:
        why = f"one for each of {cores} cores: what they wait for, the learner uses"
    return Plan(basis="rollouts", choices={"samplers": most}, reasons={"samplers": why}, given=given, facts=facts)
