"""Every algorithm keeps the contract, those of the examples too; for each part planted defects are caught."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rlz.algorithms.base import Outcome
from rlz.algorithms.registry import BUILT_IN, algorithm_type
from rlz.algorithms.sac import Sac
from rlz.envs.spaces import EnvSpec
from rlz.references import load
from support import algorithm_contract as contract
from support.algorithm_contract import CONTRACT, OBS, Case

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL: dict[str, Any] = {"hidden": (8,)}
CHOICES = EnvSpec.of_sizes(OBS, 1, (3,))
Dqn = load(f"{EXAMPLES / 'dqn.py'}:Dqn")

CASES: dict[str, Case] = {
    **{algo: Case(algorithm_type(algo), settings=SMALL) for algo in BUILT_IN if algo not in ("dqn", "sac-discrete")},
    "sac-discrete": Case(algorithm_type("sac-discrete"), CHOICES, SMALL),
    "dqn": Case(algorithm_type("dqn"), CHOICES, {**SMALL, "target_every": 2}),
    "ppo on choices": Case(algorithm_type("ppo"), CHOICES, SMALL),
    "the DQN example": Case(Dqn, CHOICES),
    "the REDQ example": Case(load(f"{EXAMPLES / 'redq.py'}:Redq"), settings=SMALL),
    "the TQC example": Case(load(f"{EXAMPLES / 'tqc.py'}:Tqc"), settings={**SMALL, "n_quantiles": 3, "drop": 1}),
}


@pytest.mark.parametrize("part", CONTRACT, ids=lambda part: part.__name__)
@pytest.mark.parametrize("name", CASES)
def test_every_algorithm_keeps_the_contract(name: str, part: Callable[[Case], None]) -> None:
    part(CASES[name])


class AnswersCode(Sac):
    def data(self) -> Any:
        return self.settings.data((("obs", float, (3,)),))  # type: ignore[arg-type]


class OneName(Sac):
    metrics = (*Sac.metrics, "q_value")


class OwnSeed(Sac):
    def init(self, generator: torch.Generator, dtype: torch.dtype | None = None) -> Any:
        return super().init(torch.Generator().manual_seed(torch.seed()), dtype)


class SameStart(Sac):
    def init(self, generator: torch.Generator, dtype: torch.dtype | None = None) -> Any:
        return super().init(torch.Generator().manual_seed(1), dtype)

    def update(self, state: Any, batch: Any, noise: Tensor, learning_rate: Tensor, kind: str = "whole") -> Outcome:
        return super().update(state, batch, torch.zeros_like(noise), learning_rate, kind)


class LearnsNothing(Sac):
    def update(self, state: Any, batch: Any, noise: Tensor, learning_rate: Tensor, kind: str = "whole") -> Outcome:
        outcome = super().update(state, batch, noise, learning_rate, kind)
        return outcome._replace(state=state._replace(updates=outcome.state.updates))


class ScalesItsBatch(Sac):
    def update(self, state: Any, batch: Any, noise: Tensor, learning_rate: Tensor, kind: str = "whole") -> Outcome:
        batch.reward.mul_(0.5)
        return super().update(state, batch, noise, learning_rate, kind)


class CountsForItself(Sac):
    """Something that the updates depend on is no part of the state."""

    done = 0

    def update(self, state: Any, batch: Any, noise: Tensor, learning_rate: Tensor, kind: str = "whole") -> Outcome:
        self.done += 1
        return super().update(state, batch, noise, learning_rate / self.done, kind)


class KeepsAList(Dqn):  # type: ignore[misc, valid-type]
    """Optimisers in a list are not saved."""

    def setup(self) -> None:
        super().setup()
        self.optimizers, self.optimizer = [self.optimizer], _Behind(self.optimizer)


class _Behind:
    def __init__(self, optimizer: Any) -> None:
        self.zero_grad, self.step = optimizer.zero_grad, optimizer.step


class TakesAnything(Sac):
    def load_state_dict(self, state: Any, tensors: Any) -> None:
        own = self.state_dict(state)
        for name in own.keys() & tensors.keys():
            if own[name].shape == tensors[name].shape:
                own[name].copy_(tensors[name])


class PublishesTooLittle(Sac):
    def published(self, state: Any) -> Tensor:
        return super().published(state)[:-1]


class PublishesMoments(Sac):
    def published(self, state: Any) -> Tensor:
        return torch.zeros_like(state.actor)


class ChecksNothing(Sac):
    checks = ()

    def outcome(self, state: Any, metrics: Any, checks: Any, td_errors: Tensor | None = None) -> Outcome:
        return Outcome(state, torch.stack([*metrics.values()]), torch.zeros(0), td_errors)


DEFECTS: list[tuple[Any, Callable[[Case], None], str]] = [
    (AnswersCode, contract.answers_travel_as_json, "not JSON serializable"),
    (OneName, contract.answers_travel_as_json, "one name"),
    (OwnSeed, contract.a_seed_decides_everything, "the same seed gave another"),
    (SameStart, contract.a_seed_decides_everything, "another seed gave the same"),
    (LearnsNothing, contract.an_update_learns_and_measures, "nothing has moved"),
    (ScalesItsBatch, contract.an_update_learns_and_measures, "changed its batch"),
    (CountsForItself, contract.goes_on_from_its_state, "is not what went on"),
    (KeepsAList, contract.goes_on_from_its_state, "is not what went on"),
    (TakesAnything, contract.refuses_the_state_of_another, "was taken"),
    (PublishesTooLittle, contract.what_is_published_acts, "another size"),
    (PublishesMoments, contract.what_is_published_acts, "does not follow"),
    (ChecksNothing, contract.what_is_not_finite_is_refused, "a batch of NaN"),
]


@pytest.mark.parametrize(("defect", "part", "caught"), DEFECTS, ids=lambda one: getattr(one, "__name__", ""))
def test_a_planted_defect_is_caught(defect: Any, part: Callable[[Case], None], caught: str) -> None:
    case = Case(defect, CHOICES) if issubclass(defect, Dqn) else Case(defect, settings=SMALL)
    with pytest.raises((AssertionError, TypeError), match=caught):
        part(case)


def test_each_part_of_the_contract_has_a_planted_defect() -> None:
    assert {part for _, part, _ in DEFECTS} == set(CONTRACT)
