"""`rlz bench`: rlz beside other libraries on this machine, in interleaved rounds, with medians, spread and ratios."""

import json
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlz.errors import ConfigError, RlzError
from rlz.system.descendants import ended_afterwards

if TYPE_CHECKING:
    from rich.console import Console

    from rlz.bench.result import Workload
    from rlz.system.detect import Hardware

SECONDS = {
    **{"transport": (8.0, 1.0), "replay": (8.0, 1.0), "sampling": (8.0, 2.0), "inference": (3.0, 0.6)},
    **{"update": (10.0, 3.0), "train": (20.0, 6.0), "score": (60.0, 20.0)},
}
"""Seconds of one measurement by workload, and of a quick one. Of `score`: of a run."""

WORKLOADS = tuple(SECONDS)
QUICK = WORKLOADS[:-1]
"""What `rlz bench` alone measures: runs to a score take their time."""

ROUNDS = 3


@ended_afterwards()
def run_bench(
    workloads: Sequence[str],
    *,
    env: str | None = None,
    algo: str = "sac",
    peers: Sequence[str] | None = None,
    quick: bool = False,
    rounds: int | None = None,
    seconds: float | None = None,
    score: float | None = None,
    output: Path | None = None,
    compare: Path | None = None,
    options: Sequence[str] = (),
    view: "Callable[[dict[str, Any], Console], None] | None" = None,
    console: "Console | None" = None,
) -> dict[str, Any]:
    """Run benchmarks, print their tables, and return the report (docs/bench/format.md).

    Parameters
    ----------
    workloads : some of `WORKLOADS`.
    env : environment id; `transport` has none. Default: Ant-v4, for `score` Pendulum-v1.
    algo : of `train`, `update`, `inference` and `score`.
    peers : names of `rlz.bench.environments.PEERS`; default: those whose environment has been made.
    quick : short measurements, one round, none repeated, one variant of each peer: does it work, where are we?
    rounds : every contender is measured once per round; of `score`, a seed each.
    seconds : of one measurement.
    score : mean return that `score` waits for; default: as is usual for the environment.
    output : folder to write report.json, report.md and report.html into.
    compare : report.json of another time, to show what has changed.
    options : added to `rlz train`.
    view : prints the report on a console; default: all tables.
    console : where the tables go; default stdout. What is being measured is said on stderr.

    Raises
    ------
    ConfigError
        Unknown workload or peer, a file cannot be read, or the output cannot be written.
    RlzError
        rlz itself could not be measured in the only workload. What else fails is reported in the result.
    """
    from rich.console import Console

    from rlz.bench import compare as comparing
    from rlz.bench import report as reporting
    from rlz.bench.load import look
    from rlz.bench.page import to_html
    from rlz.bench.result import REPEATS, Result, Workload, run_rounds
    from rlz.system.detect import detect

    _check(workloads, peers, output)
    old = None if compare is None else comparing.read_report(compare)
    progress = Console(stderr=True, highlight=False)

    def say(text: str) -> None:
        progress.print(text, style="dim", markup=False)

    machine, begin, before = detect(), time.monotonic(), look()
    if before.disturbed:
        say(f"other programs take {before.others + before.stolen:.2f} cores: figures may be marked as disturbed")
    count = rounds or (1 if quick else ROUNDS)
    results, missing = [], {}
    for name in workloads:
        there, missing[name] = _present(name, algo, peers)
        length = SECONDS[name][quick] if seconds is None else seconds
        workload = Workload(name, [], ())
        try:
            make = partial(make_workload, quick=quick, score=score, options=options)
            workload = make(name, machine, env, algo, there, length)
            told = partial(_tell, say, name)
            result = run_rounds(workload.jobs, count, told, repeats=0 if quick else REPEATS)
        except RlzError as error:
            if len(workloads) == 1:
                raise
            result = Result(errors=[str(error)])  # one that cannot be measured is no reason to leave out the others
        results.append((workload, result))
    finished = reporting.to_json(
        results,
        settings={"env": env, "algo": algo, "rounds": count, "seconds": seconds, "quick": quick, "peers": peers},
        machine=machine.to_json(),
        command=_command(workloads),
        seconds=time.monotonic() - begin,
        before=before,
    )
    for one in finished["workloads"]:
        one["missing"] = missing[one["workload"]]
    if output is not None:
        output.mkdir(exist_ok=True)
        text = {"json": json.dumps(finished, indent=1) + "\n", "md": reporting.to_markdown(finished)}
        for suffix, content in {**text, "html": to_html(finished)}.items():
            (output / f"report.{suffix}").write_text(content, encoding="utf-8")
    stdout = console or Console(highlight=False)
    (view or reporting.show)(finished, stdout)
    if old is not None:
        for line in comparing.lines(old, finished):
            stdout.print(line, markup=False)
    return finished


def _tell(say: Callable[[str], None], name: str, text: str) -> None:
    say(f"{name}, {text}")


def make_workload(
    name: str,
    machine: "Hardware",
    env: str | None,
    algo: str,
    peers: Sequence[str],
    seconds: float,
    *,
    quick: bool = False,
    score: float | None = None,
    options: Sequence[str] = (),
) -> "Workload":
    """What is measured under a name; all contenders get what stands here."""
    from rlz.bench import inference, replay, sampling, train, transport, updates
    from rlz.bench import score as scoring
    from rlz.config import resolve
    from rlz.envs import inspect_env

    if env is not None and name != "transport":
        # What is wrong with it is said here, not by a process that measures.
        inspect_env(resolve(algo, env), on_note=lambda _: None)
    settings = train.TrainSettings(env=env or "Ant-v4", seconds=seconds, algo=algo)
    if name in ("update", "score", "inference") and settings.on_policy:
        raise ConfigError(f"rlz bench {name} measures algorithms with a replay buffer; {algo}: rlz bench train")
    if name == "score":
        return scoring.workload(env or scoring.ENV, algo, peers, seconds, machine.cores, score, options, quick=quick)
    if name == "transport":
        return transport.workload(seconds, peers, quick=quick)
    if name == "replay":
        return replay.workload(settings.env, seconds, peers, quick=quick)
    if name == "sampling":
        return sampling.workload(settings, peers, machine.cores)
    if name == "inference":
        return inference.workload(settings, peers)
    if name == "update":
        return updates.workload(settings, peers, machine.cores, quick=quick)
    return train.workload(settings, peers, machine.cores, options, quick=quick)


def set_up_peers(peers: Sequence[str] | None, say: Callable[[str], None]) -> list[str]:
    """Make the environments of peers, by default of all; names of those that could not be made, with the reason."""
    from rlz.bench.environments import PEERS, peer_python

    _check((), peers, None)
    failed = []
    for name in PEERS if peers is None else peers:
        say(f"environment of {name}")
        try:
            peer_python(name)
        except ConfigError as error:
            failed.append(f"{name}: {error}")
            say(failed[-1])
    return failed


def _check(workloads: Sequence[str], peers: Sequence[str] | None, output: Path | None) -> None:
    from rlz.bench.environments import PEERS

    for workload in workloads:
        if workload not in WORKLOADS:
            raise ConfigError(f"unknown workload {workload!r}; known: {', '.join(WORKLOADS)}")
    for peer in peers or ():
        if peer not in PEERS:
            raise ConfigError(f"unknown peer {peer!r}; known: {', '.join(PEERS)}")
        if len(workloads) == 1 and workloads[0] not in PEERS[peer].workloads:
            known = [name for name, one in PEERS.items() if workloads[0] in one.workloads]
            raise ConfigError(
                f"{peer} has nothing to measure in {workloads[0]}; peers of {workloads[0]}: {', '.join(known)}"
            )
    if output is not None and not (output.is_dir() or (not output.exists() and output.absolute().parent.is_dir())):
        raise ConfigError(f"--output {output}: expected a folder, or the name of a new one in a folder that exists")


def _present(workload: str, algo: str, peers: Sequence[str] | None) -> tuple[list[str], dict[str, str]]:
    """Peers of a workload that can be measured, and why the others cannot."""
    from rlz.bench.environments import PEERS, installed_peers

    wanted = [name for name in PEERS if workload in PEERS[name].workloads and (peers is None or name in peers)]
    installed, there, missing = installed_peers(), [], {}
    for name in wanted:
        if workload not in ("transport", "replay", "sampling") and algo not in PEERS[name].algos:
            missing[name] = f"its adapter runs {', '.join(PEERS[name].algos)}, not {algo}"
        elif name not in installed:
            missing[name] = f"not installed: rlz bench --setup-peers --peers {name}"
        else:
            there.append(name)
    return there, missing


def _command(workloads: Sequence[str]) -> str:
    """The command line that led here."""
    if "bench" in sys.argv:
        return shlex.join(["rlz", *sys.argv[sys.argv.index("bench") :]])
    return f"rlz bench {' '.join(workloads)}"
