"""Throughput mode: sampling and learning at once on all cores, against what each side gives alone on half of them.

    python benches/throughput_mode.py --output benches/results/throughput_mode.md     # Ant-v4, three rounds, 45 minutes
    python benches/throughput_mode.py --env HalfCheetah-v5 --seconds 40 --rounds 5
    python benches/throughput_mode.py --learn                                         # see below
    python benches/throughput_mode.py --quick                                         # whether it works: a tiny network

A round runs `rlz train sac` three times, each until it is steady and then for a window, read from its metrics.jsonl:

- both at once: `--replay-ratio free --batch-size auto` on all cores. The window begins after the run's first look at
  batch sizes and environments (its events tell; numbers that stand still may only wait for the compiler), when executor
  and threads stand still, and what was chosen has for 20 s; it begins anew when that changes after all.
- samplers alone, on the first half of the cores: replay ratio 0.0001, with as many environments as step above. They act
  with the policy and write rows as ever; the learner has one update to make every 10,000 env steps.
- the learner alone, on the same half: replay ratio 1024, with the batch size that the first run of the round settled
  on. It draws, updates, publishes and logs as ever; the sampler has one env step to make every 1024 updates.

So a side alone is the very program that runs in throughput mode, in its own process, with all its duties: bare loops
over environment or update (as `rlz profile` measures) would also leave out what a run cannot do without. That the other
side takes next to nothing is shown by the CPU time of both. Where `cores_physical` is less than the cores, two cores
are two threads of one, and a side that is alone on one of them has the units of both.

The policy stays what it is (a learning rate of 1e-9), so that all runs step the same physics: what is learned on Ant-v4
in a minute makes its steps a fifth slower, with more contacts to solve, and the samplers alone would not learn it. With
--learn the learning rate is the run's own.

A profile for `--plan auto` is measured first (--budget; the user's own profiles stay as they are).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from busy_neighbours import on_cores
from plan import TINY, Case, profile, say
from rich.console import Console

from rlz.bench.report import show, to_json, to_markdown
from rlz.bench.result import Job, Outcome, Result, Workload, run_rounds
from rlz.bench.train import TrainSettings, Window, steady_from, watch
from rlz.system.detect import detect

STILL_S = 20.0
"""What throughput mode has chosen must have stood still for so long; its next look is two minutes after the first."""

SETTLE_LIMIT_S = 1200.0
"""The window begins by then, settled or not: compilations of several batch sizes lie before it, and a run compares them
for a tenth of its time only."""

STILL_RATE = 1e-9
"""Learning rate with which a policy stays what it is, while every update is done as ever."""

CHOSEN = ("train/batch_size", "train/row_uses")
COMPARES = "by turns, to compare them"
DECIDES = ("batch size stays ", "batch size: ", "environments stay ", "environments: ")
"""Events of throughput mode: two settings are being compared, and what came of it."""

REFUSED = " cannot be used: "
"""A comparison that came to nothing."""

SAMPLERS, LEARNER = "samplers alone on half of the cores", "learner alone on half of the cores"
QUICK_S = 30.0
METRICS = ("env_steps_per_s", "frames_per_s")


@dataclass(frozen=True)
class Side:
    """What one run gave.

    Attributes
    ----------
    batch_size, learning_rate, threads, compiled : at the end of the window.
    ratio : updates per env step within it.
    sampler_cpu, learner_cpu : cores in use, mean over it.
    settled : whether the run was steady when it began, and what throughput mode chooses did not change in it.
    settled_s, seconds : when it began, and its length.
    row_uses : times that each row was learned from before samplers went on.
    samplers, num_envs, spin_count, publish_every : as the run was placed.
    """

    env_steps_per_s: float
    updates_per_s: float
    frames_per_s: float
    batch_size: int
    learning_rate: float
    ratio: float
    threads: int
    compiled: bool
    sampler_cpu: float
    learner_cpu: float
    settled: bool
    settled_s: float
    seconds: float
    row_uses: float
    samplers: int
    num_envs: int
    spin_count: int
    publish_every: int


def measure(
    settings: TrainSettings, options: Sequence[str], *, adapts: bool = False, limit_s: float = SETTLE_LIMIT_S
) -> Side:
    """Run `rlz train` until it is steady, for `limit_s` at most; measure a window.

    `adapts`: the run is in throughput mode, and steady when it has chosen.
    """
    compiles = "--no-compile" not in options

    def steady(lines: Sequence[dict[str, Any]], run_dir: Path) -> dict[str, Any] | None:
        still = not adapts or (stood_still(lines) and has_looked(run_dir))
        return steady_from(lines, compiles) if still else None

    return of_window(watch(settings, options, steady=steady, same=CHOSEN, limit_s=limit_s))


def chosen(line: dict[str, Any]) -> list[Any]:
    """What throughput mode chooses."""
    return [line.get(tag) for tag in CHOSEN]


def stood_still(lines: Sequence[dict[str, Any]]) -> bool:
    """Whether what throughput mode chooses has been the same for `STILL_S`."""
    last = lines[-1] if lines else {"wall_s": 0.0}
    same = [line for line in lines if line["wall_s"] >= last["wall_s"] - STILL_S]
    return len(same) < len(lines) and all(chosen(line) == chosen(last) for line in same)


def has_looked(run_dir: Path) -> bool:
    """Whether throughput mode has compared settings, and drawn its conclusions."""
    path = run_dir / "logs" / "events.log"
    events = path.read_text(encoding="utf-8") if path.exists() else ""
    _, compares, after = events.rpartition(COMPARES)
    return bool(compares) and any(said in after for said in (*DECIDES, REFUSED))


def of_window(window: Window) -> Side:
    """Rates between the first and the last of its lines, and what belongs to them."""
    lines, seconds = window.lines, window.seconds
    steps, updates = window.counted("env_steps"), window.counted("updates")
    frames = sum(two["time/frames_per_s"] * (two["wall_s"] - one["wall_s"]) for one, two in pairwise(lines))
    last = lines[-1]

    def cpu(role: str) -> float:
        tags = [tag for tag in last if tag.startswith(f"workers/{role}") and tag.endswith("/cpu_percent")]
        return sum(float(line.get(tag, 0.0)) for line in lines[1:] for tag in tags) / len(lines[1:]) / 100

    return Side(
        env_steps_per_s=steps / seconds,
        updates_per_s=updates / seconds,
        frames_per_s=frames / seconds,
        batch_size=int(last["train/batch_size"]),
        learning_rate=float(last["train/learning_rate"]),
        ratio=updates / max(1, steps),
        threads=int(last["train/threads"]),
        compiled=bool(last["train/compiled"]),
        sampler_cpu=cpu("sampler"),
        learner_cpu=cpu("learner"),
        settled=window.settled,
        settled_s=lines[0]["wall_s"],
        seconds=seconds,
        row_uses=float(last.get("train/row_uses", math.nan)),  # of free runs
        **{name: window.config[name] for name in ("samplers", "num_envs", "spin_count", "publish_every")},
    )


def round_of(settings: TrainSettings, arguments: argparse.Namespace) -> Callable[[int], Outcome]:
    """One round: both at once, then each side alone, the samplers first in every other round."""
    cores = sorted(os.sched_getaffinity(0))
    half = cores[: max(1, len(cores) // 2)]
    more = ["--no-compile"] if arguments.quick else []
    rate = [] if arguments.learn else ["--learning-rate", str(STILL_RATE)]
    limit_s = QUICK_S if arguments.quick else SETTLE_LIMIT_S

    def alone(side: str, both: Side) -> Side:
        say(f"    {side}")
        options = ["--plan", "off", "--spin-count", str(both.spin_count), *rate]
        given = settings
        if side == SAMPLERS:
            count = min(both.samplers, len(half))
            options += ["--samplers", str(count), "--num-envs", str(max(count, both.num_envs))]
            # So few updates are not worth a compilation, which would take the samplers' cores.
            options += ["--replay-ratio", "0.0001", "--threads", "1", "--no-compile"]
        else:
            given = replace(settings, batch_size=both.batch_size)
            options += ["--replay-ratio", "1024", "--publish-every", str(both.publish_every), *more]
            options += ["--compile"] if both.compiled else ["--no-compile"]
        with on_cores(half):
            return measure(given, options, limit_s=limit_s)

    def run(number: int) -> Outcome:
        options = ["--replay-ratio", "free", "--batch-size", arguments.batch_size, *more, *rate]
        both = measure(settings, options, adapts=arguments.batch_size == "auto", limit_s=limit_s)
        order = (SAMPLERS, LEARNER) if number % 2 == 0 else (LEARNER, SAMPLERS)
        windows = {"rlz": both, **{side: alone(side, both) for side in order}}
        metrics = {
            "rlz": {name: getattr(both, name) for name in METRICS},
            SAMPLERS: {"env_steps_per_s": windows[SAMPLERS].env_steps_per_s},
            LEARNER: {"frames_per_s": windows[LEARNER].frames_per_s},
        }
        return Outcome(metrics, facts={name: asdict(window) for name, window in windows.items()})

    return run


def notes(result: Result) -> list[str]:
    """What belongs to the rates: settings that the runs settled on, and that a side alone was alone."""

    def every(name: str, key: str, form: str = "{:g}") -> str:
        return " ".join(form.format(fact[key]) for fact in result.facts[name])

    lines = [
        f"throughput mode, by round: batch size {every('rlz', 'batch_size', '{}')}, learning rate "
        f"{every('rlz', 'learning_rate', '{:.3g}')}, updates per env step {every('rlz', 'ratio', '{:.3g}')}, "
        f"{every('rlz', 'samplers')} samplers, {every('rlz', 'num_envs')} environments, "
        f"{every('rlz', 'row_uses')} uses of each row before samplers go on, "
        f"{every('rlz', 'threads')} learner threads; the window began after {every('rlz', 'settled_s', '{:.0f}')} s",
    ]
    for name in ("rlz", SAMPLERS, LEARNER):
        lines.append(
            f"{'throughput mode' if name == 'rlz' else name}: cores in use by samplers "
            f"{every(name, 'sampler_cpu', '{:.2f}')}, by the learner {every(name, 'learner_cpu', '{:.2f}')}"
        )
    for name in ("rlz", LEARNER):
        if not all(fact["settled"] for fact in result.facts[name]):
            lines.append(f"NOT SETTLED in every round, {name}: {every(name, 'settled', '{}')}")
    return lines


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="Ant-v4")
    parser.add_argument("--batch-size", default="auto", help="of throughput mode; a number keeps it fixed")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0, help="window of one run")
    parser.add_argument(
        "--budget", type=float, default=60.0, help="of rlz profile before the first round; 0: no profile"
    )
    parser.add_argument("--learn", action="store_true", help="with the run's own learning rate")
    parser.add_argument("--quick", action="store_true", help="one round, a tiny network, short windows, no profile")
    parser.add_argument("--output", type=Path, help="JSON; with the suffix .md Markdown, and JSON beside it")
    arguments = parser.parse_args()
    settings = TrainSettings(env=arguments.env, seconds=arguments.seconds)
    if arguments.quick:
        arguments.rounds, arguments.budget = 1, 0.0
        settings = replace(settings, seconds=3.0, hidden=TINY.hidden, batch_size=TINY.batch_size)
    begin, load = time.monotonic(), os.getloadavg()
    with tempfile.TemporaryDirectory(prefix="rlz-profiles-") as folder:
        os.environ["RLZ_PROFILES"] = folder  # the user's own profiles stay as they are
        plan = profile(Case(arguments.env, "free"), arguments.budget)["plan"] if arguments.budget > 0 else None
        job = Job("both at once, then each side alone", round_of(settings, arguments), needed=True)
        result = run_rounds([job], arguments.rounds, say)
    given = {name: value for name, value in vars(arguments).items() if name != "output"}
    report = to_json(
        [(Workload("throughput mode", [job], METRICS, {"env": arguments.env}), result)],
        settings=given | {"load_before": load, "plan": plan},
        machine=detect().to_json(),
        command=shlex.join(["python", "benches/throughput_mode.py", *sys.argv[1:]]),
        seconds=time.monotonic() - begin,
    )
    show(report, Console())
    print("\n".join(notes(result)))
    if arguments.output is not None:
        text = json.dumps(report, indent=1) + "\n"
        arguments.output.with_suffix(".json").write_text(text, encoding="utf-8")
        if arguments.output.suffix == ".md":
            more = "".join(f"- {line}\n" for line in notes(result))
            arguments.output.write_text(to_markdown(report) + more, encoding="utf-8")


if __name__ == "__main__":
    main()
