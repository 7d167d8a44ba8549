"""PPO end to end, env steps per second with learning, beside Stable-Baselines3's in the same minutes.

    python benches/rollouts.py --output benches/results/rollouts.md              # CartPole-v1, HalfCheetah-v5, Ant-v4
    python benches/rollouts.py --env CartPole-v1 --num-envs 8 --seconds 15

Both have networks of 64x64 with tanh, rollouts of 512 steps of each environment, batches of 64 rows, 10 epochs;
evaluations are off. rlz runs until its updates are compiled and SETTLE_S after that, then the window begins: the rate
is that of its metrics.jsonl, and so are the shares of the workers' time. Stable-Baselines3 steps all environments in
its own process (DummyVecEnv); its rate is that of whole iterations after the first, the better one of 1 and 2 torch
threads (with 2 beside other work it fell to 160 to 400 steps/s). Rounds take turns; medians count.
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

from rlz.bench.environments import peer_python
from rlz.system.detect import detect

ENVS = {"CartPole-v1": 8, "HalfCheetah-v5": 4, "Ant-v4": 4}
N_STEPS, BATCH, EPOCHS = 512, 64, 10
SETTLE_S, LIMIT_S = 4.0, 240.0
SHARES = ("learner/phase_update", "learner/phase_draw", "learner/wait_batch", "sampler-0/phase_environment")
SHARES += ("sampler-0/phase_act", "sampler-0/phase_copy", "sampler-0/wait_limiter")

SB3 = """
import sys, time, torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
env, count, steps, batch, epochs, seconds, threads = sys.argv[1], *map(int, sys.argv[2:])
torch.set_num_threads(threads)
class Clock(BaseCallback):
    began = None
    def _on_step(self): return True
    def _on_rollout_start(self):
        now = time.perf_counter()
        if self.began is None and self.num_timesteps:
            self.began, self.first = now, self.num_timesteps
        elif self.began is not None and now - self.began > seconds:
            print((self.num_timesteps - self.first) / (now - self.began), flush=True)
            sys.exit(0)
PPO("MlpPolicy", make_vec_env(env, count), n_steps=steps, batch_size=batch, n_epochs=epochs, device="cpu").learn(
    10**9, callback=Clock())
"""


def rows(path: Path) -> list[dict[str, Any]]:
    """Lines of a metrics.jsonl that are whole."""
    found = []
    for line in path.read_text().splitlines() if path.is_file() else ():
        try:
            found.append(json.loads(line))
        except ValueError:
            break
    return found


def rlz(env: str, count: int, seconds: float, algo: str) -> dict[str, float]:
    """Rates of one run in its window."""
    options = {"--n-steps": N_STEPS, "--batch-size": BATCH, "--n-epochs": EPOCHS, "--learning-rate": 3e-4}
    options |= {"--hidden": "64,64", "--activation": "tanh", "--clip-range": 0.2, "--gamma": 0.99, "--gae-lambda": 0.95}
    options |= {"--eval-every": 0, "--log-every": 1, "--num-envs": count, "-n": 10**9, "--checkpoint-every": 0}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "rlz", "train", algo, "--env", env, "--runs-dir", folder, "--name", "run"]
        command += [str(word) for pair in options.items() for word in pair]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            window = _window(Path(folder) / "run" / "metrics.jsonl", seconds)
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)
    first, last = window[0], window[-1]
    wall = last["wall_s"] - first["wall_s"]
    found = {"env steps/s": (last["env_steps"] - first["env_steps"]) / wall}
    found["updates/s"] = (last["updates"] - first["updates"]) / wall
    for name in SHARES:
        found[name] = statistics.fmean(row.get(f"workers/{name}", 0.0) for row in window[1:])
    return found


def _window(path: Path, seconds: float) -> list[dict[str, Any]]:
    limit = time.monotonic() + LIMIT_S + seconds
    while time.monotonic() < limit:
        time.sleep(0.5)
        compiled = [row for row in rows(path) if row.get("train/compiled") == 1.0]
        begin = compiled[0]["wall_s"] + SETTLE_S if compiled else 0.0
        if compiled and compiled[-1]["wall_s"] >= begin + seconds:
            return [row for row in compiled if row["wall_s"] >= begin]
    raise SystemExit(f"updates were not compiled within {LIMIT_S:.0f} s")


def sb3(env: str, count: int, seconds: float) -> dict[str, float]:
    """Rate of Stable-Baselines3."""
    found = []
    for threads in (1, 2):
        numbers = [str(int(number)) for number in (count, N_STEPS, BATCH, EPOCHS, seconds, threads)]
        command = [str(peer_python("sb3")), "-c", SB3, env, *numbers]
        found.append(float(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
    return {"env steps/s": max(found)}


def lines(found: dict[str, dict[str, list[dict[str, float]]]]) -> Iterator[str]:
    """A table of medians, and the shares."""
    hardware = detect()
    machine = f"{time.strftime('%Y-%m-%d')}, {hardware.cpu}, {hardware.cores} cores"
    yield f"# PPO end to end\n\n{machine}. `{' '.join(sys.argv)}`\n"
    yield "| environment | rlz, env steps/s | updates/s | SB3, env steps/s | ratio |\n|---|---|---|---|---|"
    for env, sides in found.items():
        ours, theirs = ([one["env steps/s"] for one in sides[side]] for side in ("rlz", "sb3"))
        updates = statistics.median(one["updates/s"] for one in sides["rlz"])
        ratio = f"{statistics.median(ours) / statistics.median(theirs):.2f}" if theirs else ""
        other = f"{statistics.median(theirs):,.0f} ({min(theirs):,.0f} to {max(theirs):,.0f})" if theirs else ""
        spread = f"{statistics.median(ours):,.0f} ({min(ours):,.0f} to {max(ours):,.0f})"
        yield f"| {env}, {ENVS.get(env, 1)} environments | {spread} | {updates:,.0f} | {other} | {ratio} |"
    yield (
        "\nShares of the time, medians:\n\n| environment | "
        + " | ".join(SHARES)
        + " |\n|---"
        + "|---" * len(SHARES)
        + "|"
    )
    for env, sides in found.items():
        cells = (f"{statistics.median(one[name] for one in sides['rlz']):.2f}" for name in SHARES)
        yield f"| {env} | {' | '.join(cells)} |"


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", action="append", choices=list(ENVS))
    parser.add_argument("--algo", default="ppo")
    parser.add_argument("--num-envs", type=int)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-peer", action="store_true")
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    found: dict[str, dict[str, list[dict[str, float]]]] = {}
    for _ in range(given.rounds):
        for env in given.env or ENVS:
            count = given.num_envs or ENVS[env]
            sides = found.setdefault(env, {"rlz": [], "sb3": []})
            sides["rlz"].append(rlz(env, count, given.seconds, given.algo))
            if not given.no_peer:
                sides["sb3"].append(sb3(env, count, given.seconds))
            print(env, {side: one[-1:] for side, one in sides.items()}, flush=True)
    text = "\n".join(lines(found)) + "\n"
    print(text)
    if given.output:
        given.output.write_text(text)


if __name__ == "__main__":
    main()
