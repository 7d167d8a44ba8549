"""Advantages and targets of segments beside their definitions, step by step."""

import pytest
import torch

from rlz.algorithms.returns import gae, vtrace
from support.updates import FLOAT, generator

GAMMA = 0.9


def numbers(segments: int = 3, length: int = 9) -> dict[str, torch.Tensor]:
    draw = generator(5)

    def normal() -> torch.Tensor:
        return torch.randn(segments, length, generator=draw, dtype=FLOAT)

    ends = torch.rand(segments, length, generator=draw) < 0.3
    return {
        "reward": normal(),
        "value": normal(),
        "next_value": normal(),
        "ends": ends,
        "ratio": (0.5 * normal()).exp(),
    }


@pytest.mark.parametrize("lam", [0.0, 0.8, 1.0])
def test_gae_is_the_sum_of_its_definition(lam: float) -> None:
    given = numbers()
    ratio = given.pop("ratio")
    found = gae(**given, gamma=GAMMA, lam=lam)
    for segment in range(len(ratio)):
        reward, value, after, ends = (given[name][segment].tolist() for name in given)
        for start in range(len(reward)):
            expected = 0.0
            for step in range(start, len(reward)):
                expected += (GAMMA * lam) ** (step - start) * (reward[step] + GAMMA * after[step] - value[step])
                if ends[step]:
                    break
            assert found[segment, start].item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("lam", [0.8, 1.0])
def test_vtrace_is_the_sum_of_its_definition(lam: float) -> None:
    given = numbers()
    found = vtrace(**given, gamma=GAMMA, lam=lam)
    for segment in range(len(given["reward"])):
        reward, value, after, ends, ratio = (given[name][segment].tolist() for name in given)
        rho = [min(1.0, one) for one in ratio]
        targets = []
        for start in range(len(reward)):
            expected, trace = value[start], 1.0
            for step in range(start, len(reward)):
                expected += trace * rho[step] * (reward[step] + GAMMA * after[step] - value[step])
                trace *= GAMMA * lam * rho[step]
                if ends[step]:
                    break
            targets.append(expected)
            assert found.target[segment, start].item() == pytest.approx(expected, abs=1e-12)
        for step, end in enumerate(ends):
            follows = after[step] if end or step + 1 == len(ends) else targets[step + 1]
            advantage = reward[step] + GAMMA * follows - value[step]
            assert found.advantage[segment, step].item() == pytest.approx(advantage, abs=1e-12)
            assert found.weight[segment, step].item() == pytest.approx(rho[step], abs=1e-12)


def test_for_the_policy_that_acted_vtrace_targets_are_values_and_advantages() -> None:
    given = numbers()
    given["ratio"] = torch.ones_like(given["ratio"])
    rest = {name: tensor for name, tensor in given.items() if name != "ratio"}
    found = vtrace(**given, gamma=GAMMA, lam=0.95)
    torch.testing.assert_close(found.target, given["value"] + gae(**rest, gamma=GAMMA, lam=0.95), rtol=0, atol=1e-12)


def test_a_chain_that_is_truncated_has_the_value_of_an_endless_one() -> None:
    """Reward 1, gamma 0.9: 10; taken for terminations, ten steps give 6.5."""
    length = 10
    ones, ends = torch.ones(1, length, dtype=FLOAT), torch.zeros(1, length, dtype=torch.bool)
    ends[0, -1] = True
    value = torch.zeros_like(ones)
    for last, expected in ((10.0, 10.0), (0.0, (1 - 0.9**length) / 0.1)):
        after = torch.cat([value[:, 1:], torch.tensor([[last]], dtype=FLOAT)], 1)
        target = value + gae(ones, value, after, ends, GAMMA, 1.0)
        assert target[0, 0].item() == pytest.approx(expected, abs=1e-9)
