"""Where one update of SAC spends its time in rlz's dense layers: each native call alone, and its share of the peak.

    python benches/dense_calls.py                     # Ant-v4's sizes, batch 256, one thread, float32 and bf16
    python benches/dense_calls.py --batch 8192 --threads 2

A figure is the least time of many calls, so a neighbour on the machine hardly shows. The peak is what a core reaches
that does nothing but multiply and add with the same instructions. Run it with the environment of a learner (its memory
is kept by the C library): MALLOC_MMAP_THRESHOLD_=33554432 MALLOC_TRIM_THRESHOLD_=1099511627776.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch

from rlz import _native
from rlz.networks import dense

OBS, ACTION, HIDDEN = 27, 8, (256, 256)  # Ant-v4

ops = torch.ops.rlz


class Stack:
    """A stack of networks with a batch: its calls and their work."""

    def __init__(self, members: int, inputs: int, outputs: int, batch: int, bf16: bool) -> None:
        self.shape = [members, members, inputs, outputs, 0, 0, int(bf16), *HIDDEN]
        self.sizes = [members * i * o for i, o in pairwise([inputs, *HIDDEN, outputs])]
        self.flat = torch.randn(sum(self.sizes) + members * sum([*HIDDEN, outputs])) * 0.05
        self.x = torch.randn(batch, inputs)
        y, self.kept = ops.dense_forward(self.flat, self.x, self.shape, True)
        self.slope = torch.randn_like(y)
        self.batch, self.members = batch, members

    def forward(self, keep: bool) -> tuple[Callable[[], Any], float]:
        """A pass and its operations."""
        work = 2.0 * self.batch * sum(self.sizes)
        return dense.ready(ops.dense_forward.default, self.flat, self.x, self.shape, keep), work

    def of_weights(self) -> tuple[Callable[[], Any], float]:
        """Gradient of all parameters."""
        work = 2.0 * self.batch * (sum(self.sizes) + sum(self.sizes[1:]))
        back = ops.dense_backward.default, self.flat, self.kept
        return dense.ready(*back, self.slope, self.shape, True, 0, 0), work

    def of_actions(self) -> tuple[Callable[[], Any], float]:
        """Gradient of the actions where each row has one smallest critic."""
        one = torch.randint(self.members, (self.batch,))
        slope = self.slope * (torch.arange(self.members)[:, None] == one)[..., None]
        work = 2.0 * self.batch * (sum(self.sizes[1:]) / self.members + ACTION * HIDDEN[0])
        back = ops.dense_backward.default, self.flat, self.kept
        return dense.ready(*back, slope.contiguous(), self.shape, False, OBS, ACTION), work


def least(call: Callable[[], Any], seconds: float) -> float:
    """Least seconds of a call."""
    best, end = float("inf"), time.perf_counter() + seconds
    while (begin := time.perf_counter()) < end:
        call()
        best = min(best, time.perf_counter() - begin)
    return best


def show(bf16: bool, batch: int, threads: int, seconds: float) -> None:
    actor, critic = Stack(1, OBS, 2 * ACTION, batch, bf16), Stack(2, OBS + ACTION, 1, batch, bf16)
    a, c = actor.flat, critic.flat
    constants = torch.tensor([0.9, 0.999, 1e-8, 3e-4, 0.03])
    state, fresh = [a.clone() for _ in range(3)] + [c.clone() for _ in range(4)], [a] * 3 + [c] * 4
    calls: list[tuple[str, int, Callable[[], Any], float]] = [
        ("actor, forward", 1, *actor.forward(False)),
        ("actor, forward, kept", 1, *actor.forward(True)),
        ("critics, forward", 1, *critic.forward(False)),
        ("critics, forward, kept", 2, *critic.forward(True)),
        ("critics, gradient of weights", 1, *critic.of_weights()),
        ("critics, gradient of actions", 1, *critic.of_actions()),
        ("actor, gradient of weights", 1, *actor.of_weights()),
        ("Adam, critics", 1, lambda: ops.dense_adam(c, c, c.abs(), c, constants), 0.0),
        ("Adam, actor", 1, lambda: ops.dense_adam(a, a, a.abs(), a, constants), 0.0),
        ("moving average", 1, lambda: ops.dense_polyak(c, c, 0.005), 0.0),
        ("state written", 1, lambda: dense.commit(state, fresh), 0.0),
    ]
    peak = _native.dense_peak(bf16) * threads
    print(f"\n{'bf16' if bf16 else 'float32'}, batch {batch}, {threads} threads, peak {peak / 1e9:.0f} GFLOP/s")
    print("| call | times | us | GFLOP/s | of the peak |\n|---|---|---|---|---|")
    total = products = ideal = 0.0
    for name, count, call, work in calls:
        passed = least(call, seconds)
        total += count * passed
        products += count * passed if work else 0.0
        ideal += count * work / peak
        rate = f"{work / passed / 1e9:.0f} | {work / passed / peak:.2f}" if work else "- | -"
        print(f"| {name} | {count} | {1e6 * passed:.0f} | {rate} |", flush=True)
    print(f"| all | | {1e6 * total:.0f} | | {ideal / products:.2f} of products, {ideal / total:.2f} of all |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0.2, help="for each call")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    dense.use_threads(options.threads)
    print(_native.dense_instructions())
    for bf16 in (False, True) if dense.has_bf16() else (False,):
        show(bf16, options.batch, options.threads, options.seconds)


if __name__ == "__main__":
    main()
