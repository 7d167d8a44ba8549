"""A small suite of figures against generous floors: what has become several times slower fails here, on any machine.

Ratios alone, of sides that are measured by turns: no other test measures time.
"""

from typing import Any

import pytest
from rich.console import Console

from rlz.bench import run_bench
from rlz.bench.result import is_cost

FLOORS = {
    ("replay", "sample_256", "numpy"): 0.4,
    ("replay", "sample_8192", "numpy"): 0.25,
    ("replay", "append_us", "numpy"): 0.5,
    ("transport", "messages_19kB", "mp.Queue"): 2.0,
    ("transport", "messages_305kB", "mp.Queue"): 4.0,
    ("transport", "parameters_300kB_us", "lock and shared array"): 0.1,
    ("sampling", "env_steps_per_s", "bare loop"): 0.2,
}
"""By workload, metric and contender: how many times as quick as that rlz is at least. Usual figures: 2, 1.5, 8, 20, 80,
2, 0.5 to 0.9."""


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    names = ("replay", "transport", "sampling")
    return run_bench(names, env="Pendulum-v1", peers=[], quick=True, seconds=0.8, console=Console(quiet=True))


@pytest.mark.slow
@pytest.mark.parametrize(("workload", "metric", "other"), FLOORS, ids=lambda value: str(value))
def test_a_figure_is_above_its_floor(report: dict[str, Any], workload: str, metric: str, other: str) -> None:
    (one,) = (one for one in report["workloads"] if one["workload"] == workload)
    assert not one["errors"]
    (found,) = (ratio["ratio"] for ratio in one["ratios"] if (ratio["metric"], ratio["best"]) == (metric, other))
    times = 1 / found if is_cost(metric) else found
    assert times > FLOORS[workload, metric, other]
