"""Work of an update against what torch counts while it does one."""

import pytest
import torch
from machines import config, hardware, profile
from torch.utils.flop_counter import FlopCounterMode

from rlz.algorithms.base import Batch
from rlz.algorithms.registry import algorithm_class
from rlz.config import resolve
from rlz.envs import inspect_env
from rlz.planning.work import TD3_DELAY, flops_per_frame, work_of_update

ROWS = 64


def counted(algo: str, critics: int) -> tuple[float, float]:
    """Operations for a row by torch, a mean over the algorithm's cycle, and by the formula."""
    run = resolve(algo, "Pendulum-v1", {"n_critics": critics}, None)
    made = algorithm_class(algo).from_config(run, inspect_env(run))
    state = made.init(torch.Generator())
    row = torch.zeros(ROWS)
    batch = Batch(torch.zeros(ROWS, 3), torch.zeros(ROWS, 1), torch.zeros(ROWS, 3), row, row)
    noise, rate = torch.zeros(made.noise_shape(ROWS)), torch.tensor(1e-3)
    counter = FlopCounterMode(display=False)
    with counter:
        for kind in made.cycle:
            state = made.update(state, batch, noise, rate, kind).state
    formula = flops_per_frame(algo, critics, state.actor.numel(), state.critic.numel() / critics)
    assert formula is not None
    return counter.get_total_flops() / len(made.cycle) / ROWS, formula


@pytest.mark.parametrize("critics", [1, 2, 5])
@pytest.mark.parametrize("algo", ["sac", "td3", "ddpg"])
def test_operations_of_an_update_are_those_that_torch_counts(algo: str, critics: int) -> None:
    by_torch, formula = counted(algo, critics)
    assert formula == pytest.approx(by_torch, rel=0.1)


def test_a_profile_knows_algorithm_and_critics() -> None:
    def work(algo: str, critics: int) -> tuple[float, float]:
        run = resolve(algo, "Pendulum-v1", {"n_critics": critics, "hidden": "256,256"}, None)
        found = work_of_update(profile(hardware(1), run=run), 256)
        assert found is not None
        return found

    assert work("sac", 2) > work("td3", 2) > work("td3", 1)
    assert work("sac", 4) > work("sac", 2)
    assert resolve("td3", "Pendulum-v1", {}, None).policy_delay == TD3_DELAY
    assert work_of_update(profile(hardware(1), run=config()).model_copy(update={"workload": None}), 256) is None
