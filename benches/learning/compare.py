"""Learning curves of rlz beside Stable-Baselines3's: a table, and one plot over env steps and over wall-clock.

    uv run --with matplotlib python benches/learning/compare.py --env HalfCheetah-v5 --output docs/bench/halfcheetah \
        --rlz runs/hc_s1 ... --sb3 curve_s1.csv ...

Writes OUTPUT.md and OUTPUT.svg. Every seed is drawn. Area under the curve is the mean return over env steps; returns
are measured from a random policy's (--random), so that ratios also mean something where returns are negative.
"""

import argparse
import csv
import json
from pathlib import Path

import numpy as np


def read_sb3(path):
    with Path(path).open() as file:
        return np.array([[float(r[k]) for k in ("env_steps", "mean", "wall_s")] for r in csv.DictReader(file)])


def read_rlz(path):
    with (Path(path) / "evaluations.csv").open() as file:
        rows = [[float(r[k]) for k in ("env_steps", "return_mean", "env_steps")] for r in csv.DictReader(file)]
    curve = np.array(rows)
    log = [json.loads(line) for line in (Path(path) / "metrics.jsonl").read_text().splitlines()]
    curve[:, 2] = np.interp(curve[:, 0], [x["env_steps"] for x in log], [x["wall_s"] for x in log])
    return curve


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--algo", default="SAC", help="for the titles")
    p.add_argument("--env", required=True)
    p.add_argument("--random", type=float, default=0.0, help="return of a random policy")
    p.add_argument("--rlz", nargs="+", required=True)
    p.add_argument("--sb3", nargs="+", required=True)
    p.add_argument("--output", type=Path, required=True)
    a = p.parse_args()
    curves = {"rlz": [read_rlz(x) for x in a.rlz], "SB3": [read_sb3(x) for x in a.sb3]}
    until = min(c[-1, 0] for group in curves.values() for c in group)
    grid = np.linspace(0, until, 101)[1:]

    def area(c):
        return float(np.mean(np.interp(grid, c[:, 0], c[:, 1]))) - a.random

    def last(c):
        return float(c[-5:, 1].mean()) - a.random

    lines = [
        f"# {a.algo} on {a.env}: rlz beside Stable-Baselines3",
        "",
        "| | seed | last five evaluations | area (mean over steps) | wall-clock, s |",
        "|---|---|---|---|---|",
    ]
    means = {}
    for name, group in curves.items():
        for k, c in enumerate(group, 1):
            lines.append(f"| {name} | {k} | {last(c) + a.random:.1f} | {area(c) + a.random:.1f} | {c[-1, 2]:.0f} |")
        means[name] = np.mean([last(c) for c in group]), np.mean([area(c) for c in group])
    ratio = [r / s for r, s in zip(means["rlz"], means["SB3"], strict=True)]
    lines += [
        "",
        f"rlz / SB3, measured from a random policy ({a.random:g}): last five {ratio[0]:.2f}, area {ratio[1]:.2f}.",
    ]
    a.output.with_suffix(".md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))

    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(10, 3.6), sharey=True)
    for axis, column, label in ((axes[0], 0, "env steps"), (axes[1], 2, "wall-clock, s")):
        for (name, group), colour in zip(curves.items(), ("tab:blue", "tab:orange"), strict=True):
            for k, c in enumerate(group):
                axis.plot(c[:, column], c[:, 1], color=colour, alpha=0.8, label=name if k == 0 else None)
        axis.set_xlabel(label)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("evaluation return")
    axes[0].legend()
    figure.suptitle(f"{a.algo} on {a.env}")
    figure.tight_layout()
    figure.savefig(a.output.with_suffix(".svg"))


if __name__ == "__main__":
    main()
