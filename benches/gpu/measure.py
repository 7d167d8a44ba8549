"""The first run on a card: checks in an order in which each rests on those before, then rates. See run.sh.

    python benches/gpu/measure.py --out gpu.json             # the first card; stops in time (--budget, 560 s)
    python benches/gpu/measure.py --from "rates eager"       # goes on with a step, in a second command
    python benches/gpu/measure.py --device cpu --quick       # the same code with tiny settings

It stops at the first hard failure. The report (`report.Report`) says of each step whether it passed, failed or was
skipped and why, with its numbers; it is written after every step. An update here is all of it: rows drawn and gathered
on the device, noise, losses, gradients, Adam, target networks.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

import checks
import rates
import torch
from report import Report, Step

from bench import Bench


def steps(bench: Bench) -> list[Step]:
    """What the first run makes, in its order."""
    short, long = (1.0, 2.0) if bench.quick else (10.0, 45.0)
    whole = 5.0 if bench.quick else bench.options.seconds + rates.START_S + 15

    def step(name: str, work: object, **values: object) -> Step:
        return Step(name, partial(work, bench), **values)  # type: ignore[arg-type]

    return [
        step("environment", checks.environment, hard=True),
        step("precisions", checks.parity, hard=True, seconds=short),
        step("no synchronisation", checks.no_synchronisation, hard=True, card=True),
        step("capture and replay", checks.replay, hard=True),
        step("several updates in a graph", checks.several, hard=True, seconds=short),
        step("a row that is not finite", checks.not_finite, hard=True),
        step("a failed capture", checks.failed_capture, hard=True),
        step("compiler", checks.compiler, seconds=long),
        step("swaps of the executor", checks.swaps, seconds=short),
        step("mirror", checks.mirror),
        step("time of the host", checks.host_time, seconds=short),
        step("device auto", checks.choice, seconds=short),
        step("memory runs out", checks.memory_runs_out, card=True),
        step("two devices", checks.two_devices, seconds=short),
        step("killed and resumed", checks.killed, seconds=long),
        step("rates eager", partial(rates.updates, executor="eager"), seconds=short),
        step("rates compiled", partial(rates.updates, executor="compiled"), seconds=long),
        step("rates of halves", rates.split, seconds=short),
        step("run at ratio 1", partial(rates.run, ratio="1"), seconds=whole),
        step("run free", partial(rates.run, ratio="free"), seconds=whole),
        step("beside SB3", rates.beside_sb3, seconds=2 * whole),
    ]


def main() -> int:
    """Check and measure; 1 when something failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--quick", action="store_true", help="tiny settings, to try the code")
    parser.add_argument("--budget", type=float, default=560.0, help="seconds for everything")
    parser.add_argument("--out", type=Path, default=Path("gpu.json"))
    parser.add_argument("--env", help="of the runs (Ant-v4; quick: Pendulum-v1)")
    parser.add_argument("--seconds", type=float, default=40.0, help="seconds of a run's measurement")
    parser.add_argument("--only", nargs="+", metavar="STEP", help="these steps alone")
    parser.add_argument("--from", dest="first", metavar="STEP", help="begin with this step")
    options = parser.parse_args()
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        parser.error("torch finds no CUDA device here; --device cpu --quick tries the code")
    bench = Bench(options)
    made = steps(bench)
    names = [step.name for step in made]
    unknown = {*(options.only or []), *([options.first] if options.first else [])} - set(names)
    if unknown:
        parser.error(f"no step {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    made = made[names.index(options.first) if options.first else 0 :]
    made = [step for step in made if not options.only or step.name in options.only]
    report = Report(options.out, {"machine": bench.machine()})
    return 0 if report.run(made, card=bench.cuda, budget=options.budget) else 1


if __name__ == "__main__":
    sys.exit(main())
