"""Rates on a card: updates by executor and precision, two halves of an update side by side, whole runs beside SB3."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from report import Numbers, SkippedError

from bench import Bench, precisions
from rlz.algorithms.base import WHOLE
from rlz.bench.train import TrainSettings, Variant, measure_peer, read_lines, stop
from rlz.learning.compiled import Compilation, CompileJob, layouts
from rlz.learning.executors import Executor
from rlz.learning.launches import Launches
from rlz.learning.precision import use_precision
from rlz.system.cores import cores

START_S = 15.0
"""Of a run, before its rate is taken."""

REFERENCE = {("tf32", 256): 6940.0, ("bf16", 256): 9400.0, ("tf32", 8192): 2466.0, ("bf16", 8192): 3686.0}
"""Updates/s of the explicit update, compiled, in graphs of 8, on one H200."""


def updates(bench: Bench, executor: str) -> Numbers:
    """Updates/s in graphs of 8 by precision and batch size, and as a part of the reference on an H200."""
    found: Numbers = {}
    made: dict[tuple[str, int], Compilation] = {}
    if executor == "compiled":  # all at once, each in a process of its own
        for precision in precisions(bench):
            for batch in bench.batches:
                made[precision, batch] = compilation(bench, precision, batch)
    try:
        for precision in precisions(bench):
            for batch in bench.batches:
                loaded: Executor | None = None
                if executor == "compiled":
                    one = made[precision, batch]
                    one.finished(wait=True)
                    if not one.ready:
                        raise RuntimeError(f"{precision}, batch {batch}: {one.error}")
                    loaded = one.load()
                per_second = rate(bench, bench.launches(bench.algorithm(precision), batch, 8), precision, loaded)
                found[f"{precision} {batch} updates_s"] = per_second
                found[f"{precision} {batch} frames_s"] = per_second * batch
                if (reference := REFERENCE.get((precision, batch))) is not None:
                    found[f"{precision} {batch} of reference"] = per_second / reference
    finally:
        for one in made.values():
            one.close()
    return found


def compilation(bench: Bench, precision: str, batch: int) -> Compilation:
    """Compiler of one shape, started."""
    algorithm = bench.algorithm(precision)
    rows = bench.rows.gather(torch.zeros(batch, dtype=torch.int64, device=bench.device))
    job = CompileJob(
        *(algorithm, layouts(rows.tensors()), str(bench.device), algorithm.cycle),
        torch.get_float32_matmul_precision(),
    )
    made = Compilation(job)
    made.start(nice=0)
    return made


def rate(bench: Bench, launches: Launches, precision: str, executor: Executor | None = None) -> float:
    """Updates/s of graphs of `most` updates, checked against eager ones."""
    with torch.no_grad():
        graphs, most = bench.graphs(launches, precision, executor), launches.most
        per_second = most / bench.seconds(lambda: graphs.run((WHOLE,) * most))
    if int(launches.inputs.failed):
        raise ValueError("an update was not finite")
    return per_second


def stream(device: torch.device) -> Any:
    """A stream of the device's own; None on a CPU."""
    return torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]


class Halves:
    """Critics' and actor's half of an update of SAC, each with a state, graphs and a stream of its own."""

    def __init__(self, bench: Bench, precision: str, batch: int) -> None:
        self.algorithm = bench.algorithm(precision)
        self.kinds = [side.cycle * 8 for side in self.algorithm.sides]
        self.sides = [bench.launches(self.algorithm, batch, 8) for _ in self.kinds]
        self.graphs = [
            bench.graphs(side, precision, cycle=kinds) for side, kinds in zip(self.sides, self.kinds, strict=True)
        ]
        self.streams: list[Any] = [stream(bench.device) for _ in self.sides]

    def run(self, index: int) -> None:
        """Eight updates of one half."""
        with torch.cuda.stream(self.streams[index]):  # None: no other stream
            self.graphs[index].run(self.kinds[index])

    def both(self) -> None:
        """Eight updates of each, side by side on a card."""
        self.run(0)
        self.run(1)

    def exchange(self) -> None:
        """Give each side what it reads of the other one's state."""
        for giver, taker, side in zip(self.sides, reversed(self.sides), self.algorithm.sides, strict=True):
            for name in side.gives:
                getattr(taker.inputs.state, name).copy_(getattr(giver.inputs.state, name))


def split(bench: Bench) -> Numbers:
    """Rates of the halves apart, side by side, and of whole updates; the cost of an exchange."""
    precision = "bf16" if bench.cuda else "fp32"
    use_precision(precision, [bench.device])
    found: Numbers = {}
    with torch.no_grad():
        for batch in bench.batches[:2]:
            halves = Halves(bench, precision, batch)
            whole = bench.graphs(bench.launches(halves.algorithm, batch, 8), precision)
            found[f"{batch} critics updates_s"] = 8 / bench.seconds(partial(halves.run, 0))
            found[f"{batch} actor updates_s"] = 8 / bench.seconds(partial(halves.run, 1))
            found[f"{batch} side by side updates_s"] = 8 / bench.seconds(halves.both)
            found[f"{batch} whole updates_s"] = 8 / bench.seconds(partial(whole.run, (WHOLE,) * 8))
            found[f"{batch} exchange us"] = 1e6 * bench.seconds(halves.exchange)
    torch.set_float32_matmul_precision("highest")
    return found


def run(bench: Bench, ratio: str) -> Numbers:
    """A whole `rlz train sac`: env steps/s and frames/s after the start, from its own metrics."""
    options = bench.options
    batch = bench.batches[0] if ratio != "free" else bench.batches[min(1, len(bench.batches) - 1)]
    samplers = 1 if bench.quick else max(1, cores() - 2)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "rlz", "train", "sac", "--env", environment_of(bench)]
        command += ["--device", bench.device.type, "-n", "1000000000"]
        command += ["--learning-starts", "100" if bench.quick else "5000", "--replay-ratio", ratio]
        command += ["--batch-size", str(batch), "--replay-device", "device", "--samplers", str(samplers)]
        command += ["--eval-every", "0", "--hidden", ",".join(map(str, bench.hidden)), "--log-every", "0.5"]
        command += ["--no-save-replay", "--buffer-size", "20000" if bench.quick else "1000000", "--plan", "off"]
        command += ["--runs-dir", folder, "--name", "run", *(["--no-compile"] if bench.quick else [])]
        log = Path(folder) / "log"
        with log.open("w") as output:
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
            try:
                lines = followed(Path(folder) / "run" / "metrics.jsonl", process, bench, options.seconds)
            finally:
                stop(process)
        if len(lines) < 2:
            raise RuntimeError(log.read_text()[-400:])
        first, last = lines[0], lines[-1]
        took = last["wall_s"] - first["wall_s"]
        per_second = (last["updates"] - first["updates"]) / took
        notes = [line for line in log.read_text().splitlines() if "CUDA graph" in line or "mirror" in line]
        return {
            "env_steps_s": (last["env_steps"] - first["env_steps"]) / took,
            "updates_s": per_second,
            "frames_s": per_second * batch,
            "notes": notes,
        }


def beside_sb3(bench: Bench) -> Numbers:
    """rlz at replay ratio 1 and SB3, one after the other on this machine, where SB3 is installed."""
    try:
        import stable_baselines3  # noqa: F401
    except ImportError:
        raise SkippedError("stable-baselines3 is not installed for this Python") from None
    seconds = 3.0 if bench.quick else bench.options.seconds
    settings = TrainSettings(environment_of(bench), seconds, device=bench.device.type, hidden=bench.hidden)
    peer = measure_peer("sb3", Variant(1, 1), settings, "train", python=sys.executable)
    ours = run(bench, "1")
    times = ours["env_steps_s"] / peer["env_steps_per_s"]
    return {"rlz env_steps_s": ours["env_steps_s"], "sb3 env_steps_s": peer["env_steps_per_s"], "times": times}


def environment_of(bench: Bench) -> str:
    """Of the runs."""
    return str(bench.options.env or ("Pendulum-v1" if bench.quick else "Ant-v4"))


def followed(metrics: Path, process: subprocess.Popen[bytes], bench: Bench, seconds: float) -> list[dict[str, Any]]:
    """Lines of a run's metrics with updates, of so many seconds after its start; the start itself is left out."""
    begin = time.monotonic()
    start: float | None = None
    lines: list[dict[str, Any]] = []
    while process.poll() is None and time.monotonic() - begin < 120 + seconds:
        time.sleep(0.25)
        lines = [line for line in read_lines(metrics) if line["updates"] > 0]
        if lines and start is None:
            start = lines[0]["wall_s"] + (0.0 if bench.quick else START_S)
        if start is not None and lines[-1]["wall_s"] > start + seconds:
            break
    return [line for line in lines if start is not None and line["wall_s"] >= start]
