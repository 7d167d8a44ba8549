"""`rlz bench`: rlz beside other libraries on this machine, in interleaved rounds, with medians, spread and ratios."""

import json
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlz.errors import ConfigError
from rlz.system.descendants import ended_afterwards

if TYPE_CHECKING:
    from rich.console import Console

DEFAULT_SECONDS = {"train": 20.0, "sampling": 8.0, "replay": 8.0, "transport": 8.0}
WORKLOADS = tuple(DEFAULT_SECONDS)


@ended_afterwards()
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
    workload : "train" (SAC in its steady state), "sampling" (a sampler, learner idle), "replay" (the buffer alone) or
        "transport" (trajectory queue and parameter store).
    env : environment id; `replay` takes its row layout, `transport` has none.
    peers : names of `rlz.bench.environments.PEERS`; each gets an environment of its own in the user's cache folder on
        first use. One that cannot be installed is reported in the result.
    rounds : every contender is measured once per round.
    seconds : of one measurement; default 20 for `train`, else 8.
    output : where the report is written as JSON; with the suffix .md as Markdown, and JSON beside it.
    options : added to `rlz train` (workload `train`).
    console : where the tables go; default stdout. What is being measured is said on stderr.

    Raises
    ------
    ConfigError
        Unknown workload or peer, a peer that does not know the workload, or the output cannot be written.
    RlzError
        rlz itself could not be measured. A peer that fails is reported in the result instead.
    """
    from rich.console import Console

    from rlz.bench import replay, report, sampling, train, transport
    from rlz.bench.environments import PEERS, peer_python
    from rlz.bench.result import run_rounds
    from rlz.system.detect import detect

    if workload not in WORKLOADS:
        raise ConfigError(f"unknown workload {workload!r}; known: {', '.join(WORKLOADS)}")
    unknown = [peer for peer in peers if peer not in PEERS]
    if unknown:
        raise ConfigError(f"unknown peer {unknown[0]!r}; known: {', '.join(PEERS)}")
    strangers = [peer for peer in peers if workload not in PEERS[peer].workloads]
    if strangers:
        known = [name for name, peer in PEERS.items() if workload in peer.workloads]
        raise ConfigError(
            f"{strangers[0]} has nothing to measure in {workload}; peers of {workload}: {', '.join(known)}"
        )
    if output is not None and not output.absolute().parent.is_dir():
        raise ConfigError(f"{output} cannot be written: there is no folder {output.absolute().parent}")
    progress = Console(stderr=True, highlight=False)

    def say(text: str) -> None:
        progress.print(text, style="dim", markup=False)

    length = DEFAULT_SECONDS[workload] if seconds is None else seconds
    machine = detect()
    settings = train.TrainSettings(env=env, seconds=length)
    installed, missing = [], []
    for peer in peers:
        say(f"environment of {peer} (made on first use)")
        try:
            peer_python(peer)
            installed.append(peer)
        except ConfigError as error:
            missing.append(f"{peer}: {error}")
            say(missing[-1])
    if workload == "train":
        jobs, metrics = train.jobs(settings, installed, machine.cores, options), train.METRICS
    elif workload == "sampling":
        jobs, metrics = sampling.jobs(settings, installed, machine.cores), sampling.METRICS
    elif workload == "replay":
        jobs, metrics = replay.jobs(env, length, installed), replay.METRICS
    else:
        jobs, metrics = transport.jobs(length, installed), transport.METRICS
    begin = time.monotonic()
    result = run_rounds(jobs, rounds, say)
    result.errors += missing
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
