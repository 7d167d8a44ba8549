"""What every algorithm keeps to, as functions that raise AssertionError: pure updates and modules alike.

They use an algorithm as a learner does, by the trainer of what is learned.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlz.acting import make_policy
from rlz.algorithms.base import Algorithm, Batch
from rlz.answers import Answers, Rollout
from rlz.envs.spaces import EnvSpec
from rlz.errors import CheckpointError, NonFiniteError
from rlz.learning.compiled import layouts
from rlz.learning.engine import EnginePlan
from rlz.learning.trainer import Learned, Trainer, TrainerSite, learned
from rlz.learning.two_devices import Exchange
from support.rollouts import make_segments

OBS, ROWS = 3, 16
CPU = torch.device("cpu")


@dataclass
class Case:
    """An algorithm's class, and what it is made with here."""

    kind: Callable[..., Algorithm[Any]]
    spaces: EnvSpec = field(default_factory=lambda: EnvSpec.of_sizes(OBS, 2))
    settings: dict[str, Any] = field(default_factory=dict)

    def make(self) -> Algorithm[Any]:
        return self.kind(self.kind.Settings(**self.settings), self.spaces)  # type: ignore[attr-defined]

    def learned(self, seed: int = 1) -> tuple[Learned, Trainer]:
        """What is learned, fresh from a seed, and its trainer."""
        found = learned(self.make(), CPU, seed, self.make().answers().metrics)
        return found, found.trainer(self.place(seed + 10))

    def place(self, seed: int) -> TrainerSite:
        """One thread, eager; `seed` of the noise."""
        plan = EnginePlan(compile=False, threads=1, fixed=True)
        return TrainerSite(layouts(self.batch().tensors()), (CPU,), Exchange(), seed, plan, lambda _: None)

    def batch(self, seed: int = 1) -> Any:
        draw = torch.Generator().manual_seed(seed)
        algorithm = self.make()
        if isinstance(algorithm.data(), Rollout):
            rows = algorithm.prepare(algorithm.init(draw), make_segments(algorithm, seed, torch.float32), 0.0)
            return type(rows)(*(column[:ROWS] for column in rows))
        obs, next_obs = torch.randn(2, ROWS, OBS, generator=draw)
        discount = torch.full((ROWS,), 0.9)
        discount[::3] = 0.0
        if self.spaces.discrete:
            action = torch.randint(self.spaces.action_choices[0], (ROWS, 1), generator=draw)
        else:
            action = torch.rand(ROWS, self.spaces.action_dim, generator=draw) * 2 - 1
        return Batch(obs, action, next_obs, torch.randn(ROWS, generator=draw), discount)


def answers_travel_as_json(case: Case) -> None:
    answers = case.make().answers()
    assert Answers.from_json(json.loads(json.dumps(answers.to_json()))) == answers, "they come back as others"
    assert len(set(answers.metrics)) == len(answers.metrics), "two metrics have one name"


def a_seed_decides_everything(case: Case) -> None:
    one, again, other = (trained(case.learned(seed)[1], case) for seed in (1, 1, 2))
    assert differences(one, again) == [], "the same seed gave another state"
    assert differences(one, other) != [], "another seed gave the same state"


def an_update_learns_and_measures(case: Case) -> None:
    _, trainer = case.learned()
    before, batch = copied(trainer), case.batch()
    kept = [tensor.clone() for tensor in batch.tensors()]
    for _ in range(2):
        trainer.update(batch, 1e-3)
    assert [torch.equal(a, b) for a, b in zip(kept, batch.tensors(), strict=True)] == [True] * len(kept), (
        "an update has changed its batch"
    )
    assert trainer.done == 2, "updates were counted wrongly"
    floats = [name for name in differences(before, copied(trainer)) if name in before and before[name].dim()]
    assert floats, "nothing has moved"
    measured = trainer.take_metrics()
    assert len(measured) == len(case.make().answers().metrics)
    assert torch.isfinite(measured).any(), "nothing was measured"


def goes_on_from_its_state(case: Case) -> None:
    _, whole = case.learned()
    saved, noise = trained(whole, case), whole.noise_state
    other, _ = case.learned(seed=5)
    other.load_state_dict(saved)
    fresh = other.trainer(case.place(seed=6))
    fresh.noise_state = noise
    for trainer in (whole, fresh):
        for seed in (7, 8):
            trainer.update(case.batch(seed), 1e-3)
    assert differences(copied(whole), copied(fresh)) == [], "what goes on from a state is not what went on"


def refuses_the_state_of_another(case: Case) -> None:
    found, trainer = case.learned()
    saved = trained(trainer, case)
    name = next(name for name, value in saved.items() if value.dim())
    wrong = [saved | {"surplus": torch.zeros(2)}, saved | {name: torch.zeros(99)}]
    for state in (*wrong, {key: value for key, value in saved.items() if key != name}):
        try:
            found.load_state_dict(state)
        except CheckpointError:
            continue
        raise AssertionError("the state of another was taken")


def what_is_published_acts(case: Case) -> None:
    _, trainer = case.learned()
    first = published(trainer)
    trained(trainer, case)
    policy = make_policy(case.make().answers().policy, np.random.SeedSequence(0))
    newest = published(trainer)
    assert len(newest) == policy.nbytes, "the policy has another size"
    assert not np.array_equal(first, newest), "the policy does not follow the updates"
    policy.load(newest)
    actions = np.zeros((4, case.spaces.action_dim), case.spaces.row_action_dtype)
    policy.act(np.random.default_rng(0).standard_normal((4, OBS)).astype(np.float32), actions, deterministic=True)
    assert np.isfinite(actions).all()


def what_is_not_finite_is_refused(case: Case) -> None:
    _, trainer = case.learned()
    batch = case.batch()
    trainer.update(batch, 1e-3)
    broken = type(batch)(*(None if x is None else x * torch.nan if x.is_floating_point() else x for x in batch))
    try:
        for _ in range(3):
            trainer.update(broken, 1e-3)
    except NonFiniteError:
        return
    raise AssertionError("a batch of NaN was learned from")


CONTRACT = (
    answers_travel_as_json,
    a_seed_decides_everything,
    an_update_learns_and_measures,
    goes_on_from_its_state,
    refuses_the_state_of_another,
    what_is_published_acts,
    what_is_not_finite_is_refused,
)


def trained(trainer: Trainer, case: Case) -> dict[str, Tensor]:
    """A copy of the state after three updates."""
    for seed in (1, 2, 3):
        trainer.update(case.batch(seed), 1e-3)
    return copied(trainer)


def copied(trainer: Trainer) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in trainer.state_dict().items()}


def published(trainer: Trainer) -> Any:
    return trainer.actor_parameters().detach().numpy().view(np.uint8).copy()


def differences(one: dict[str, Tensor], other: dict[str, Tensor]) -> list[str]:
    return [name for name in one | other if name not in one or name not in other or not one[name].equal(other[name])]
