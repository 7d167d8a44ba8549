import json

import pytest
from rich.console import Console

from rlz.bench import report
from rlz.bench.result import Job, Outcome, Result, Spread, run_rounds
from rlz.errors import RlzError
from rlz.system.detect import detect

VALUES = {"rlz": [100.0, 110.0, 90.0], "sb3: 1 thread": [50.0, 55.0, 60.0], "sb3: 2 threads": [20.0, 99.0, 30.0]}


def result():
    jobs = [
        Job(name, lambda number, name=name: Outcome({name: {"env_steps_per_s": VALUES[name][number]}}))
        for name in VALUES
    ]
    return run_rounds(jobs, 3, lambda _: None)


def test_spread():
    assert Spread.of([4.0, 1.0, 3.0, 2.0]) == Spread(2.5, 1.0, 4.0, 1.75, 3.25, 4)
    assert Spread.of([7.0]) == Spread(7.0, 7.0, 7.0, 7.0, 7.0, 1)


def test_ratio_is_against_the_variant_with_the_best_median():
    (ratio,) = result().ratios(["env_steps_per_s"])
    assert (ratio.peer, ratio.best) == ("sb3", "sb3: 1 thread")
    assert ratio.ratio == pytest.approx(100 / 55)
    assert (ratio.rounds.low, ratio.rounds.high) == (1.5, 2.0)


def test_the_best_time_is_the_shortest():
    found = Result()
    for name, values in {"rlz": [4.0, 2.0], "fifo: dict": [9.0, 9.0], "fifo: raw": [6.0, 6.0]}.items():
        for value in values:
            found.add(Outcome({name: {"latency_us": value}}))
    (ratio,) = found.ratios(["latency_us"])
    assert (ratio.best, ratio.ratio) == ("fifo: raw", 0.5)


def test_every_job_runs_once_per_round_and_the_first_one_changes():
    order = []

    def job(name):
        return Job(name, lambda number: order.append((number, name)) or Outcome({name: {"x": 1.0}}))

    run_rounds([job("a"), job("b"), job("c")], 3, lambda _: None)
    assert ["".join(name for number, name in order if number == n) for n in range(3)] == ["abc", "bca", "cab"]


def test_a_peer_that_fails_is_reported_and_left_out_and_rlz_is_not():
    calls = []

    def fail(number):
        calls.append(number)
        raise RlzError("no such library")

    found = run_rounds([Job("rlz", lambda _: Outcome({"rlz": {"x": 1.0}})), Job("sb3", fail)], 2, lambda _: None)
    assert found.errors == ["sb3: no such library"]
    assert calls == [0]
    assert found.values == {"rlz": {"x": [1.0, 1.0]}}
    with pytest.raises(RlzError):
        run_rounds([Job("rlz", fail, needed=True)], 1, lambda _: None)


def report_of(found: Result):
    return report.to_json(
        found,
        workload="train",
        settings={"env": "Ant-v4", "rounds": 3},
        metrics=("env_steps_per_s",),
        machine=detect().to_json(),
        command="rlz bench train",
        seconds=1.0,
    )


def test_report_as_json_tables_and_markdown(tmp_path):
    found = report_of(result())
    assert json.loads(json.dumps(found)) == found
    assert found["contenders"]["rlz"]["env_steps_per_s"]["values"] == [100.0, 110.0, 90.0]
    with (tmp_path / "out.txt").open("w") as file:
        console = Console(file=file, width=120, record=True)
        report.show(found, console)
        shown = console.export_text()
    markdown = report.to_markdown(found)
    for text in (shown, markdown):
        assert "rlz is at 1.82 times sb3: 1 thread (by round 1.50 to 2.00)" in text
    assert "| rlz | 100 | 90 | 95 | 105 | 110 | 3 |" in markdown


def test_figures_for_people():
    assert [report.figure(x) for x in (0.123, 99.4, 1234.0, 23456.0, 2.2e7)] == [
        "0.123",
        "99.4",
        "1,234",
        "23.5 k",
        "22 M",
    ]
