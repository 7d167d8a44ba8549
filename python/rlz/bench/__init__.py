"""`rlz bench`: rlz beside other libraries on this machine, in interleaved rounds, with medians, spread and ratios."""

import json
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlz.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

WORKLOADS = ("train", "sampling", "replay")
DEFAULT_SECONDS = {"train": 20.0, "sampling": 8.0, "replay": 8.0}


def run_bench(
    workload: str,
    *,
    env: str = "Ant-v4",
    peers: Sequence[str] = (),
    rounds: int = 3,
    seconds: float | None = None,
    output: Path | None = None,
    options: Sequence[str] = (),
    console: "Console | None" = None,
) -> dict[str, Any]:
    """Run a benchmark, print its tables, and return its report.

    Parameters
    ----------
    workload : "train" (SAC in its steady state), "sampling" (a sampler, learner idle) or "replay" (the buffer alone).
    env : environment id; `replay` takes its row layout.
    peers : "sb3", "sbx"; each gets an environment of its own in the user's cache folder on first use.
    rounds : every contender is measured once per round.
    seconds : of one measurement; default 20 for `train`, else 8.
    output : where the report is written as JSON; with the suffix .md as Markdown, and JSON beside it.
    options : added to `rlz train` (workload `train`).
    console : where the tables go; default stdout. What is being measured is said on stderr.

    Raises
    ------
    ConfigError
        Unknown workload or peer, uv or a peer cannot be had, or the output cannot be written.
    RlzError
        rlz itself could not be measured. A peer that fails is reported in the result instead.
    """
    from rich.console import Console

    from rlz.bench import replay, report, sampling, train
    from rlz.bench.environments import PEERS, peer_python
    from rlz.bench.result import run_rounds
    from rlz.hardware.detect import detect

    if workload not in WORKLOADS:
        raise ConfigError(f"unknown workload {workload!r}; known: {', '.join(WORKLOADS)}")
    unknown = [peer for peer in peers if peer not in PEERS]
    if unknown:
        raise ConfigError(f"unknown peer {unknown[0]!r}; known: {', '.join(PEERS)}")
    if output is not None and not output.absolute().parent.is_dir():
        raise ConfigError(f"{output} cannot be written: there is no folder {output.absolute().parent}")
    progress = Console(stderr=True, highlight=False)

    def say(text: str) -> None:
        progress.print(text, style="dim", markup=False)

    length = DEFAULT_SECONDS[workload] if seconds is None else seconds
    machine = detect()
    settings = train.TrainSettings(env=env, seconds=length)
    for peer in peers:
        say(f"environment of {peer} (made on first use)")
        peer_python(peer)
    if workload == "train":
        jobs, metrics = train.jobs(settings, peers, machine.cores, options), train.METRICS
    elif workload == "sampling":
        jobs, metrics = sampling.jobs(settings, peers, machine.cores), sampling.METRICS
    else:
        jobs, metrics = replay.jobs(env, length, peers), replay.METRICS
    begin = time.monotonic()
    result = run_rounds(jobs, rounds, say)
    finished = report.to_json(
        result,
        workload=workload,
        settings={"env": env, "rounds": rounds, "seconds": length, "peers": list(peers), "options": list(options)},
        metrics=metrics,
        machine=machine.to_json(),
        command=_command(workload),
        seconds=time.monotonic() - begin,
    )
    if output is not None:
        text = json.dumps(finished, indent=1) + "\n"
        output.with_suffix(".json").write_text(text, encoding="utf-8")
        if output.suffix == ".md":
            output.write_text(report.to_markdown(finished), encoding="utf-8")
    report.show(finished, console or Console(highlight=False))
    return finished


def _command(workload: str) -> str:
    """The command line that led here, without the machine's paths."""
    if len(sys.argv) > 1 and workload in sys.argv:
        return shlex.join(["rlz", *sys.argv[1:]])
    return f"rlz bench {workload}"
