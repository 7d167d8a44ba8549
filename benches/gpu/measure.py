"""What a learner reaches on a GPU: parity, updates/s, two halves of an update side by side, whole runs.

    python benches/gpu/measure.py --out gpu.json             # the first card; stops in time (--budget, 290 s)
    python benches/gpu/measure.py --device cpu --quick       # the same code with tiny settings

Parts: `parity` (losses against float64; graphs against eager updates), `updates` (SAC, Ant-v4's sizes, 256x256, by
precision, batch size and executor), `split` (critics and actor as graphs on two streams of one card, apart and
together; the cost of an exchange), `runs` (`rlz train sac`: replay ratio 1 at batch 256; free at batch 8192). The
results are written after every step. A step that fails or has no time left is in `errors`, and stops no other.

An update here is all of it: rows drawn and gathered on the device, noise, losses, gradients, Adam, target networks.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from rlz._native import Replay
from rlz.algorithms.base import WHOLE, Batch
from rlz.algorithms.sac import Sac
from rlz.algorithms.td3 import Td3
from rlz.bench.train import read_lines, stop
from rlz.envs.spaces import EnvSpec
from rlz.learning.batches import Decoder
from rlz.learning.compiled import Compilation, Job, layouts
from rlz.learning.device_replay import DeviceReplay
from rlz.learning.executors import EagerExecutor, Executor, disagreement
from rlz.learning.graphs import GraphedLaunches, cuda_graph
from rlz.learning.launches import Inputs, Launches
from rlz.learning.precision import use_precision
from rlz.system.cores import cores

OBS, ACTION, HIDDEN = 27, 8, (256, 256)  # Ant-v4
PARITY = {"fp32": 1e-4, "tf32": 1e-2, "bf16": 2e-2}
"""Allowed distance of each metric from float64, relative to 1 + its size."""

START_S = 15.0
"""Of a run, before its rate is taken."""

Work = Callable[[], None]


class Bench:
    """Options, time left, and the results so far."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.quick: bool = options.quick
        self.out: Path = options.out
        self.device = torch.device(options.device)
        self.cuda = self.device.type == "cuda"
        torch.set_num_threads(1)  # of the CPU, on which this only tries the code
        self.until: float = time.monotonic() + options.budget
        self.cell_s = 0.02 if self.quick else 0.6
        self.batches = (32,) if self.quick else (256, 8192, 131_072)
        self.hidden = (16,) if self.quick else HIDDEN
        self.rows = self._rows(500 if self.quick else 1_000_000)
        self.results: dict[str, Any] = {"machine": self._machine(), "errors": {}, "seconds": {}}

    @property
    def left(self) -> float:
        """Seconds."""
        return float(self.until - time.monotonic())

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Run the block; its error becomes a result."""
        begin = time.monotonic()
        try:
            yield
        except Exception as error:
            self.results["errors"][name] = f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"
            print(f"  {name}: {self.results['errors'][name]}", file=sys.stderr)
        self.results["seconds"][name] = round(time.monotonic() - begin, 1)
        scratch = self.out.with_suffix(".tmp")
        scratch.write_text(json.dumps(self.results, indent=1) + "\n")
        scratch.replace(self.out)

    def need(self, seconds: float) -> None:
        """Raise unless so much time is left."""
        if self.left < seconds:
            raise TimeoutError(f"{self.left:.0f} s left, {seconds:.0f} needed")

    def put(self, value: Any, *keys: str) -> None:
        """Store a result."""
        place = self.results
        for key in keys[:-1]:
            place = place.setdefault(key, {})
        place[keys[-1]] = value
        print(*keys, value, flush=True)

    def sync(self) -> None:
        """Wait for the device."""
        if self.cuda:
            torch.cuda.synchronize(self.device)

    def seconds(self, work: Work, repeats: int = 3) -> float:
        """Median time of one call, over loops with a synchronisation at both ends."""
        for _ in range(3):
            work()
        self.sync()
        found = []
        for _ in range(repeats):
            count, begin = 0, time.perf_counter()
            while time.perf_counter() - begin < self.cell_s / repeats:
                for _ in range(4):  # not so many that the queue of launches grows without end
                    work()
                count += 4
                self.sync()
            found.append((time.perf_counter() - begin) / count)
        return median(found)

    def algorithm(self, precision: str, kind: Any = Sac) -> Any:
        """SAC or TD3 of Ant-v4's sizes."""
        return kind(kind.Settings(hidden=self.hidden), EnvSpec.of_sizes(OBS, ACTION)).in_precision(precision)

    def launches(self, algorithm: Any, batch: int, most: int) -> Launches:
        """Launches with a state of their own."""
        inputs = Inputs(
            on(self.device, algorithm.init(torch.Generator().manual_seed(1))),
            torch.zeros((), dtype=torch.int64, device=self.device),
            torch.full((), 3e-4, dtype=torch.float64, device=self.device),
            torch.Generator(self.device).manual_seed(2),
        )
        return Launches(algorithm, inputs, self.rows, batch_size=batch, most=most)

    def graphs(
        self, launches: Launches, executor: Executor | None = None, cycle: tuple[str, ...] | None = None
    ) -> GraphedLaunches:
        """CUDA graphs, checked against an eager update; the work itself on a CPU."""
        eager = EagerExecutor(launches.algorithm)
        kinds = cycle or launches.algorithm.cycle
        return GraphedLaunches(launches, executor or eager, eager, kinds, cuda_graph if self.cuda else uncaptured)

    def _rows(self, count: int) -> DeviceReplay:
        """Random transitions, in shared memory and on the device."""
        fields: list[Any] = [("obs", "f32", (OBS,)), ("action", "f32", (ACTION,)), ("next_obs", "f32", (OBS,))]
        fields += [("reward", "f32", ()), ("discount", "f32", ())]
        replay = Replay.create(fields, buffer_size=count, lanes=1, run_id=1)
        draw = np.random.default_rng(1)
        rows = np.zeros((count, replay.stride // 4), np.float32)
        for name, _, shape, offset in replay.fields:
            size = int(np.prod(shape))
            values = draw.standard_normal((count, size), dtype=np.float32)
            values = {"action": np.tanh(values), "discount": np.full_like(values, 0.99)}.get(name, values)
            rows[:, offset // 4 : offset // 4 + size] = values
        replay.restore_rows(0, rows.view(np.uint8), np.zeros(count, np.uint64), worker=1)
        found = DeviceReplay(replay, Decoder(replay.fields), self.device)
        begin = time.perf_counter()
        found.follow()
        self.sync()
        print(f"mirror of {count} rows filled in {time.perf_counter() - begin:.2f} s", flush=True)
        return found

    def _machine(self) -> dict[str, Any]:
        card = torch.cuda.get_device_name(self.device) if self.cuda else None
        return {
            "date": time.strftime("%Y-%m-%d"),
            "card": card,
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "cores": cores(),
            "processor": platform.processor() or platform.machine(),
            "load": os.getloadavg()[0],
        }


def uncaptured(work: Work, generator: torch.Generator) -> Work:
    """In the place of a graph, on a CPU."""
    return work


def on(device: torch.device, state: Any, dtype: torch.dtype | None = None) -> Any:
    """State on a device, its floats in another type."""
    moved = (tensor.to(device, dtype if tensor.is_floating_point() else None, copy=True) for tensor in state)
    return type(state)(*moved)


def precisions(bench: Bench) -> Iterator[str]:
    """Each precision that the device has, switched on."""
    for precision in ("bf16", "tf32", "fp32"):
        with bench.step(f"precision {precision}"):
            use_precision(precision, [bench.device])
        if f"precision {precision}" not in bench.results["errors"]:
            yield precision
    torch.set_float32_matmul_precision("highest")


def parity(bench: Bench) -> None:
    """Metrics of an update against float64; every graph against eager updates (`GraphedLaunches` raises)."""
    for precision in precisions(bench):
        for kind in (Sac, Td3):
            name = f"{kind.__name__.lower()} {precision}"
            with bench.step(f"parity {name}"):
                algorithm = bench.algorithm(precision, kind)
                rows = bench.rows.gather(torch.arange(64, device=bench.device))
                noise = torch.randn(algorithm.noise_shape(64), device=bench.device)
                initial = algorithm.init(torch.Generator().manual_seed(1))
                rate = torch.full((), 3e-4, dtype=torch.float64, device=bench.device)
                exact = bench.algorithm("fp32", kind).update(
                    on(bench.device, initial, torch.float64),
                    Batch(*(tensor.double() for tensor in rows.tensors())),
                    noise.double(),
                    rate,
                    WHOLE,
                )
                found = algorithm.update(on(bench.device, initial), rows, noise, rate, WHOLE)
                far = float(((found.metrics - exact.metrics).abs() / (1 + exact.metrics.abs())).max())
                bench.put(far, "parity", name)
                if not far < PARITY[precision]:
                    raise ValueError(f"metrics are {far:.1e} from float64, at most {PARITY[precision]:.0e} is allowed")
                bench.graphs(bench.launches(algorithm, 64, 4))


def updates(bench: Bench, compiling: bool) -> None:
    """Rates of eager and compiled updates, in graphs of 1 and 8."""
    compilations: dict[tuple[str, int], Compilation] = {}
    if compiling:  # all at once, each in a process of its own, beside the measurements that need the device alone
        for precision in precisions(bench):
            for batch in bench.batches:
                with bench.step(f"compile {precision} {batch}"):
                    compilations[precision, batch] = compilation(bench, precision, batch)
    for precision in precisions(bench):
        for batch in bench.batches:
            for most in (1, 8):
                with bench.step(f"updates {precision} {batch} eager graph of {most}"):
                    bench.need(4 * bench.cell_s)
                    rate(bench, bench.launches(bench.algorithm(precision), batch, most), precision, batch, "eager")
    for precision in precisions(bench):
        for batch in bench.batches:
            made = compilations.get((precision, batch))
            if made is None:
                continue
            with bench.step(f"updates {precision} {batch} compiled graph of 8"):
                bench.need(10 * bench.cell_s)
                while not made.finished() and bench.left > 0:
                    time.sleep(0.1)
                if not made.ready:
                    raise TimeoutError(made.error or "not compiled in time")
                executor = made.load()
                launches = bench.launches(bench.algorithm(precision), batch, 8)
                launches.draw(1)
                inputs = launches.inputs
                sample = launches.batch(0), launches.noise[0], inputs.learning_rate, WHOLE
                if reason := disagreement(EagerExecutor(launches.algorithm), executor, inputs.state, *sample):
                    raise ValueError(reason)
                rate(bench, launches, precision, batch, "compiled", executor)
    for made in compilations.values():
        made.close()


def compilation(bench: Bench, precision: str, batch: int) -> Compilation:
    """Compiler of one shape, started."""
    algorithm = bench.algorithm(precision)
    rows = bench.rows.gather(torch.zeros(batch, dtype=torch.int64, device=bench.device))
    job = Job(
        *(algorithm, layouts(rows.tensors()), str(bench.device), algorithm.cycle),
        torch.get_float32_matmul_precision(),
    )
    made = Compilation(job)
    made.start(nice=0)
    return made


def rate(
    bench: Bench, launches: Launches, precision: str, batch: int, name: str, executor: Executor | None = None
) -> None:
    """Updates/s and frames/s of graphs of `most` updates."""
    graphs, most = bench.graphs(launches, executor), launches.most
    per_second = most / bench.seconds(lambda: graphs.run((WHOLE,) * most))
    if int(launches.inputs.failed):
        raise ValueError("an update was not finite")
    found = {"updates_s": round(per_second, 1), "frames_s": round(per_second * batch)}
    bench.put(found, "updates", precision, str(batch), f"{name}, graph of {most}")


def stream(device: torch.device) -> Any:
    """A stream of the device's own; None on a CPU."""
    return torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]


class Halves:
    """Critics' and actor's half of an update of SAC, each with a state, graphs and a stream of its own."""

    def __init__(self, bench: Bench, precision: str, batch: int) -> None:
        self.algorithm = bench.algorithm(precision)
        self.kinds = [side.cycle * 8 for side in self.algorithm.sides]
        self.sides = [bench.launches(self.algorithm, batch, 8) for _ in self.kinds]
        self.graphs = [bench.graphs(side, cycle=kinds) for side, kinds in zip(self.sides, self.kinds, strict=True)]
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


def split(bench: Bench) -> None:
    """Rates of the halves apart, side by side, and of whole updates; the cost of an exchange."""
    precision = "bf16" if bench.cuda else "fp32"
    use_precision(precision, [bench.device])
    for batch in bench.batches[:2]:
        with bench.step(f"split {batch}"):
            bench.need(8 * bench.cell_s)
            halves = Halves(bench, precision, batch)
            whole = bench.graphs(bench.launches(halves.algorithm, batch, 8))
            found = {
                "critics_updates_s": 8 / bench.seconds(partial(halves.run, 0)),
                "actor_updates_s": 8 / bench.seconds(partial(halves.run, 1)),
                "side_by_side_updates_s": 8 / bench.seconds(halves.both),
                "whole_updates_s": 8 / bench.seconds(partial(whole.run, (WHOLE,) * 8)),
                "exchange_us": 1e6 * bench.seconds(halves.exchange),
            }
            bench.put({name: round(value, 1) for name, value in found.items()}, "split", str(batch))


def runs(bench: Bench, env: str, limit: float) -> None:
    """Whole runs: env steps/s and frames/s after the start, from the run's own metrics."""
    samplers = 1 if bench.quick else max(1, cores() - 2)
    cases = {"ratio 1": ("1", bench.batches[0], 8), "free": ("free", bench.batches[min(1, len(bench.batches) - 1)], 8)}
    for place, (name, (ratio, batch, launch)) in enumerate(cases.items()):
        share = bench.left / (len(cases) - place) - START_S - 12  # 12: to start and to stop
        seconds = limit if bench.quick else min(limit, max(5.0, share))
        with bench.step(f"runs {name}"), tempfile.TemporaryDirectory() as folder:
            bench.need(5 if bench.quick else START_S + 15)
            command = [sys.executable, "-m", "rlz", "train", "sac", "--env", env, "--device", bench.device.type]
            command += ["-n", "1000000000", "--learning-starts", "100" if bench.quick else "5000"]
            command += ["--replay-ratio", ratio, "--batch-size", str(batch), "--updates-per-launch", str(launch)]
            command += ["--replay-device", "device", "--samplers", str(samplers), "--eval-every", "0"]
            command += ["--hidden", ",".join(map(str, bench.hidden)), "--log-every", "0.5", "--no-save-replay"]
            command += ["--buffer-size", "20000" if bench.quick else "1000000", "--runs-dir", folder, "--name", "run"]
            if bench.quick:
                command += ["--no-compile"]
            log = Path(folder) / "log"
            with log.open("w") as output:
                process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
                try:
                    lines = followed(Path(folder) / "run" / "metrics.jsonl", process, bench, seconds)
                finally:
                    stop(process)
            if len(lines) < 2:
                raise RuntimeError(log.read_text()[-400:])
            first, last = lines[0], lines[-1]
            took = last["wall_s"] - first["wall_s"]
            per_second = (last["updates"] - first["updates"]) / took
            found = {
                "env_steps_s": round((last["env_steps"] - first["env_steps"]) / took, 1),
                "updates_s": round(per_second, 1),
                "frames_s": round(per_second * batch),
                "waits": {key: value for key, value in last.items() if key.endswith(("wait_limiter", "wait_batch"))},
                "notes": [line for line in log.read_text().splitlines() if "CUDA graph" in line or "mirror" in line],
            }
            bench.put(found, "runs", f"{env}, {name}, batch {batch}, {samplers} samplers")


def followed(metrics: Path, process: subprocess.Popen[bytes], bench: Bench, seconds: float) -> list[dict[str, Any]]:
    """Lines of a run's metrics with updates, of so many seconds after its start; the start itself is left out."""
    begin = time.monotonic()
    start: float | None = None
    lines: list[dict[str, Any]] = []
    while process.poll() is None and time.monotonic() - begin < 120 + seconds and bench.left > 0:
        time.sleep(0.25)
        lines = [line for line in read_lines(metrics) if line["updates"] > 0]
        if lines and start is None:
            start = lines[0]["wall_s"] + (0.0 if bench.quick else START_S)
        if start is not None and lines[-1]["wall_s"] > start + seconds:
            break
    return [line for line in lines if start is not None and line["wall_s"] >= start]


def main() -> int:
    """Measure; 1 when something failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--quick", action="store_true", help="tiny settings, to try the code")
    parser.add_argument("--budget", type=float, default=290.0, help="seconds for everything")
    parser.add_argument("--out", type=Path, default=Path("gpu.json"))
    parser.add_argument("--env", help="of the runs (Ant-v4; quick: Pendulum-v1)")
    parser.add_argument("--seconds", type=float, default=60.0, help="most seconds of a run's measurement")
    parser.add_argument("--parts", nargs="+", default=["parity", "updates", "split", "runs"])
    options = parser.parse_args()
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        parser.error("torch finds no CUDA device here; --device cpu --quick tries the code")
    bench = Bench(options)
    with torch.no_grad():
        if "parity" in options.parts:
            parity(bench)
        if "updates" in options.parts:
            # Runs are the last part, and get what is left: leave them time.
            whole = bench.until
            bench.until -= 0 if "runs" not in options.parts or bench.quick else 110
            updates(bench, compiling=not bench.quick)
            bench.until = whole
        if "split" in options.parts:
            split(bench)
    if "runs" in options.parts:
        runs(bench, options.env or ("Pendulum-v1" if bench.quick else "Ant-v4"), options.seconds)
    unexpected = {name for name in bench.results["errors"] if not (name == "precision tf32" and not bench.cuda)}
    print(f"results: {options.out}; errors: {len(unexpected)}")
    return 1 if unexpected else 0


if __name__ == "__main__":
    sys.exit(main())
