import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from rich.console import Console

from rlz.bench import buffers, compare, report
from rlz.bench.load import MOST, Load, Watch, look
from rlz.bench.page import to_html
from rlz.bench.result import Job, Outcome, Result, Spread, Workload, is_cost, kind_of, run_rounds
from rlz.errors import ConfigError, RlzError
from rlz.system.detect import detect

VALUES = {
    **{"rlz": [100.0, 110.0, 90.0], "sb3: 1 thread": [50.0, 55.0, 60.0], "sb3: 2 threads": [20.0, 99.0, 30.0]},
    "bare loop": [200.0, 220.0, 180.0],
}


class Still(Watch):
    """A machine on which nobody else works, or as much as a test says."""

    loads: ClassVar[list[float]] = []

    def read(self) -> Load:
        return Load(self.loads.pop(0) if self.loads else 0.0)


def rounds(jobs: list[Job], count: int) -> Result:
    return run_rounds(jobs, count, lambda _: None, Still)


def result() -> Result:
    jobs = [
        Job(name, lambda number, name=name: Outcome({name: {"env_steps_per_s": VALUES[name][number]}}))  # type: ignore[misc]
        for name in VALUES
    ]
    return rounds(jobs, 3)


def workload(**values: Any) -> Workload:
    return Workload("train", [], ("env_steps_per_s", "none"), {"env": "Ant-v4"}, **values)


def report_of(found: Result, **values: Any) -> dict[str, Any]:
    made = report.to_json(
        [(workload(**values), found)],
        settings={"env": None, "rounds": 3},
        machine=detect().to_json(),
        command="rlz bench train",
        seconds=1.0,
    )
    made["workloads"][0]["missing"] = {}
    return made


def test_spread() -> None:
    assert Spread.of([4.0, 1.0, 3.0, 2.0]) == Spread(2.5, 1.0, 4.0, 1.75, 3.25, 4)
    assert Spread.of([7.0]) == Spread(7.0, 7.0, 7.0, 7.0, 7.0, 1)


@pytest.mark.parametrize(
    ("metric", "cost", "kind"),
    [
        ("env_steps_per_s", False, "steady rate"),
        ("append_us", True, "steady rate"),
        ("first_update_s", True, "cold start"),
        ("steps_500_s", True, "end to end"),
        ("seconds_to_score", True, "end to end"),
        ("score_at_end", False, "end to end"),
    ],
)
def test_what_a_metric_is_follows_from_its_name(metric: str, cost: bool, kind: str) -> None:
    assert (is_cost(metric), kind_of(metric)) == (cost, kind)


def test_ratio_is_against_the_variant_with_the_best_median() -> None:
    ratio, limit = result().ratios(["env_steps_per_s"])
    assert (ratio.peer, ratio.best) == ("sb3", "sb3: 1 thread")
    assert ratio.ratio == pytest.approx(100 / 55)
    assert (ratio.rounds.low, ratio.rounds.high) == (1.5, 2.0)
    assert ratio.interval is not None
    assert 1.5 <= ratio.interval[0] < ratio.interval[1] <= 2.0
    assert limit.ratio == pytest.approx(0.5)
    assert limit.interval == (pytest.approx(0.5), pytest.approx(0.5))


def test_the_best_time_is_the_shortest() -> None:
    found = Result()
    for name, values in {"rlz": [4.0, 2.0], "fifo: dict": [9.0, 9.0], "fifo: raw": [6.0, 6.0]}.items():
        for value in values:
            found.add(Outcome({name: {"latency_us": value}}))
    (ratio,) = found.ratios(["latency_us"])
    assert (ratio.best, ratio.ratio) == ("fifo: raw", 0.5)


def test_every_job_runs_once_per_round_and_the_first_one_changes() -> None:
    order = []

    def job(name: str) -> Job:
        def run(number: int) -> Outcome:
            order.append((number, name))
            return Outcome({name: {"x": 1.0}})

        return Job(name, run)

    rounds([job("a"), job("b"), job("c")], 3)
    assert ["".join(name for number, name in order if number == n) for n in range(3)] == ["abc", "bca", "cab"]


def test_a_peer_that_fails_is_reported_and_left_out_and_rlz_is_not() -> None:
    calls = []

    def fail(number: int) -> Outcome:
        calls.append(number)
        raise RlzError("no such library")

    found = rounds([Job("rlz", lambda _: Outcome({"rlz": {"x": 1.0}})), Job("sb3", fail)], 2)
    assert found.errors == ["sb3: no such library"]
    assert calls == [0]
    assert found.values == {"rlz": {"x": [1.0, 1.0]}}
    with pytest.raises(RlzError):
        rounds([Job("rlz", fail, needed=True)], 1)


def test_a_disturbed_measurement_is_made_again_and_marked_if_that_does_not_help(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values = iter([10.0, 20.0, 30.0, 40.0, 50.0])
    job = Job("rlz", lambda _: Outcome({"rlz": {"x": next(values)}}))
    # Round 1: disturbed, then quiet. Round 2: disturbed all three times, least of all the second time.
    monkeypatch.setattr(Still, "loads", [0.5, 0.0, 0.9, 0.3, 0.7])
    found = rounds([job], 2)
    assert found.values == {"rlz": {"x": [20.0, 40.0]}}
    assert [(load["tries"], load["disturbed"], load["others_cores"]) for load in found.loads] == [
        (2, False, 0.0),
        (3, True, 0.3),
    ]
    assert list(report.load_lines({"loads": found.loads})) == ["disturbed: round 2 of rlz, others took 0.30 cores"]


def test_what_this_process_takes_is_no_disturbance() -> None:
    clock = Watch()
    while clock._now()[3] - clock._began[3] < 0.3:
        pass
    (at, busy, stolen, own), (_, busy_before, _, own_before) = clock._now(), clock._began
    clock._began = (at - 1.0, busy - 0.3, stolen, own - 0.3)  # a second in which nobody but us took 0.3 cores
    assert clock.read().others < MOST
    clock._began = (at - 1.0, busy - 0.8, stolen, own - 0.3)
    assert clock.read().others == pytest.approx(0.5, abs=0.1)
    assert busy - busy_before >= 0.0
    assert own - own_before >= 0.3
    assert look(0.01).others >= 0.0


class Clock:
    """Time that passes where a test says."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


def slowed(clock: Clock, cost: float, drift: Callable[[], float]) -> Callable[[int], float]:
    """A contender whose calls take `cost` ms each, on a machine that gets slower: its rate over half a second."""

    def call() -> int:
        clock.now += 1e-3 * cost * drift()
        return 1

    return lambda _: buffers.rate(call, 0.5)


def test_a_peer_that_is_slowed_by_ten_percent_is_reported_ten_percent_slower(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    clock = Clock()
    monkeypatch.setattr(buffers, "time", clock)
    ours = slowed(clock, 1.0, lambda: 1.0 + clock.now / 20)
    theirs = slowed(clock, 1.1, lambda: 1.0 + clock.now / 20)
    jobs = [
        Job("rlz", lambda number: Outcome({"rlz": {"rows_per_s": ours(number)}})),
        Job("peer", lambda number: Outcome({"peer": {"rows_per_s": theirs(number)}})),
    ]
    found = rounds(jobs, 8)
    (ratio,) = found.ratios(["rows_per_s"])
    assert max(found.values["rlz"]["rows_per_s"]) > 1.3 * min(found.values["rlz"]["rows_per_s"]), "it did get slower"
    assert ratio.ratio == pytest.approx(1.1, abs=0.02)
    assert ratio.interval is not None
    assert 1.05 < ratio.interval[0] < 1.1 < ratio.interval[1] < 1.15


def test_report_as_json_tables_markdown_and_page() -> None:
    found = report_of(result(), limits={"env_steps_per_s": "bare loop", "none": "nobody"})
    assert json.loads(json.dumps(found)) == found
    (one,) = found["workloads"]
    assert one["contenders"]["rlz"]["env_steps_per_s"]["values"] == [100.0, 110.0, 90.0]
    assert one["metrics"] == {"env_steps_per_s": {"kind": "steady rate", "better": "more", "limit": "bare loop"}}
    console = Console(width=160, record=True, file=io.StringIO())
    report.show(found, console)
    shown, markdown, page = console.export_text(), report.to_markdown(found), to_html(found)
    for text in (shown, markdown, page):
        assert "rlz is at 1.82 times sb3: 1 thread (95 % interval 1.50 to 2.00, by round 1.50 to 2.00)" in text
        assert "times bare loop" not in text, "a limit is no peer"
    assert "| rlz | 100 | 90 | 95 | 105 | 110 | 3 | 50 % |" in markdown
    assert "http" not in page.replace("<!doctype html>", "")
    assert page.count("<svg") == 1
    assert json.loads(page.split('id="report">')[1].split("</script>")[0]) == found


def test_a_report_beside_an_older_one(tmp_path: Path) -> None:
    new = report_of(result())
    slow, other = Result(), Result()
    for value in (200.0, 210.0, 190.0):
        slow.add(Outcome({"rlz": {"env_steps_per_s": value}}))
        other.add(Outcome({"rlz": {"env_steps_per_s": value / 2}}))
    for old, verdict in ((report_of(slow), "SLOWER"), (report_of(other), "no change that shows"), (new, "no change")):
        path = tmp_path / "old.json"
        path.write_text(json.dumps(old))
        said = list(compare.lines(compare.read_report(path), new))
        assert verdict in said[-1]
    (change,) = compare.changes(report_of(slow), new)
    assert (change.old, change.new) == (200.0, 100.0)
    elsewhere = report_of(slow)
    elsewhere["workloads"][0]["definition"] = {"env": "Hopper-v5"}
    assert list(compare.lines(elsewhere, new))[-1] == "no workload of the same definition is in both"
    for text, said in (('{"format": 1}', "expected a report of format 2, got 1"), ("[", "cannot be read")):
        path.write_text(text)
        with pytest.raises(ConfigError, match=said):
            compare.read_report(path)


def test_figures_for_people() -> None:
    assert [report.figure(x) for x in (0.123, 99.4, 1234.0, 23456.0, 2.2e7)] == [
        "0.123",
        "99.4",
        "1,234",
        "23.5 k",
        "22 M",
    ]
