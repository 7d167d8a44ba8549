"""Work of an update: against the leanest form by hand, and in a profile."""

import pytest
import torch

from rlz.algorithms.base import Batch
from rlz.algorithms.source import algorithm_type
from rlz.planning.work import Work, work_of_update
from support.algorithms import made

ROWS = 64


def counted(algo: str, critics: int) -> tuple[Work, float]:
    """What is counted, and operations in the leanest form.

    That is 2 for a weight in a forward pass, 4 in a backward one. Actor and target critics forward and all critics
    there and back give the critics' step. The actor's step, where it has its turn: itself there and back, and critics
    there and back to the action only (2 a weight): all of them in SAC, the first one in TD3 and DDPG.
    """
    algorithm = made(algorithm_type(algo), 3, 1, n_critics=critics)
    state = algorithm.init(torch.Generator())
    row = torch.zeros(ROWS)
    batch = Batch(torch.zeros(ROWS, 3), torch.zeros(ROWS, 1), torch.zeros(ROWS, 3), row, row)
    found = work_of_update(algorithm, state, batch, torch.zeros(algorithm.noise_shape(ROWS)), torch.tensor(1e-3))
    turns, judges = {"sac": (1.0, critics), "td3": (0.5, 1), "ddpg": (1.0, 1)}[algo]
    actor, critic = state.actor.numel(), state.critic.numel() / critics
    return found, ROWS * (2 * actor + (2 + 6) * critics * critic + turns * (6 * actor + 4 * judges * critic))


@pytest.mark.parametrize("critics", [1, 2, 5])
@pytest.mark.parametrize("algo", ["sac", "td3", "ddpg"])
def test_operations_of_an_update(algo: str, critics: int) -> None:
    found, lean = counted(algo, critics)
    assert found.flops == pytest.approx(lean, rel=0.1)


def test_all_of_the_state_moves_twice() -> None:
    algorithm = made(algorithm_type("sac"), 3, 1)
    state = algorithm.init(torch.Generator())
    assert counted("sac", 2)[0].state_bytes == 2 * sum(t.numel() * t.element_size() for t in state)
