"""PPO end to end, env steps per second with learning: rlz beside other libraries and bare environments.

    python benches/rollouts.py --warm                                  # fills the compiler's cache; nothing is measured
    python benches/rollouts.py --env Ant-v4 --rounds 1                 # adds a round to benches/results/rollouts.json
    python benches/rollouts.py --rounds 0                              # the tables of all rounds, rollouts.md

Everybody has networks of 64x64 with tanh and learns the same from each env step: `small` are rollouts of 2,048 steps
of all environments and batches of 64 rows, Stable-Baselines3's defaults; `large` are rollouts of 4,096 steps and
batches of 256. Both make 10 epochs. Numbers of environments differ: each library's best one counts.

Stable-Baselines3 and SBX step all environments in their own process, the first with one torch thread. Sample Factory
has two workers and learns while they go on, as APPO of rlz does; its Gymnasium knows MuJoCo's v4 only. rlz gets nothing
but the options of the workload. Bare environments take random actions that were drawn before, on one core, and on all.

Evaluations are off. rlz runs until its updates are compiled and THREADS_S after that; the rate is that of its
metrics.jsonl, and so are the shares of the workers' time.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlz.bench.children import run_child
from rlz.bench.environments import PEER_SCRIPTS, PEERS, peer_python
from rlz.bench.train import read_lines, stop
from rlz.system.detect import detect

HERE = Path(__file__)
RESULTS = HERE.parent / "results" / "rollouts.json"
ENVS = ("CartPole-v1", "HalfCheetah-v5", "Ant-v4")
SIZES = {"small": {"rows": 2048, "batch_size": 64}, "large": {"rows": 4096, "batch_size": 256}}
EPOCHS = 10
CONTENDERS = {
    "small": [("rlz ppo", 4), ("sb3", 4), ("sbx", 4), ("sample-factory", 8)],
    "large": [("rlz ppo", 32), ("rlz appo", 32), ("sb3", 32), ("sbx", 32), ("sample-factory", 32)],
}
"""By size: library, and environments."""

SETTLE_S, THREADS_S, LIMIT_S = 2.0, 8.0, 240.0
"""Before a window: for everybody, and for the learner of rlz, which measures its threads on updates of its own."""
SHARES = ("learner/phase_update", "learner/phase_draw", "learner/wait_batch", "sampler-0/phase_environment")
SHARES += ("sampler-0/phase_act", "sampler-0/phase_copy", "sampler-0/wait_limiter")

BARE = """
import json, sys, time
import gymnasium
env, seconds = gymnasium.make(sys.argv[1]), float(sys.argv[2])
actions = [env.action_space.sample() for _ in range(1000)]
env.reset(seed=1)
steps, end = 0, time.perf_counter() + seconds
while time.perf_counter() < end:
    for action in actions:
        _, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            env.reset()
    steps += len(actions)
print(json.dumps({"rate": steps / (time.perf_counter() - end + seconds)}))
"""


def rlz(env: str, size: str, count: int, seconds: float, algo: str, more: dict[str, Any]) -> dict[str, float]:
    """Rates of one run in its window."""
    shape = SIZES[size]
    options = {"--n-steps": shape["rows"] // count, "--batch-size": shape["batch_size"], "--n-epochs": EPOCHS}
    options |= {"--hidden": "64,64", "--activation": "tanh", "--clip-range": 0.2, "--gamma": 0.99, "--gae-lambda": 0.95}
    options |= {"--learning-rate": 3e-4, "--ent-coef": 0.0, "--vf-coef": 0.5, "--max-grad-norm": 0.5}
    options |= {"--num-envs": count, "--eval-every": 0, "--log-every": 1, "--checkpoint-every": 0, "-n": 10**9, **more}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "rlz", "train", algo, "--env", env, "--runs-dir", folder, "--name", "run"]
        command += ["--no-normalize-obs", "--no-normalize-reward"]
        command += [str(word) for pair in options.items() for word in pair]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            window = _window(process, Path(folder) / "run" / "metrics.jsonl", seconds)
        finally:
            stop(process)
    first, last = window[0], window[-1]
    wall = last["wall_s"] - first["wall_s"]
    found = {name: (last[of] - first[of]) / wall for name, of in (("rate", "env_steps"), ("updates", "updates"))}
    for name in SHARES:
        found[name] = statistics.fmean(row.get(f"workers/{name}", 0.0) for row in window[1:])
    return found


def _window(process: subprocess.Popen[bytes], path: Path, seconds: float) -> list[dict[str, Any]]:
    limit = time.monotonic() + LIMIT_S + seconds
    while time.monotonic() < limit and process.poll() is None:
        time.sleep(0.25)
        compiled = [row for row in read_lines(path) if row.get("train/compiled") == 1.0]
        begin = compiled[0]["wall_s"] + THREADS_S if compiled else 0.0
        if compiled and compiled[-1]["wall_s"] >= begin + seconds:
            return [row for row in compiled if row["wall_s"] >= begin]
    raise SystemExit(f"updates were not compiled within {LIMIT_S:.0f} s, or the run ended ({process.poll()})")


def peer(library: str, env: str, size: str, count: int, seconds: float) -> dict[str, Any]:
    """Rate of a peer."""
    job = {"library": library, "env": env, "num_envs": count, "workers": 2, "threads": 1, "epochs": EPOCHS, "seed": 1}
    job |= SIZES[size] | {"seconds": seconds, "settle": SETTLE_S, "recorded": PEERS[library].recorded}
    with tempfile.TemporaryDirectory() as folder:
        command = [peer_python(library), PEER_SCRIPTS / "ppo.py", json.dumps(job)]
        found = run_child(command, timeout=120.0 + seconds, env={"TMPDIR": folder})
    return {"rate": found["env_steps_per_s"], "versions": found["versions"]}


def bare(env: str, processes: int, seconds: float) -> dict[str, float]:
    """Rate of bare environments, over all processes."""
    command = [sys.executable, "-c", BARE, env, str(seconds)]
    children = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(processes)]
    return {"rate": sum(json.loads(child.communicate()[0])["rate"] for child in children)}


def measure(contender: str, env: str, size: str, count: int, seconds: float, more: dict[str, Any]) -> dict[str, Any]:
    """One window of one contender."""
    if contender.startswith("rlz "):
        return rlz(env, size, count, seconds, contender.removeprefix("rlz "), more)
    return bare(env, count, seconds) if contender == "bare" else peer(contender, env, size, count, seconds)


def contenders(size: str) -> list[tuple[str, int]]:
    """All of a size; bare environments go with the small one."""
    cores = detect().cores
    return CONTENDERS[size] + [("bare", count) for count in sorted({1, cores}) if size == "small"]


def lines(results: list[dict[str, Any]]) -> Iterator[str]:
    """The tables of all rounds."""
    hardware = detect()
    yield f"# PPO end to end\n\n{time.strftime('%Y-%m-%d')}, {hardware.cpu}, {hardware.cores} cores. `{HERE.name}`\n"
    rates: dict[tuple[str, str, str, int], list[dict[str, Any]]] = {}
    for one in results:
        rates.setdefault((one["env"], one["size"], one["contender"], one["count"]), []).append(one)
    for size, shape in SIZES.items():
        yield f"## {size}: rollouts of {shape['rows']:,} steps, batches of {shape['batch_size']}, {EPOCHS} epochs\n"
        yield "| env steps/s, median (range) | " + " | ".join(ENVS) + " |\n|---" + "|---" * len(ENVS) + "|"
        for contender, count in contenders(size):
            cells = (_spread(rates.get((env, size, contender, count), [])) for env in ENVS)
            unit = "process, processes" if contender == "bare" else "environment, environments"
            yield f"| {contender}, {count} {unit.split(', ')[count > 1]} | {' | '.join(cells)} |"
        cells = []
        for env in ENVS:
            medians = {
                key[2:]: statistics.median(one["rate"] for one in found)
                for key, found in rates.items()
                if key[:2] == (env, size) and key[2] != "bare"
            }
            ours = {key: value for key, value in medians.items() if key[0].startswith("rlz")}
            best = max((value for key, value in medians.items() if key not in ours), default=0.0)
            cells.append(f"{max(ours.values()) / best:.2f}" if ours and best else "")
        yield f"| best of rlz / best of the others | {' | '.join(cells)} |\n"
        yield (
            "Shares of the time of rlz, medians:\n\n| | " + " | ".join(SHARES) + " |\n|---" + "|---" * len(SHARES) + "|"
        )
        for env in ENVS:
            for contender, count in contenders(size):
                found = rates.get((env, size, contender, count), [])
                if contender.startswith("rlz") and found:
                    parts = (f"{statistics.median(one[name] for one in found):.2f}" for name in SHARES)
                    yield f"| {contender}, {env} | {' | '.join(parts)} |"
        yield ""


def _spread(found: list[dict[str, Any]]) -> str:
    values = sorted(one["rate"] for one in found)
    if len(values) < 2:
        return f"{values[0]:,.0f}" if values else ""
    return f"{statistics.median(values):,.0f} ({values[0]:,.0f} to {values[-1]:,.0f})"


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", nargs="+", choices=ENVS, default=list(ENVS))
    parser.add_argument("--size", nargs="+", choices=list(SIZES), default=list(SIZES))
    parser.add_argument("--only", default="", help="contenders whose name begins so")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--option", nargs=2, action="append", default=[], help="of rlz train, such as --samplers 1")
    parser.add_argument("--warm", action="store_true")
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    results = json.loads(given.results.read_text()) if given.results.is_file() else []
    more = {f"--{name}": value for name, value in given.option}
    for number in range(1 if given.warm else given.rounds):
        jobs = [(env, size, *one) for env in given.env for size in given.size for one in contenders(size)]
        jobs = [job for job in jobs if job[2].startswith("rlz" if given.warm else given.only)]
        for env, size, contender, count in jobs if number % 2 == 0 else reversed(jobs):
            seconds = 1.0 if given.warm else given.seconds
            found = measure(contender, env, size, count, seconds, more)
            print(f"{env} {size} {contender} {count}: {found['rate']:,.0f}", flush=True)
            if not given.warm:
                results.append({"env": env, "size": size, "contender": contender, "count": count, **found})
                given.results.write_text("[\n" + ",\n".join(json.dumps(one) for one in results) + "\n]\n")
    given.results.with_suffix(".md").write_text("\n".join(lines(results)) + "\n")


if __name__ == "__main__":
    main()
