"""Time to a score: wall-clock of SAC at replay ratio 1, of throughput mode, and of Stable-Baselines3, by seed.

    python benches/time_to_score.py --output benches/results/time_to_score.md          # two environments, three seeds
    python benches/time_to_score.py --env HalfCheetah-v5 --score HalfCheetah-v5=3000 --seeds 1 2 3 4 5
    python benches/time_to_score.py --output FILE.md --resume                          # go on after an interruption
    python benches/time_to_score.py --quick                                            # whether it works: a minute

Contenders: `ratio 1` (`rlz train sac --replay-ratio 1`), `free` (`--replay-ratio free --batch-size auto`) and `SB3`
(benches/learning/sb3_curve.py in an environment of its own). All have the hyperparameters of rlz's preset for the
environment, those of rl-baselines3-zoo, and the same evaluation: the deterministic policy, the same fixed reset seeds,
as many episodes. One run at a time, by turns for each seed; who is first moves on by one from seed to seed.

The rule: a run has reached the score with the first evaluation whose mean is at least the score, if the next one's is
too; it is stopped then. Its time is the moment at which the policy of the first of the two existed, from the start of
the process: imports, and compilation where there is one, are in it. A run that has not done so after --max-minutes is
stopped and counts as `not within`. Evaluations come about every --eval-seconds (7), so a time is known to that only:
what each contender samples in so long is measured first, and becomes its evaluations' period in env steps (`free` has
that of `ratio 1`, as which it begins). Those of rlz
are made by a process beside the run, on the same cores; SB3 stands still meanwhile, which `s training` leaves out.

SB3's threads are torch's default, all cores. rlz takes the plan of a profile that is measured before (--budget), and
compiled updates from the user's cache, which the measurement of the rates has filled; --cold gives every run an empty
cache instead.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import shlex
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import median, mode
from typing import Any

import numpy as np
from plan import Case, profile, say
from throughput_mode import measure

from rlz.bench.environments import peer_python
from rlz.bench.report import figure
from rlz.bench.train import TrainSettings, Variant, measure_peer, read_lines, rlz_command, stop
from rlz.config import RunConfig, resolve
from rlz.errors import RlzError
from rlz.system.detect import detect
from rlz.system.files import replace_file
from rlz.workers.evaluation import evaluation_seeds

SCORES = {"Pendulum-v1": -180.0, "HalfCheetah-v5": 2000.0}
EPISODES = {"Pendulum-v1": 20}
"""Of one evaluation, where not `FEW`; as in docs/bench."""

FEW = 5
HELD, FREE, SB3 = "ratio 1", "free", "SB3"
CONTENDERS = (HELD, FREE, SB3)
ENDLESS = 1_000_000_000

POLL_S = 1.0
OUTPUT = "output"
LAST = 20
"""Lines of the log, one a second, whose most frequent values are those at the end of a run."""

QUICK_RATES = {HELD: 300.0, FREE: 3000.0, SB3: 150.0}
"""Instead of measured ones, for --quick."""


@dataclass(frozen=True)
class Evaluation:
    """One evaluation, at the moment when its policy existed: seconds since the start of the process.

    `training_s` leaves out evaluations before it for which training stood still.
    """

    at_s: float
    training_s: float
    env_steps: int
    updates: int
    mean: float


@dataclass(frozen=True)
class Task:
    """What is trained, until when, and how it is evaluated."""

    env: str
    score: float
    episodes: int
    limit_s: float
    batch_size: str
    threads: int
    config: RunConfig

    def settings(self, seed: int = 1, seconds: float = 0.0) -> TrainSettings:
        """What all contenders have in common."""
        config = self.config
        return TrainSettings(
            env=self.env,
            seconds=seconds,
            seed=seed,
            batch_size=config.first_batch_size(),
            buffer_size=config.buffer_size,
            learning_starts=config.learning_starts,
            hidden=config.hidden,
        )

    def options(self, contender: str) -> list[str]:
        """Of `rlz train`."""
        if contender == HELD:
            return ["--replay-ratio", "1"]
        return ["--replay-ratio", "free", "--batch-size", self.batch_size]

    def adapts(self, contender: str) -> bool:
        """Whether it is in throughput mode."""
        return contender == FREE and self.batch_size == "auto"


def held(means: Sequence[float], score: float) -> int | None:
    """Which evaluation is the first that reaches the score, the next one reaching it as well."""
    return next((number for number, pair in enumerate(pairwise(means)) if min(pair) >= score), None)


def follow(
    command: Sequence[str | Path],
    folder: Path,
    task: Task,
    means: Callable[[], list[float]],
    environment: dict[str, str],
) -> float:
    """Start a run and stop it when it has reached the score by its evaluations, or its time is over; when it began."""
    with (folder / OUTPUT).open("wb") as output, (folder / "errors").open("w+b") as errors:
        began = time.time()
        process = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            env=os.environ | environment,
            start_new_session=True,
        )
        try:
            while True:
                if held(means(), task.score) is not None or time.time() - began >= task.limit_s:
                    return began
                if process.poll() is not None:
                    errors.seek(0)
                    text = errors.read().decode(errors="replace")[-2000:]
                    raise RlzError(f"a run ended with status {process.returncode}:\n{text}")
                time.sleep(POLL_S)
        finally:
            stop(process)


def rlz_rows(run_dir: Path) -> list[dict[str, str]]:
    """Whole lines of a run's evaluations.csv."""
    path = run_dir / "evaluations.csv"
    lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []
    return list(csv.DictReader(lines))


def rlz_evaluations(run_dir: Path, began: float) -> list[Evaluation]:
    """Evaluations of a run of rlz; when a version was published is read off its log of env steps."""
    log = read_lines(run_dir / "metrics.jsonl")
    steps, seconds = [line["env_steps"] for line in log], [line["time"] - began for line in log]
    found = []
    for row in rlz_rows(run_dir):
        at = float(np.interp(int(row["env_steps"]), steps, seconds))
        found.append(Evaluation(at, at, int(row["env_steps"]), int(row["updates"]), float(row["return_mean"])))
    return found


def run_rlz(task: Task, contender: str, seed: int, every: int, folder: Path, environment: dict[str, str]) -> Any:
    """One run of rlz."""
    run_dir = folder / "bench"
    evaluation = ["--eval-every", str(every), "--eval-episodes", str(task.episodes)]
    command = rlz_command(task.settings(seed), folder, [*task.options(contender), *evaluation])

    def means() -> list[float]:
        return [float(row["return_mean"]) for row in rlz_rows(run_dir)]

    began = follow(command, folder, task, means, environment)
    # The last values may be those of a comparison that was cut off.
    log = read_lines(run_dir / "metrics.jsonl")[-LAST:]
    tags = {name: f"train/{name}" for name in ("batch_size", "row_uses", "learning_rate")}
    config = tomllib.loads((run_dir / "config.toml").read_text(encoding="utf-8"))
    summary = json.loads((run_dir / "summary.json").read_text(encoding="utf-8"))
    facts = {
        **{name: mode([line[tag] for line in log if tag in line] or [None]) for name, tag in tags.items()},
        "threads": summary["threads"],
        "compiled": summary["compiled"],
        "samplers": config["samplers"],
        "num_envs": config["num_envs"],
        "evaluations_skipped": summary["evaluations_skipped"],
    }
    return kept(task, rlz_evaluations(run_dir, began), summary["first_env_step_s"], facts)


def run_sb3(task: Task, seed: int, every: int, folder: Path) -> Any:
    """One run of Stable-Baselines3."""
    config, output = task.config, folder / OUTPUT
    script = Path(__file__).parent / "learning" / "sb3_curve.py"
    seeds = [str(seed) for seed in evaluation_seeds(task.episodes)]
    command: list[str | Path] = [peer_python("sb3"), script, "--say", "--reset-seeds", *seeds]
    options = {
        "env": task.env,
        "steps": ENDLESS,
        "seed": seed,
        "learning-starts": config.learning_starts,
        "learning-rate": config.learning_rate,
        "batch-size": config.first_batch_size(),
        "buffer-size": config.buffer_size,
        "gamma": config.gamma,
        "every": every,
        "threads": task.threads,
        "output": folder / "curve.csv",
    }
    command += [str(part) for name, value in options.items() for part in (f"--{name}", value)]

    def lines() -> list[dict[str, Any]]:
        return [line for line in read_lines(output) if "mean" in line]

    began = follow(command, folder, task, lambda: [line["mean"] for line in lines()], {})
    found = [
        Evaluation(
            at_s=line["time"] - line["took"] - began,
            training_s=line["time"] - line["took"] - line["before"] - began,
            env_steps=line["env_steps"],
            updates=line["updates"],
            mean=line["mean"],
        )
        for line in lines()
    ]
    first = next((line["time"] - began for line in read_lines(output)), None)
    facts = {"batch_size": config.first_batch_size(), "learning_rate": config.learning_rate, "threads": task.threads}
    return kept(task, found, first, facts)


def kept(task: Task, evaluations: Sequence[Evaluation], first_step_s: float | None, facts: dict[str, Any]) -> Any:
    """What is kept of a run; counts are those at the score, or at the last evaluation of one that did not reach it."""
    number = held([one.mean for one in evaluations], task.score)
    reached = None if number is None else evaluations[number]
    last = reached or (evaluations[-1] if evaluations else None)
    counts: dict[str, Any] = {"env_steps": None, "updates": None, "ratio": None}
    if last is not None:
        steps = last.env_steps - task.config.learning_starts
        ratio = last.updates / steps if steps > 0 else None
        counts = {"env_steps": last.env_steps, "updates": last.updates, "ratio": ratio}
    return {
        "reached": reached is not None,
        "seconds": reached and reached.at_s,
        "seconds_training": reached and reached.training_s,
        "seconds_from_first_step": reached and first_step_s and reached.at_s - first_step_s,
        "first_step_s": first_step_s,
        **counts,
        "best": max((one.mean for one in evaluations), default=None),
        **facts,
        "evaluations": [asdict(one) for one in evaluations],
    }


def rates(task: Task, contenders: Sequence[str], versions: dict[str, dict[str, str]]) -> dict[str, float]:
    """Env steps per second of each contender in its steady state; fills the cache of compiled updates as well.

    The versions of SB3's packages are added to `versions`.
    """
    found = {}
    for name in contenders:
        say(f"{task.env}: rate of {name}")
        settings = replace(task.settings(seconds=5.0), learning_starts=100)
        if name == SB3:
            variant = Variant(task.threads, 1)
            peer = measure_peer("sb3", variant, settings, "train")
            found[name], versions[name] = peer["env_steps_per_s"], peer["versions"]
        else:
            # A free run begins like one at replay ratio 1; later its evaluations take a tenth of the time at most.
            known = {FREE: HELD}.get(name, name)
            found[name] = found.get(known) or measure(settings, task.options(known), adapts=False).env_steps_per_s
    return found


def measured(task: Task, contender: str, seed: int, every: int, cold: bool) -> dict[str, Any]:
    """One run; an error is its result too."""
    with tempfile.TemporaryDirectory(prefix="rlz-score-") as name:
        folder = Path(name)
        environment = {"XDG_CACHE_HOME": str(folder / "cache")} if cold else {}
        try:
            if contender == SB3:
                found = run_sb3(task, seed, every, folder)
            else:
                found = run_rlz(task, contender, seed, every, folder, environment)
        except Exception as error:
            found = {"error": f"{type(error).__name__}: {error}"}
    return {"env": task.env, "contender": contender, "seed": seed, "load_after": os.getloadavg()[0], **found}


def to_markdown(result: dict[str, Any]) -> str:
    """All runs, then medians."""
    machine, settings = result["machine"], result["settings"]
    versions = [
        f"- {library}: " + ", ".join(f"{name} {found}" for name, found in packages.items())
        for library, packages in {"rlz": machine["versions"], **result["versions"]}.items()
    ]
    limit = f"not within {settings['max_minutes']:g} min"
    lines = [
        f"## Time to a score, {result['date'][:10]}",
        "",
        f"    {result['command']}",
        "",
        f"{machine['cpu']}, {machine['cores']} usable cores",
        "",
        *versions,
    ]
    for env, setup in result["environments"].items():
        mine = [one for one in result["runs"] if one["env"] == env]
        every = ", ".join(f"{name} {steps:,}" for name, steps in setup["eval_every"].items())
        lines += [
            "",
            f"### {env}: {setup['score']:g} over {setup['episodes']} episodes, twice running",
            "",
            f"Evaluations every so many env steps: {every}.",
            "",
            "| contender | seed | s | s training | s from the first step | env steps | updates | updates per env step "
            "| batch | learning rate |",
            "| --- " + "| ---: " * 9 + "|",
        ]
        for one in sorted(mine, key=lambda one: (CONTENDERS.index(one["contender"]), one["seed"])):
            head = f"| {one['contender']} | {one['seed']} "
            if "error" in one:
                lines.append(f"{head}| failed: {' '.join(one['error'].split())[:200]} |" + " |" * 7)
                continue
            keys = ("seconds", "seconds_training", "seconds_from_first_step")
            times = [f"{one[key]:.0f}" if one[key] else "-" for key in keys]
            if not one["reached"]:
                best = "" if one["best"] is None else f" (best {one['best']:.0f})"
                times = [limit + best, "-", "-"]
            counts = [f"{one[key]:,}" if one[key] is not None else "-" for key in ("env_steps", "updates")]
            last = [f"{one[key]:.3g}" if one[key] is not None else "-" for key in ("ratio", "learning_rate")]
            lines.append(
                head + "| " + " | ".join([*times, *counts, last[0], f"{one['batch_size'] or 0:g}", last[1]]) + " |"
            )
        lines += ["", *(f"- {line}" for line in medians(mine, limit))]
    return "\n".join(lines) + "\n"


def medians(runs: Sequence[dict[str, Any]], limit: str) -> list[str]:
    """Median of each contender, a run that did not reach the score as the longest, and how they compare."""
    lines, found = [], {}
    for name in CONTENDERS:
        mine = [one for one in runs if one["contender"] == name and "error" not in one]
        if mine:
            seconds = [one["seconds"] if one["reached"] else math.inf for one in mine]
            training = [one["seconds_training"] if one["reached"] else math.inf for one in mine]
            found[name] = median(training)
            every = ", ".join(f"{one:.0f}" if one < math.inf else limit for one in sorted(seconds))
            middle = f"{median(seconds):.0f} s" if median(seconds) < math.inf else limit
            lines.append(f"{name}: median {middle} ({every})")
    for name, other in ((FREE, HELD), (FREE, SB3), (HELD, SB3)):
        if max(found.get(name, math.inf), found.get(other, math.inf)) < math.inf:
            lines.append(
                f"{name} takes {figure(found[name] / found[other])} of the time of {other} (medians, training)"
            )
    return lines


def write(result: dict[str, Any], output: Path | None) -> None:
    """After each run, so that an interrupted series is not lost."""
    if output is not None:
        text = json.dumps(result, indent=1) + "\n"
        replace_file(output.with_suffix(".json"), text.encode())
        if output.suffix == ".md":
            replace_file(output, to_markdown(result).encode())


def scores(text: str) -> tuple[str, float]:
    """ENV=SCORE."""
    env, _, score = text.rpartition("=")
    return env, float(score)


def main() -> None:
    """Run what the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", nargs="+", default=list(SCORES))
    parser.add_argument("--score", nargs="+", type=scores, default=[], metavar="ENV=SCORE")
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=list(CONTENDERS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--max-minutes", type=float, default=15.0, help="of one run")
    parser.add_argument("--eval-seconds", type=float, default=7.0, help="from one evaluation to the next, about")
    parser.add_argument("--batch-size", default="auto", help="of `free`; a number keeps it fixed")
    parser.add_argument("--sb3-threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument(
        "--budget", type=float, default=60.0, help="of rlz profile, for each environment; 0: no profile"
    )
    parser.add_argument("--cold", action="store_true", help="rlz compiles in every run")
    parser.add_argument("--resume", action="store_true", help="leave out what --output has already")
    parser.add_argument("--quick", action="store_true", help="Pendulum-v1, one seed, an easy score, half a minute each")
    parser.add_argument("--output", type=Path, help="JSON; with the suffix .md Markdown, and JSON beside it")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.env, arguments.seeds, arguments.score = ["Pendulum-v1"], [1], [("Pendulum-v1", -1000.0)]
        arguments.max_minutes, arguments.eval_seconds, arguments.budget = 0.4, 2.0, 0.0
    wanted = SCORES | dict(arguments.score)
    unknown = [env for env in arguments.env if env not in wanted]
    if unknown:
        parser.error(f"which score? --score {unknown[0]}=SCORE")
    names = ("seeds", "max_minutes", "eval_seconds", "batch_size", "sb3_threads", "budget", "cold")
    result: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": shlex.join(["python", "benches/time_to_score.py", *sys.argv[1:]]),
        "machine": detect().to_json(),
        "settings": {name: getattr(arguments, name) for name in names} | {"load_before": os.getloadavg()},
        "versions": {},
        "environments": {},
        "runs": [],
    }
    if arguments.resume:
        if arguments.output is None:
            parser.error("--resume goes on with --output")
        before = json.loads(arguments.output.with_suffix(".json").read_text(encoding="utf-8"))
        for name in names[1:]:
            if before["settings"][name] != result["settings"][name]:
                parser.error(f"--output was begun with another {name}: {before['settings'][name]}")
        result |= {name: before[name] for name in ("versions", "environments")}
        result["runs"] = [one for one in before["runs"] if "error" not in one]
    if SB3 in arguments.contenders:
        say("environment of sb3 (made on first use)")
        peer_python("sb3")
    with tempfile.TemporaryDirectory(prefix="rlz-profiles-") as folder:
        os.environ["RLZ_PROFILES"] = folder  # the user's own profiles stay as they are
        for env in arguments.env:
            task = Task(
                env=env,
                score=wanted[env],
                episodes=EPISODES.get(env, FEW),
                limit_s=60 * arguments.max_minutes,
                batch_size=arguments.batch_size,
                threads=arguments.sb3_threads,
                config=resolve("sac", env),
            )
            series(task, arguments, result)
    print(to_markdown(result))


def series(task: Task, arguments: argparse.Namespace, result: dict[str, Any]) -> None:
    """All runs of one environment."""
    done = {(one["contender"], one["seed"]) for one in result["runs"] if one["env"] == task.env}
    todo = []
    for number, seed in enumerate(arguments.seeds):
        first = number % len(arguments.contenders)
        order = [*arguments.contenders[first:], *arguments.contenders[:first]]
        todo += [(name, seed) for name in order if (name, seed) not in done]
    if not todo:
        return
    if arguments.budget > 0:
        say(f"{task.env}: profile")
        profile(Case(task.env, "free"), arguments.budget)
    setup = {"score": task.score, "episodes": task.episodes}
    known = result["environments"].setdefault(task.env, setup | {"rates": {}, "eval_every": {}})
    if {name: known[name] for name in setup} != setup:
        raise RlzError(f"{task.env}: --output has runs with another score or evaluation: {known}")
    if arguments.quick:
        known["rates"] |= QUICK_RATES
    known["rates"] |= rates(
        task, [name for name in arguments.contenders if name not in known["rates"]], result["versions"]
    )
    for name, rate in known["rates"].items():
        known["eval_every"].setdefault(name, max(100, int(float(f"{rate * arguments.eval_seconds:.2g}"))))
    for contender, seed in todo:
        say(f"{task.env}, seed {seed}: {contender}")
        found = measured(task, contender, seed, known["eval_every"][contender], arguments.cold)
        said = found.get("error") or (f"{found['seconds']:.0f} s" if found["reached"] else "did not reach the score")
        say(f"    {said}")
        result["runs"].append(found)
        write(result, arguments.output)


if __name__ == "__main__":
    main()
