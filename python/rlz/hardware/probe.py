"""`rlz profile`: the machine, and the rates that sampling, replay and updates reach on it, each in a child process.

Every rate is measured with the other parts idle, so together they are limits, not a prediction of a run.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

from rlz.errors import RlzError
from rlz.hardware.detect import detect

FORMAT = 1

REPLAY_ROWS = 200_000
"""Rows of the replay buffer that is measured: larger than any cache, and a small part of most memories."""


def profile(
    env: str | None = None, budget: float = 20.0, *, progress: Callable[[str], None] | None = None
) -> dict[str, Any]:
    """Look at the machine and, for an environment, measure.

    Parameters
    ----------
    env : environment id; None: nothing is measured.
    budget : seconds for all measurements, about. What does not fit is left out and listed in "skipped".
    progress : called with a line before each measurement.

    Returns
    -------
    JSON values; the keys are in docs/profile.md.

    Raises
    ------
    EnvError, ConfigError
        The environment cannot be made or used.
    """
    say = progress or (lambda _: None)
    begin = time.monotonic()
    hardware = detect()
    report: dict[str, Any] = {
        "format": FORMAT,
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "hardware": hardware.to_json(),
        "env": env,
        "budget_s": budget,
    }
    if env is not None:
        say(f"sampling of {env}")
        report["sampling"] = _sampling(env, budget)
        say("replay buffer")
        report["replay"] = _replay(env, budget)
        say("updates")
        left = max(10.0, budget - (time.monotonic() - begin))
        report["updates"], report["skipped"] = _updates(env, left, hardware.cores)
    report["took_s"] = round(time.monotonic() - begin, 1)
    return report


def _sampling(env: str, budget: float) -> dict[str, Any]:
    from rlz.bench.children import run_child

    job = {"env": env, "seconds": max(1.0, min(5.0, 0.06 * budget))}
    found = run_child([sys.executable, "-m", "rlz.bench.sampling", json.dumps(job)], timeout=300)
    rates = {"env_steps_per_s": found["rlz"], "bare_env_steps_per_s": found["bare loop"]}
    return {**rates, "share_of_bare": found["rlz"] / found["bare loop"]}


def _replay(env: str, budget: float) -> dict[str, Any]:
    from rlz.bench.children import run_child

    job = {"env": env, "seconds": max(0.1, min(1.0, 0.01 * budget)), "rows": REPLAY_ROWS, "turns": 1}
    found = run_child([sys.executable, "-m", "rlz.bench.replay", json.dumps(job)], timeout=300)
    return {"row_bytes": found["row_bytes"], **{f"{name}_rows_per_s": rate for name, rate in found["rlz"].items()}}


def _updates(env: str, seconds: float, cores: int) -> tuple[list[dict[str, Any]], list[str]]:
    """Update rates by executor and threads, in the order in which they are worth knowing, until the time is over."""
    job = {"env": env, "threads": thread_counts(cores), "seconds": max(0.5, min(2.0, seconds / 20))}
    command = [sys.executable, "-m", "rlz.hardware.updates", json.dumps(job)]
    lines, error = lines_within(command, seconds)
    plan = [line for line in lines if "plan" in line]
    error = error or next((line["error"] for line in lines if "error" in line), "")
    rates = [line for line in lines if "updates_per_s" in line]
    if not plan:
        raise RlzError(f"the learner could not be measured: {error or f'it did not start within {seconds:.0f} s'}")
    done = {(rate["device"], rate["executor"], rate["threads"]) for rate in rates}
    skipped = [f"updates on {d}, {e}, {t} threads" for d, e, t in plan[0]["plan"] if (d, e, t) not in done]
    return rates, skipped if not error else [*skipped, error]


def thread_counts(cores: int) -> list[int]:
    """Thread counts worth trying: powers of two up to the cores, and the cores themselves."""
    counts = {cores}
    count = 1
    while count < cores:
        counts.add(count)
        count *= 2
    return sorted(counts)


def lines_within(command: Iterable[str], seconds: float) -> tuple[list[dict[str, Any]], str]:
    """Run a program for at most some seconds: the JSON lines it printed, and its error when it failed by itself."""
    process = subprocess.Popen(
        list(command),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    failed = ""
    try:
        out, err = process.communicate(timeout=seconds)
        if process.returncode != 0:
            failed = (err.strip().splitlines() or [""])[-1][:500] or f"status {process.returncode}"
    except subprocess.TimeoutExpired:
        out, _ = _kill(process)
    except BaseException:
        _kill(process)
        raise
    lines = []
    for line in out.splitlines():
        try:
            lines.append(json.loads(line))
        except ValueError:
            continue
    return [line for line in lines if isinstance(line, dict)], failed


def _kill(process: "subprocess.Popen[str]") -> tuple[str, str]:
    os.killpg(process.pid, signal.SIGKILL)
    return process.communicate()
