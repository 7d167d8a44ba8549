"""The tables of figures in README.md and docs/bench/not_ahead.md, made anew from the reports in docs/bench.

    python benches/readme.py            # writes them; `make figures` measures first
    python benches/readme.py --check    # whether they are those of the reports

Each row carries machine, date and versions of its report, by a number.
"""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlz.bench.report import figure, machine_line
from rlz.bench.result import is_cost

ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- figures: begin (python benches/readme.py) -->", "<!-- figures: end -->"

LIMITS = ("memcpy", "bare loop", "core", "hand-over", "FMA peak", "rlz")
"""Contenders that stand for a limit, or for parts of rlz."""

ROWS = (
    ("train", "env_steps_per_s", "SAC on {env}, batch 256, replay ratio 1, env steps/s", ("sb3", "sbx")),
    ("sampling", "env_steps_per_s", "one sampler process on {env}, learner idle, env steps/s", ("bare loop",)),
    ("update", "updates_per_s", "SAC updates alone, sizes of {env}, batch 256, updates/s", ("sb3", "sbx")),
    (
        "replay",
        "sample_256",
        "uniform draws from 1M rows of {env}, batch 256, rows/s",
        ("numpy", "cpprb", "sb3", "torchrl"),
    ),
    ("replay", "prioritized_256", "prioritised draw and update, batch 256, rows/s", ("cpprb", "torchrl")),
    ("transport", "messages_305kB", "trajectory of 305 kB between processes, messages/s", ("faster-fifo", "mp.Queue")),
    ("train", "first_update_s", "from the start of the process to the first update on {env}, s", ("sb3", "sbx")),
)


def table(folder: Path) -> Iterator[str]:
    """Lines of the table and its footnotes; rows whose report or figure is not there are left out."""
    notes: list[str] = []
    yield "| what | rlz | beside it | rlz / it (95 % interval) | |"
    yield "|---|---|---|---|---|"
    for workload, metric, words, others in ROWS:
        path = folder / workload / "report.json"
        if not path.is_file():
            continue
        report = json.loads(path.read_text(encoding="utf-8"))
        (one,) = (one for one in report["workloads"] if one["workload"] == workload)
        mine = one["contenders"]["rlz"].get(metric)
        if mine is None:
            continue
        where = f"[{workload}](docs/bench/{workload}/report.md)"
        note = " | ".join([where, report["date"][:10], machine_line(report), packages(report)])
        if note not in notes:
            notes.append(note)
        found = {ratio["peer"]: ratio for ratio in one["ratios"] if ratio["metric"] == metric}
        beside = [found[name] for name in others if name in found]
        shown = [f"{ratio['best']} {figure(one['contenders'][ratio['best']][metric]['median'])}" for ratio in beside]
        text = words.format(env=one["definition"].get("env", ""))
        cells = [text, figure(mine["median"]), "; ".join(shown), "; ".join(map(ratio_words, beside))]
        yield f"| {' | '.join(cells)} | {notes.index(note) + 1} |"
    yield ""
    yield "| | report | date | machine | versions |"
    yield "|---|---|---|---|---|"
    yield from (f"| {number} | {note} |" for number, note in enumerate(notes, 1))


def ratio_words(ratio: dict[str, Any]) -> str:
    """A ratio with its interval."""
    low, high = ratio["interval"] or (ratio["rounds"]["low"], ratio["rounds"]["high"])
    return f"**{ratio['ratio']:.2f}** ({low:.2f} to {high:.2f})"


def packages(report: dict[str, Any]) -> str:
    """The versions that matter, of rlz and of the peers."""
    versions = dict(report["versions"]["rlz"])
    for found in report["versions"].values():
        versions = found | versions
    return ", ".join(f"{name} {versions[name]}" for name in versions if name not in ("tensordict",))


def behind(folder: Path) -> Iterator[str]:
    """Every figure by which rlz is behind another contender that is no limit."""
    yield "| workload | figure | rlz | ahead of it | times as much or as long (95 % interval) | date |"
    yield "|---|---|---|---|---|---|"
    for path in sorted(folder.glob("*/report.json")):
        report = json.loads(path.read_text(encoding="utf-8"))
        for one in report["workloads"]:
            for ratio in one["ratios"]:
                metric, best = ratio["metric"], ratio["best"]
                good = 1 / ratio["ratio"] if is_cost(metric) else ratio["ratio"]
                if good < 1 and not best.startswith(LIMITS):
                    mine, theirs = (one["contenders"][name][metric]["median"] for name in ("rlz", best))
                    cells = [one["workload"], metric, figure(mine), f"{best}: {figure(theirs)}", ratio_words(ratio)]
                    yield f"| {' | '.join(cells)} | {report['date'][:10]} |"


def with_table(text: str, lines: Iterator[str]) -> str:
    """A page with the table in its place."""
    inside = "\n".join([BEGIN, *lines, END])
    return re.sub(f"{re.escape(BEGIN)}.*{re.escape(END)}", lambda _: inside, text, flags=re.DOTALL)


def main() -> None:
    """Write or check."""
    folder = ROOT / "docs" / "bench"
    for path, lines in ((ROOT / "README.md", table(folder)), (folder / "not_ahead.md", behind(folder))):
        before = path.read_text(encoding="utf-8")
        after = with_table(before, lines)
        if "--check" in sys.argv and after != before:
            sys.exit(f"the figures in {path.name} are not those of docs/bench: python benches/readme.py")
        path.write_text(after, encoding="utf-8")


if __name__ == "__main__":
    main()
