"""What the examples learn: scores over seeds, REDQ's also as a plain single-file loop (redq_loop.py beside this file).

    python benches/learning/examples.py --output benches/results/examples.json            # all, three seeds
    python benches/learning/examples.py --only dqn tqc --seeds 4 --output FILE.json       # rows of others stay

Prints a table in Markdown. Evaluations play the deterministic policy from fixed reset seeds; `best policy` is scored on
held-out starts, which did not choose it (the loop keeps none).
"""

import argparse
import csv
import json
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
PENDULUM = "--env Pendulum-v1 --learning-rate 1e-3 --eval-episodes 20"
COMMANDS = {
    "dqn": "rlz train examples/dqn.py:Dqn --env CartPole-v1 --double --learning-starts 1000 -n 50000 --eval-every 5000",
    "tqc": f"rlz train examples/tqc.py:Tqc {PENDULUM} --learning-starts 1000 -n 10000 --eval-every 1000",
    "redq": f"rlz train examples/redq.py:Redq {PENDULUM} --hidden 64,64 --learning-starts 500 -n 2000 --eval-every 250",
    "redq_loop": "python benches/learning/redq_loop.py",
}


def measure(name, seed, folder):
    """One run: its evaluations, and the score of the best policy."""
    program, *words = [*shlex.split(COMMANDS[name]), "--seed", str(seed)]
    plain = program == "python"
    output = Path(folder) / ("curve.csv" if plain else "run/evaluations.csv")
    words += ["--output", str(output)] if plain else ["--runs-dir", folder, "--name", "run"]
    command = [sys.executable, *([] if plain else ["-m", "rlz"]), *words]
    subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    with output.open() as file:
        rows = list(csv.DictReader(file))
    means = [round(float(row["mean" if plain else "return_mean"]), 1) for row in rows]
    summary = {} if plain else json.loads((Path(folder) / "run" / "summary.json").read_text())
    return {"name": name, "seed": seed, "means": means, "best": summary.get("best_held_out_return")}


def table(rows):
    lines = []
    for name, command in COMMANDS.items():
        of = [row for row in rows if row["name"] == name]
        if of:
            lines += [f"    {command} --seed SEED", "", "| seed | best policy | evaluations |", "|---|---|---|"]
        for row in sorted(of, key=lambda row: row["seed"]):
            means = " ".join(f"{mean:.0f}" for mean in row["means"])
            best = "" if row["best"] is None else f"{row['best']:.1f}"
            lines.append(f"| {row['seed']} | {best} | {means} |")
        lines += [""] if of else []
    return "\n".join(lines)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--only", nargs="+", choices=COMMANDS, default=list(COMMANDS))
    p.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    p.add_argument("--output", type=Path, required=True)
    a = p.parse_args()
    for name in a.only:
        for seed in a.seeds:
            with tempfile.TemporaryDirectory() as folder:
                row = measure(name, seed, folder)
            rows = json.loads(a.output.read_text()) if a.output.is_file() else []
            others = [known for known in rows if (known["name"], known["seed"]) != (name, seed)]
            lines = ",\n".join(json.dumps(known) for known in [*others, row])
            a.output.write_text(f"[\n{lines}\n]\n")
    print(table(json.loads(a.output.read_text())))


if __name__ == "__main__":
    main()
