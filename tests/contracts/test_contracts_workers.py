"""Every kind of worker keeps the contract, those of the examples too; for each part a planted defect is caught."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlz.transport.stats import Stat, StatsRow
from rlz.workers.relabel import Relabeller
from rlz.workers.sampler import Sampler
from support import worker_contract
from support.worker_contract import CONTRACT, Bench

SHAPER = f"{Path(__file__).parents[2] / 'examples' / 'reward_shaper.py'}:graph"
ROLLOUTS: dict[str, Any] = {"algo": "ppo", "num_envs": 2, "n_steps": 8}
KINDS: dict[str, dict[str, Any]] = {
    "sampler": {"num_envs": 2},
    "sampler of rollouts": {"role": "sampler", **ROLLOUTS},
    "grouped sampler": {"role": "sampler", "num_envs": 3, "env_groups": 2},
    "asking sampler": {"role": "sampler", "num_envs": 3, "env_groups": 2, "inference": "central"},
    "inference": {"num_envs": 3, "inference": "central"},
    "learner": {},
    "learner of rollouts": {"role": "learner", **ROLLOUTS},
    "evaluator": {},
    "shaper": {"graph": SHAPER, "num_envs": 2},
}


@pytest.mark.parametrize("part", CONTRACT, ids=lambda part: part.__name__)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_worker_keeps_the_contract(kind: str, part: Callable[[Bench], None], tmp_path: Path) -> None:
    part(Bench.of(**{"role": kind, "run_dir": tmp_path, **KINDS[kind]}))


class Waits(Sampler):
    def step(self, timeout: float | None) -> bool:
        time.sleep(600)
        return True


class Endless(Relabeller):
    def relabel(self, rows: Any) -> None: ...

    def step(self, timeout: float | None) -> bool:
        super().step(timeout)
        return True


class Keeps(Sampler):
    def close(self) -> None: ...


class Silent(Sampler):
    def _flush(self, now: float | None = None) -> None: ...


class Elsewhere(Sampler):
    def start(self) -> None:
        super().start()
        StatsRow(self._streams.stats, 0).add(Stat.ENV_STEPS, 1.0)


class Forgets(Sampler):
    def restore(self, state: Any) -> None: ...


class NotJson(Sampler):
    def state(self) -> dict[str, Any]:
        return {"obs": self._obs}


class Counts(Sampler):
    def state(self) -> dict[str, Any]:
        self._returns[0] += 1.0
        return super().state()


class Meddles(Relabeller):
    """Writes to the stream that it takes."""

    def relabel(self, rows: Any) -> None: ...

    def step(self, timeout: float | None) -> bool:
        with self._from.writer([0, 1], worker=7) as writer:
            writer.append_packed(0, self._rows[0], version=0)
        return super().step(timeout)


DEFECTS = [
    (Waits, worker_contract.never_waits_with_timeout_0, "waits"),
    (Endless, worker_contract.ends_after_a_stop, "goes on after a stop"),
    (Keeps, worker_contract.gives_back_what_it_held, "after close"),
    (Silent, worker_contract.counts_what_its_node_says, "env_steps stays 0"),
    (Elsewhere, worker_contract.counts_what_its_node_says, "the row of another"),
    (Forgets, worker_contract.goes_on_from_its_state, "is not the one"),
    (NotJson, worker_contract.goes_on_from_its_state, "not JSON serializable"),
    (Counts, worker_contract.goes_on_from_its_state, "changes by being taken"),
    (Meddles, worker_contract.touches_only_its_streams, "which its node does not give"),
]


@pytest.mark.parametrize(("defect", "part", "caught"), DEFECTS, ids=lambda one: getattr(one, "__name__", ""))
def test_a_planted_defect_is_caught(
    defect: type[Any], part: Callable[[Bench], None], caught: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_contract, "TIMEOUT_S", 1.0 if defect is Waits else 30.0)
    role = "shaper" if issubclass(defect, Relabeller) else "sampler"
    with pytest.raises((AssertionError, TypeError), match=caught):
        part(Bench.of(role, tmp_path, make=defect, **KINDS[role]))


def test_each_part_of_the_contract_has_a_planted_defect() -> None:
    assert {part for _, part, _ in DEFECTS} == set(CONTRACT)
