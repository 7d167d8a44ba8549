"""Speed of the REDQ example beside the same algorithm as a plain single-file loop (learning/redq_loop.py), by turns.

    python benches/redq.py --hidden 64,64 --output benches/results/redq.json        # three rounds, five minutes
    python benches/redq.py --hidden 256,256 --rounds 1 --output FILE.json           # its rows are added

Updates per second at 20 updates per env step on Pendulum-v1, batch 256, ten critics. Of rlz those of the last --seconds
of its log once its update is compiled; of the loop all after its warm-up, with one thread of torch and with two. Run it
once before the measurement (--rounds 1), so that the compiled update is in the cache.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from rlz.bench.train import read_lines, stop

ROOT = Path(__file__).parents[1]
LOOP = Path(__file__).parent / "learning" / "redq_loop.py"
OWN = "rlz train examples/redq.py:Redq"


def rlz(hidden, seconds):
    words = f"--env Pendulum-v1 -n 1000000 --learning-starts 500 --eval-every 0 --checkpoint-every 0 --hidden {hidden}"
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", *OWN.split(), *words.split(), "--runs-dir", folder, "--name", "run"]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
        log, lines = Path(folder) / "run" / "metrics.jsonl", []
        while process.poll() is None:
            time.sleep(1)
            lines = [line for line in read_lines(log) if line.get("train/compiled") == 1]
            if lines and lines[-1]["wall_s"] - lines[0]["wall_s"] >= seconds + 5:  # threads have been measured by then
                break
        stop(process)
    first = next(line for line in lines if line["wall_s"] >= lines[-1]["wall_s"] - seconds)
    return (lines[-1]["updates"] - first["updates"]) / (lines[-1]["wall_s"] - first["wall_s"])


def loop(hidden, seconds, threads):
    words = ["--hidden", *hidden.split(","), "--every", "0", "--steps", "1000000", "--threads", str(threads)]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(LOOP), *words, "--seconds", str(seconds), "--output", f"{folder}/curve.csv"]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(done.stdout.split("updates/s ")[1])


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--hidden", default="64,64")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--seconds", type=float, default=15.0)
    p.add_argument("--output", type=Path, required=True)
    a = p.parse_args()
    rows = json.loads(a.output.read_text()) if a.output.is_file() else []
    for _ in range(a.rounds):
        found = {OWN: rlz(a.hidden, a.seconds)} | {f"loop, threads {n}": loop(a.hidden, a.seconds, n) for n in (1, 2)}
        rows.append({"hidden": a.hidden, **{name: round(rate, 1) for name, rate in found.items()}})
        print(rows[-1], flush=True)
        a.output.write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")
    for hidden in dict.fromkeys(row["hidden"] for row in rows):
        of = [row for row in rows if row["hidden"] == hidden]
        ratios = [row[OWN] / max(rate for name, rate in row.items() if name.startswith("loop")) for row in of]
        medians = {name: median(row[name] for row in of) for name in of[0] if name != "hidden"}
        print(f"{hidden}: {medians}, ratio {median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")


if __name__ == "__main__":
    main()
