"""How good the planner is: predictions beside steady states, and automatic plans beside an exhaustive grid.

    python benches/plan.py                          # six cases, three interleaved repeats; hours, the machine to itself
    python benches/plan.py --envs 1 4 --spins 1000 10000 --repeats 2 --seconds 5    # a smaller grid, within the hour
    python benches/plan.py --cores 1                # the same on one core
    python benches/plan.py --quick                  # whether it works: one case, a tiny grid and network

For each case (SAC on an environment, replay ratio 1 or free) a fresh profile is measured, and the run that it leads to
predicted. Then all points of the grid (samplers x environments in each x learner threads x spin count), the automatic
plan and fixed defaults (`--plan off`, torch's own number of threads) are run by turns: `rlz train` for some seconds of
steady state, read from its own metrics.jsonl. A point counts by env steps/s, free by the geometric mean of env steps/s
and frames/s. Points that reach less than 85 % of the best one in the first turn are not repeated. Results go to
--output after each case: every value, medians, and the figures of the issue.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

from rlz.bench.train import TrainSettings, measure_rlz
from rlz.errors import RlzError
from rlz.system.detect import detect

ENVS = ("Pendulum-v1", "HalfCheetah-v5", "Ant-v4")
RATIOS = ("1", "free")
FULL = TrainSettings(env="", seconds=0.0, buffer_size=200_000)
TINY = replace(FULL, hidden=(32,), batch_size=64)
"""For --quick, which does not compile either: a minute on a machine that is busy with other things."""

AUTO, DEFAULTS = "automatic plan", "fixed defaults"


@dataclass(frozen=True)
class Case:
    """What is trained."""

    env: str
    ratio: str


@dataclass(frozen=True)
class Point:
    """One point of the grid. One thread never waits: its spin count is 0 here."""

    samplers: int
    envs: int
    threads: int
    spin: int

    def options(self) -> list[str]:
        """For `rlz train`."""
        count = self.samplers * self.envs
        options = ["--plan", "off", "--samplers", str(self.samplers), "--num-envs", str(count)]
        options += ["--threads", str(self.threads)]
        return [*options, "--spin-count", str(self.spin)] if self.threads > 1 else options

    def name(self) -> str:
        """For people."""
        text = f"{self.samplers} x {self.envs}, {self.threads} thread{'s' * (self.threads > 1)}"
        return f"{text}, spin {self.spin}" if self.threads > 1 else text


PROMISING = 0.85
"""Part of the best score of the first turn from which a point of the grid is worth further turns."""


def grid(cores: int, envs: Sequence[int], spins: Sequence[int], quick: bool) -> list[Point]:
    """All points; a spin count matters with more than one thread only."""
    if quick:
        return [Point(1, count, 1, 0) for count in (1, 4)]
    points = product(sorted({1, max(2, cores)}), envs, sorted({1, cores}), spins)  # two samplers may share one core too
    return [Point(*values[:3], values[3] if values[2] > 1 else 0) for values in points
            if values[2] > 1 or values[3] == spins[0]]  # fmt: skip


def profile(case: Case, budget: float, quick: bool = False) -> dict[str, Any]:
    """Measure anew, as a user does; the plan is for the case's replay ratio."""
    with tempfile.TemporaryDirectory(prefix="rlz-plan-") as folder:
        config = Path(folder) / "run.toml"
        ratio = '"free"' if case.ratio == "free" else case.ratio
        tiny = f"hidden = {list(TINY.hidden)}\nbatch_size = {TINY.batch_size}\ncompile = false\n" if quick else ""
        config.write_text(f'algo = "sac"\nenv = "{case.env}"\nreplay_ratio = {ratio}\n{tiny}')
        command = [sys.executable, "-m", "rlz", "profile", "--config", str(config), "--fresh", "--json", "--explain"]
        done = subprocess.run([*command, "--budget", f"{budget:g}"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RlzError(f"rlz profile failed: {done.stderr.strip()[-500:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def run(case: Case, options: Sequence[str], seconds: float, quick: bool) -> dict[str, float]:
    """Steady state of one run: env steps/s and frames/s."""
    settings = replace(TINY if quick else FULL, env=case.env, seconds=seconds)
    more = ["--replay-ratio", case.ratio, *options, *(["--no-compile"] if quick else [])]
    rates = measure_rlz(settings, more).metrics["rlz"]
    return {"env_steps_per_s": rates["env_steps_per_s"], "frames_per_s": rates["updates_per_s"] * settings.batch_size}


def score(case: Case, rates: dict[str, float]) -> float:
    """What is compared."""
    if case.ratio != "free":
        return rates["env_steps_per_s"]
    return math.sqrt(rates["env_steps_per_s"] * rates["frames_per_s"])


def measure(case: Case, arguments: argparse.Namespace, cores: int) -> dict[str, Any]:
    """A case: prediction, automatic plan, defaults and grid, by turns."""
    found = profile(case, arguments.budget, arguments.quick)
    plan = found["plan"]
    chosen = grid(cores, arguments.envs, arguments.spins, arguments.quick)
    points = {point.name(): point.options() for point in chosen}
    # The profile is in the cache now: a run with --plan auto finds it.
    contenders = {AUTO: [], DEFAULTS: ["--plan", "off", "--threads", str(cores)], **points}
    values: dict[str, list[dict[str, float]]] = {name: [] for name in contenders}
    errors = []
    for turn in range(arguments.repeats):
        best_so_far = max((score(case, rates[0]) for rates in values.values() if rates), default=0.0)
        for name, options in contenders.items():
            first = values[name][:1]
            if turn and name in points and (not first or score(case, first[0]) < PROMISING * best_so_far):
                continue
            say(f"{case.env}, ratio {case.ratio}, turn {turn + 1}: {name}")
            try:
                values[name].append(run(case, options, arguments.seconds, arguments.quick))
            except RlzError as error:
                errors.append(f"{name}: {error}")
    scores = pooled(case, values, twins(plan, cores))
    best = max((name for name in scores if name in points), key=lambda name: scores[name])
    real = {key: median(one[key] for one in values[AUTO]) for key in ("env_steps_per_s", "frames_per_s")}
    predicted = plan["prediction"] or {}
    return {
        "case": asdict(case),
        "plan": plan,
        "profile": {key: found[key] for key in ("took_s", "skipped", "joint")},
        "values": values,
        "predicted_over_real": {key: predicted[key] / real[key] for key in real if key in predicted},
        "best_of_grid": best,
        "plan_over_best": scores[AUTO] / scores[best],
        "plan_over_defaults": scores[AUTO] / scores[DEFAULTS] if DEFAULTS in scores else None,
        "errors": errors,
    }


def twins(plan: dict[str, Any], cores: int) -> list[str]:
    """Contenders that are the very same run, whose values are one sample.

    On one core there is one thread and no wait, whatever is asked for; so the plan may be the defaults, and a point.
    """
    choices = plan["choices"]
    here = Point(choices["samplers"], choices["num_envs"] // choices["samplers"], 1, 0)
    if cores > 1:
        return []
    return [AUTO, here.name(), *([DEFAULTS] if (here.samplers, here.envs) == (1, 1) else [])]


def pooled(case: Case, values: dict[str, list[dict[str, float]]], same: list[str]) -> dict[str, float]:
    """Median score of each contender; those that are `same` have one."""
    everything = {name: [score(case, one) for one in rates] for name, rates in values.items() if rates}
    together = [one for name in same for one in everything.get(name, [])]
    return {name: median(together if name in same else rates) for name, rates in everything.items()}


def repeated(env: str, budget: float, times: int) -> dict[str, Any]:
    """How much figures of `rlz profile` differ from one time to the next: largest over smallest."""
    profiles = [profile(Case(env, "1"), budget) for _ in range(times)]

    def rates(one: dict[str, Any]) -> Iterable[tuple[str, float]]:
        for rate in one["sampling"]["rates"]:
            yield f"sampling {rate['processes']} x {rate['envs_per_process']}", rate["env_steps_per_s"]
        for rate in one["updates"]:
            keys = ("device", "executor", "precision", "batch_size", "threads")
            yield " ".join(str(rate[key]) for key in keys), rate["updates_per_s"]
        for rate in one["joint"]:
            keys = ("samplers", "envs_per_sampler", "spin_count", "pinned", "replay_ratio")
            yield "together " + " ".join(str(rate[key]) for key in keys), rate["env_steps_per_s"]

    by_name: dict[str, list[float]] = {}
    for one in profiles:
        for name, rate in rates(one):
            by_name.setdefault(name, []).append(rate)
    spread = {name: max(found) / min(found) for name, found in by_name.items() if len(found) == times and min(found)}
    return {"took_s": [one["took_s"] for one in profiles], "largest_over_smallest": spread}


def say(text: str) -> None:
    """Progress."""
    print(text, file=sys.stderr, flush=True)


def summary(result: dict[str, Any]) -> str:
    """The figures of the issue, in words."""
    lines = []
    for case in result["cases"]:
        predicted = ", ".join(f"{key} {value:.2f}" for key, value in case["predicted_over_real"].items())
        over = case["plan_over_defaults"]
        lines += [
            f"{title(case)}: predicted/real {predicted or '-'}",
            f"    plan/best of grid {case['plan_over_best']:.2f} (best: {case['best_of_grid']})",
            f"    plan/defaults {'-' if over is None else f'{over:.2f}'}",
        ]
    found = [case["plan_over_best"] for case in result["cases"]]
    lines.append(f"plan/best, geometric mean: {geometric_mean(found):.3f}, least {min(found):.3f}")
    if result["repeated"]:
        worst = max(result["repeated"]["largest_over_smallest"].items(), key=lambda pair: pair[1], default=("-", 1.0))
        lines.append(f"rlz profile repeated: largest/smallest at most {worst[1]:.2f} ({worst[0]})")
    return "\n".join(lines)


def markdown(result: dict[str, Any]) -> str:
    """Tables for the docs: predictions, then plans beside the grid."""
    lines = [f"    {result['command']}", ""]
    lines += ["| case | predicted env steps/s | measured | predicted / measured | frames/s, the same | limit |"]
    lines += ["|---|---|---|---|---|---|"]
    for case in result["cases"]:
        found, rates = case["plan"]["prediction"], case["values"][AUTO]
        steps = ", ".join(f"{one['env_steps_per_s']:,.0f}" for one in rates)
        over = case["predicted_over_real"]
        ratios = [f"{over[key]:.2f}" if key in over else "-" for key in ("env_steps_per_s", "frames_per_s")]
        predicted = f"{found['env_steps_per_s']:,.0f}" if found else "-"
        cells = [title(case), predicted, steps, *ratios, found["bound"] if found else "-"]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "| case | automatic plan | best of the grid | plan / best | plan / fixed defaults |"]
    lines += ["|---|---|---|---|---|"]
    for case in result["cases"]:
        chosen = case["plan"]["choices"]
        plan = f"{chosen['samplers']} x {chosen['num_envs'] // chosen['samplers']}, threads {chosen['threads']}"
        plan += f", spin {chosen['spin_count']}"
        over_defaults = "-" if case["plan_over_defaults"] is None else f"{case['plan_over_defaults']:.2f}"
        cells = [title(case), plan, case["best_of_grid"], f"{case['plan_over_best']:.2f}", over_defaults]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", *summary(result).splitlines()[3 * len(result["cases"]) :]])


def title(case: dict[str, Any]) -> str:
    """Name of a case."""
    return f"{case['case']['env']}, ratio {case['case']['ratio']}"


def main() -> None:
    """Measure what the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", nargs="+", default=list(ENVS))
    parser.add_argument("--ratio", nargs="+", default=list(RATIOS))
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--envs", type=int, nargs="+", default=[1, 4, 16], help="of the grid, in each sampler")
    parser.add_argument("--spins", type=int, nargs="+", default=[1000, 0, 10_000], help="of the grid")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0, help="window of one run")
    parser.add_argument("--budget", type=float, default=60.0, help="of rlz profile")
    parser.add_argument("--profiles", type=int, default=3, help="times that Ant-v4 is profiled for the spread; 0: not")
    parser.add_argument("--quick", action="store_true", help="one case, two points, a tiny network, short windows")
    parser.add_argument("--output", type=Path, metavar="JSON")
    parser.add_argument("--render", type=Path, metavar="JSON", help="print the tables of such a file, measure nothing")
    arguments = parser.parse_args()
    if arguments.render is not None:
        print(markdown(json.loads(arguments.render.read_text(encoding="utf-8"))))
        return
    if arguments.quick:
        arguments.env, arguments.ratio, arguments.repeats = arguments.env[:1], arguments.ratio[:1], 1
        arguments.seconds, arguments.budget, arguments.profiles = 2.0, 25.0, 0
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: arguments.cores])
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="rlz-profiles-") as folder:
        os.environ["RLZ_PROFILES"] = folder  # the user's own profiles stay as they are
        result: dict[str, Any] = {
            "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "command": " ".join(["python", "benches/plan.py", *sys.argv[1:]]),
            "machine": detect().to_json(),
            "cores": arguments.cores,
            "quick": arguments.quick,
            "cases": [],
            "repeated": None,
        }
        if arguments.profiles > 1:
            result["repeated"] = repeated("Ant-v4", arguments.budget, arguments.profiles)
        for case in product(arguments.env, arguments.ratio):
            result["cases"].append(measure(Case(*case), arguments, arguments.cores))
            result["took_s"] = round(time.monotonic() - begin, 1)
            if arguments.output is not None:
                arguments.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
            say(summary(result))


if __name__ == "__main__":
    main()
