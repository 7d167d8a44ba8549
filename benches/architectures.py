"""The same PPO in four architectures: what each way to place samplers, inference and learner is worth.

    python benches/architectures.py --rounds 1                 # adds a round to benches/results/architectures.json
    python benches/architectures.py --rounds 0                 # the table of all rounds, architectures.md

Only the placement differs (`WAYS`); algorithm, networks, rollouts and batches are those of the size `small` of
rollouts.py, four environments. PPO is synchronous: samplers and learner wait for each other. With APPO they do not,
where they are processes of their own.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rollouts import ENVS, SHARES, rlz

from rlz.system.detect import detect

RESULTS = Path(__file__).parent / "results" / "architectures.json"
WAYS = {
    "a: coupled, one process": {"--mode": "serial"},
    "b: SEED, inference in the learner": {"--inference": "learner"},
    "c: IMPALA, inference in the samplers": {"--inference": "inline"},
    "d: decoupled, a server": {"--inference": "central"},
}
SIZE, COUNT = "small", 4


def lines(results: list[dict[str, Any]]) -> Iterator[str]:
    """The table of all rounds."""
    hardware = detect()
    yield f"# PPO in four architectures\n\n{time.strftime('%Y-%m-%d')}, {hardware.cpu}, {hardware.cores} cores.\n"
    for algo in ("ppo", "appo"):
        yield f"| {algo}, env steps/s, median (range) | {' | '.join(ENVS)} |\n|---{'|---' * len(ENVS)}|"
        for way in WAYS:
            cells = []
            for env in ENVS:
                found = [one for one in results if (one["algo"], one["way"], one["env"]) == (algo, way, env)]
                rates = sorted(one["rate"] for one in found)
                cells.append(f"{statistics.median(rates):,.0f} ({rates[0]:,.0f} to {rates[-1]:,.0f})" if rates else "")
            yield f"| {way} | {' | '.join(cells)} |"
        yield ""
    yield f"Shares of the time, medians:\n\n| | {' | '.join(SHARES)} |\n|---{'|---' * len(SHARES)}|"
    for algo in ("ppo", "appo"):
        for way in WAYS:
            for env in ENVS:
                found = [one for one in results if (one["algo"], one["way"], one["env"]) == (algo, way, env)]
                if found:
                    parts = (f"{statistics.median(one[name] for one in found):.2f}" for name in SHARES)
                    yield f"| {algo}, {way[:1]}, {env} | {' | '.join(parts)} |"


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", nargs="+", choices=ENVS, default=list(ENVS))
    parser.add_argument("--algo", nargs="+", choices=("ppo", "appo"), default=["ppo", "appo"])
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    results = json.loads(given.results.read_text()) if given.results.is_file() else []
    for _ in range(given.rounds):
        for env in given.env:
            for algo in given.algo:
                for way, options in WAYS.items():
                    found = rlz(env, SIZE, COUNT, given.seconds, algo, options)
                    print(f"{env} {algo} {way}: {found['rate']:,.0f}", flush=True)
                    results.append({"env": env, "algo": algo, "way": way, **found})
                    given.results.write_text("[\n" + ",\n".join(json.dumps(one) for one in results) + "\n]\n")
    given.results.with_suffix(".md").write_text("\n".join(lines(results)) + "\n")


if __name__ == "__main__":
    main()
