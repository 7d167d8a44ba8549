"""SAC updates per second: executors, threads, spin counts, alone and beside a busy process, and their limit.

    python benches/learner_update.py                                  # eager and compiled, 1 thread and all cores
    python benches/learner_update.py --spin default 1000 10000 --busy 0 1
    python benches/learner_update.py --executors gemm compiled native --batch 256 1024   # beside the products alone
    python benches/learner_update.py --sb3 path/to/python --sbx path/to/python         # beside others' own updates

Every row is measured in its own process, rows are interleaved over the rounds, medians are printed. An update here is
everything the learner does for one: decode a packed batch, noise, update, check of the flag (SB3, SBX: `SAC.train`).
`compiled` has torch's products, `native` the dense layers of rlz, `native_bf16` the same with `--precision bf16`.
`gemm` is the limit: the matrix products of one update and nothing else, each in its fastest form (torch's default as
one batched product for both critics or as one product each, or oneDNN's).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median

from rlz.learning.threads import MEMORY
from rlz.system.cores import cores

OBS, ACTION, HIDDEN = 27, 8, (256, 256)  # Ant-v4

PEER = """
import sys, time, json, numpy as np, gymnasium as gym
from stable_baselines3.common.logger import configure
library, threads, batch, seconds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
if library == "sb3":
    import torch
    from stable_baselines3 import SAC
    torch.set_num_threads(threads)
    options, updates = {"device": "cpu"}, 5
else:
    from sbx import SAC
    options, updates = {}, 1
class Env(gym.Env):
    observation_space = gym.spaces.Box(-np.inf, np.inf, (27,), np.float64)
    action_space = gym.spaces.Box(-1, 1, (8,), np.float32)
    def reset(self, **k): return np.zeros(27), {}
    def step(self, a): return np.zeros(27), 0.0, False, False, {}
model = SAC("MlpPolicy", Env(), buffer_size=100_000, batch_size=batch, **options)
model.set_logger(configure(None, []))
b = model.replay_buffer
rng = np.random.default_rng(0)
b.observations[:] = rng.standard_normal(b.observations.shape); b.next_observations[:] = b.observations[::-1]
b.actions[:] = np.tanh(rng.standard_normal(b.actions.shape)); b.rewards[:] = rng.standard_normal(b.rewards.shape)
b.full = True
model.train(updates, batch); model.train(updates, batch)
count, begin = 0, time.perf_counter()
while time.perf_counter() - begin < seconds:
    model.train(updates, batch); count += updates
print(json.dumps(count / (time.perf_counter() - begin)))
"""


@dataclass(frozen=True)
class Row:
    """One measured setting."""

    executor: str
    threads: int
    spin: str
    busy: int
    batch: int


def measure(row: Row, seconds: float) -> float:
    """Updates per second of this process."""
    import torch

    from rlz.algorithms.sac import Sac, SacSettings
    from rlz.envs.spaces import EnvSpec
    from rlz.learning.batches import Decoder
    from rlz.learning.compiled import Compilation, CompileJob, layouts
    from rlz.learning.engine import Engine, EnginePlan

    precision = "bf16" if row.executor == "native_bf16" else "fp32"
    sac = Sac(SacSettings(hidden=HIDDEN), EnvSpec.of_sizes(OBS, ACTION)).in_precision(precision)
    state = sac.init(torch.Generator().manual_seed(0))
    fields = [("obs", "f32", (OBS,), 0), ("action", "f32", (ACTION,), 4 * OBS)]
    fields += [("next_obs", "f32", (OBS,), 4 * (OBS + ACTION))]
    fields += [("reward", "f32", (), 4 * (2 * OBS + ACTION)), ("discount", "f32", (), 4 * (2 * OBS + ACTION + 1))]
    decoder = Decoder(fields)
    packed = torch.randn(8, row.batch, 64).clamp(-3, 3)
    packed[..., OBS : OBS + ACTION].tanh_()
    packed[..., -1] = 0.99
    rows = [row.clone().view(torch.uint8) for row in packed]  # of one layout: each in memory of its own
    layout = layouts(decoder(rows[0]).tensors())
    plan = EnginePlan(compile=False, fixed=True)
    engine = Engine(sac, state, layout=layout, device=torch.device("cpu"), seed=0, plan=plan, log=lambda line: None)
    if row.executor != "eager":
        compilation = Compilation(CompileJob(sac, layout, "cpu", sac.cycle, dense=row.executor.startswith("native")))
        compilation.start(nice=0)
        compilation.finished(wait=True)
        assert compilation.error is None, compilation.error
        engine._executor = compilation.load()  # an engine measures which one; here both are measured
    engine._tuner.threads = row.threads  # a fixed plan has one thread; here the number is what is measured
    torch.set_num_threads(row.threads)
    for count in range(5):
        engine.update(decoder(rows[count % 8]), 3e-4)
    count, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < seconds:
        engine.update(decoder(rows[count % 8]), 3e-4)
        count += 1
    return count / (time.perf_counter() - begin)


def products(batch: int) -> list[tuple[int, tuple[int, int, int], str]]:
    """Matrix products of one update of SAC: how many alike, (rows, inner, columns), which operand is transposed."""
    critics, width = 2, HIDDEN[0]
    actor = [(OBS, width), (width, width), (width, 2 * ACTION)]
    critic = [(OBS + ACTION, width), (width, width), (width, 1)]

    def forward(layers: list[tuple[int, int]], count: int) -> list[tuple[int, tuple[int, int, int], str]]:
        return [(count, (batch, i, o), "") for i, o in layers]

    def weights(layers: list[tuple[int, int]], count: int) -> list[tuple[int, tuple[int, int, int], str]]:
        return [(count, (i, batch, o), "left") for i, o in layers]

    def inputs(layers: list[tuple[int, int]], count: int) -> list[tuple[int, tuple[int, int, int], str]]:
        return [(count, (batch, o, i), "right") for i, o in layers]

    target = forward(actor, 1) + forward(critic, critics)
    critic_loss = forward(critic, critics) + weights(critic, critics) + inputs(critic[1:], critics)
    actor_loss = forward(actor, 1) + forward(critic, critics) + inputs(critic, critics)
    return target + critic_loss + actor_loss + weights(actor, 1) + inputs(actor[1:], 1)


def limit(row: Row, seconds: float) -> float:
    """Updates per second if an update were its matrix products alone."""
    import torch

    torch.set_num_threads(row.threads)
    torch.set_flush_denormal(True)

    def operands(count: int, shape: tuple[int, int, int], transposed: str) -> tuple[torch.Tensor, ...]:
        m, k, n = shape
        left = torch.randn(count, k, m).mT if transposed == "left" else torch.randn(count, m, k)
        right = torch.randn(count, n, k).mT if transposed == "right" else torch.randn(count, k, n)
        return left, right, torch.empty(count, m, n)

    def rate(run: Callable[[], None], seconds: float) -> float:
        run()
        count, begin = 0, time.perf_counter()
        while time.perf_counter() - begin < seconds:
            run()
            count += 1
        return count / (time.perf_counter() - begin)

    def together(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor) -> Callable[[], None]:
        def run() -> None:
            torch.bmm(left, right, out=out)

        return run

    def apart(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor) -> Callable[[], None]:
        pairs = [*zip(left, right, out, strict=True)]

        def run() -> None:
            for a, b, c in pairs:
                torch.mm(a, b, out=c)

        return run

    def onednn(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor) -> Callable[[], None]:
        pairs = [*zip(left.contiguous(), right.mT, strict=True)]

        def run() -> None:
            for a, b in pairs:
                torch.ops.mkldnn._linear_pointwise(a, b, None, "none", [], "")

        return run

    todo = [operands(*product) for product in products(row.batch)]
    share = seconds / 6 / len(todo)
    best = [max((together(*o), apart(*o), onednn(*o)), key=lambda run: rate(run, share)) for o in todo]

    def update() -> None:
        for run in best:
            run()

    return rate(update, seconds / 2)


def in_process(row: Row, seconds: float, peers: dict[str, str]) -> float:
    """Measure a row in a process of its own, beside busy ones."""
    environment = dict(os.environ)
    environment.pop("GOMP_SPINCOUNT", None)
    if row.spin != "default":
        environment["GOMP_SPINCOUNT"] = row.spin
    command = [sys.executable, __file__, "--row", json.dumps(asdict(row)), "--seconds", str(seconds)]
    if row.executor not in peers:
        environment |= MEMORY  # as the controller starts a learner
    else:
        command = [peers[row.executor], "-c", PEER, row.executor]
        command += [str(row.threads), str(row.batch), str(seconds)]
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(row.busy)]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    finally:
        for process in busy:
            process.kill()
            process.wait()
    return float(json.loads(done.stdout.strip().splitlines()[-1]))


def main() -> None:
    available = cores()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    executors = ["gemm", "eager", "compiled", "native", "native_bf16"]
    parser.add_argument("--executors", nargs="+", default=executors[1:4], choices=executors)
    parser.add_argument("--threads", nargs="+", type=int, default=sorted({1, available}))
    parser.add_argument("--spin", nargs="+", default=["10000"], help="GOMP_SPINCOUNT values, or default")
    parser.add_argument("--busy", nargs="+", type=int, default=[0], help="busy processes beside it")
    parser.add_argument("--batch", nargs="+", type=int, default=[256])
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sb3", help="Python interpreter with stable-baselines3")
    parser.add_argument("--sbx", help="Python interpreter with sbx-rl; it has all cores whatever --threads says")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.row is not None:
        row = Row(**json.loads(options.row))
        print(json.dumps((limit if row.executor == "gemm" else measure)(row, options.seconds)))
        return
    peers = {name: python for name in ("sb3", "sbx") if (python := getattr(options, name))}
    executors = [*options.executors, *peers]
    rows = [
        Row(executor, threads, spin, busy, batch)
        for busy in options.busy
        for batch in options.batch
        for executor in executors
        for threads in (options.threads if executor != "sbx" else [available])
        for spin in (options.spin if threads > 1 else options.spin[:1])
    ]
    rates: dict[Row, list[float]] = {row: [] for row in rows}
    for _ in range(options.rounds):
        for row in rows:
            rates[row].append(in_process(row, options.seconds, peers))
    print(f"{platform.processor() or platform.machine()}, {available} cores, load {os.getloadavg()[0]:.1f}")
    print("executor  threads  spin     busy  batch  updates/s (median; all rounds)")
    for row, values in rates.items():
        spin = row.spin if row.threads > 1 else "-"
        every = " ".join(f"{value:.0f}" for value in values)
        print(
            f"{row.executor:9} {row.threads:7}  {spin:8} {row.busy:4} {row.batch:6}  {median(values):7.1f}   ({every})",
            flush=True,
        )


if __name__ == "__main__":
    main()
