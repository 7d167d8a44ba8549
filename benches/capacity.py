"""Draw what sampling costs against the capacity of the replay buffer, from a report of `rlz bench replay`.

uv run python benches/capacity.py docs/bench/replay/report.json docs/bench/capacity.svg
"""

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot as plt

from rlz.bench.capacity import CAPACITIES, metric
from rlz.bench.replay import BATCHES


def main(report: Path, output: Path) -> None:
    """Nanoseconds per row, median with quartiles, by capacity; one line per contender and batch size."""
    contenders = json.loads(report.read_text(encoding="utf-8"))["workloads"][0]["contenders"]
    matplotlib.rcParams["svg.hashsalt"] = "rlz"
    figure, axes = plt.subplots(figsize=(6.4, 4.0), layout="constrained")
    for colour, name in zip(("tab:blue", "tab:grey"), ("rlz", "numpy"), strict=True):
        for style, batch in zip(("-", "--"), BATCHES, strict=True):
            spreads = [contenders[name][metric(rows, batch)] for rows in CAPACITIES]
            middle = [1e9 / spread["median"] for spread in spreads]
            low = [1e9 / spread["third_quartile"] for spread in spreads]
            high = [1e9 / spread["first_quartile"] for spread in spreads]
            label = f"{name}, batch {batch}" if name == "rlz" else f"numpy take (nothing checked), batch {batch}"
            axes.plot(CAPACITIES, middle, style, marker="o", color=colour, label=label)
            axes.fill_between(CAPACITIES, low, high, color=colour, alpha=0.15, linewidth=0)
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("rows in the buffer (256 bytes each)")
    axes.set_ylabel("ns per sampled row")
    axes.legend(frameon=False)
    figure.savefig(output, metadata={"Date": None})


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
