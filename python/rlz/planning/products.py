"""Matrix products and copies between devices, by device, dtype and threads: what every learner is made of.

On the CPU by torch and by the dense layers of rlz, with their share of the peak: of what the cores reach that do
nothing but multiply and add.
"""

import time
from collections.abc import Callable, Sequence
from functools import cache
from itertools import permutations
from typing import Any

import torch

from rlz import _native
from rlz.learning.auto_precision import AMPERE
from rlz.networks import dense
from rlz.networks.mlp import Mlp
from rlz.planning.tasks import Task, threads_in_words

PRODUCT_ROWS = 1024
SMALL_ROWS = 8

HOPELESS = 4.0
"""A dtype whose products take so many times longer than those of float32 is not looked at any further."""

COPY_BYTES = 1 << 26

DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16}


class Products:
    """Products of activations [rows, width] and a layer's weights [width, width]; copies between host and cards.

    Parameters
    ----------
    width : of the layer.
    threads : numbers of CPU threads to measure.
    """

    def __init__(self, width: int, threads: Sequence[int]) -> None:
        self._width = width
        self._threads = threads
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        self.cards = [f"cuda:{index}" for index in range(count)]
        self.emulated: set[tuple[str, str]] = set()
        """Devices and dtypes that a measurement has shown to be hopeless."""

    def tasks(self) -> list[Task]:
        """Products on the CPU and on the first card."""
        shapes = [("cpu", dtype, count) for dtype in ("fp32", "bf16") for count in self._threads]
        shapes += [(card, dtype, 1) for card in self.cards[:1] for dtype in DTYPES if has(card, dtype)]
        own = [(dtype, count) for dtype in ("fp32", "bf16") for count in self._threads if peak(dtype)]
        return [self._product(*shape) for shape in shapes] + [self._dense(*one) for one in own]

    def copies(self) -> list[Task]:
        """Between the host and each card, and between cards."""
        links = [("cpu", card) for card in self.cards] + [(card, "cpu") for card in self.cards]
        return [_copy(*link) for link in [*links, *permutations(self.cards, 2)]]

    def _product(self, device: str, dtype: str, threads: int) -> Task:
        def work() -> dict[str, Any] | None:
            if (device, dtype) in self.emulated:
                return None
            torch.set_num_threads(threads)
            torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
            try:
                # Small ones first: where a dtype is emulated, even one product of full size takes seconds.
                flops = self._flops(device, dtype, SMALL_ROWS)
                if dtype != "fp32" and flops * HOPELESS < self._flops(device, "fp32", SMALL_ROWS):
                    self.emulated.add((device, dtype))
                else:
                    flops = self._flops(device, dtype, PRODUCT_ROWS)
            finally:
                torch.set_float32_matmul_precision("highest")
            return {
                "product": {
                    "device": device,
                    "dtype": dtype,
                    "threads": threads,
                    **_figures(device, dtype, threads, flops),
                }
            }

        return Task(f"matrix products on {device}, {dtype}, {threads_in_words(threads)}", work)

    def _dense(self, dtype: str, threads: int) -> Task:
        network = Mlp("layer", self._width, (self._width,), 1, bf16=dtype == "bf16")
        flat, x = network.init(), torch.ones(PRODUCT_ROWS, self._width)

        def work() -> dict[str, Any]:
            before = torch.get_num_threads()
            torch.set_num_threads(1)
            dense.use_threads(threads)
            try:
                with dense.operators(), torch.no_grad():
                    seconds = _seconds("cpu", lambda: network(flat, x))
            finally:
                dense.use_threads(1)
                torch.set_num_threads(before)
            flops = 2.0 * PRODUCT_ROWS * self._width * (self._width + 1) / seconds
            return {
                "product": {
                    "device": "cpu",
                    "dtype": dtype,
                    "threads": threads,
                    "library": "rlz",
                    **_figures("cpu", dtype, threads, flops),
                }
            }

        return Task(f"matrix products by rlz on cpu, {dtype}, {threads_in_words(threads)}", work)

    def _flops(self, device: str, dtype: str, rows: int) -> float:
        left = torch.ones(rows, self._width, dtype=DTYPES[dtype], device=device)
        right = torch.ones(self._width, self._width, dtype=DTYPES[dtype], device=device)
        out = left @ right
        seconds = _seconds(device, lambda: torch.mm(left, right, out=out))
        return 2.0 * rows * self._width * self._width / seconds


@cache
def peak(dtype: str) -> float | None:
    """Operations per second of one core that does nothing but multiply and add; None without such instructions."""
    if dtype == "bf16" and not dense.has_bf16():
        return None
    return _native.dense_peak(dtype == "bf16")


def _figures(device: str, dtype: str, threads: int, flops: float) -> dict[str, Any]:
    limit = peak(dtype) if device == "cpu" else None
    return {"flops": flops, "of_peak": flops / limit / threads if limit else None}


def _seconds(device: str, product: Callable[[], Any]) -> float:
    """Time of one call, over a tenth of a second."""
    each = 8 if device == "cpu" else 200
    calls, begin = 0, 0.0
    while True:
        if not calls:
            wait(device)
            begin = time.perf_counter()
        for _ in range(1 if not calls else each):
            product()
            calls += 1
        wait(device)
        passed = time.perf_counter() - begin
        if passed >= 0.1:
            return passed / calls


def has(device: str, dtype: str) -> bool:
    """Whether a device has products of a dtype. A CPU without bf16 emulates them."""
    if device == "cpu":
        return dtype != "tf32"
    return dtype == "fp32" or torch.cuda.get_device_capability(device) >= AMPERE


def wait(device: str) -> None:
    """Wait until a card has done everything."""
    if device != "cpu":
        torch.cuda.synchronize(device)


def _copy(source: str, target: str) -> Task:
    def work() -> dict[str, Any]:
        pinned = "cpu" in (source, target)
        tensors = [
            torch.empty(COPY_BYTES, dtype=torch.uint8, device=place, pin_memory=pinned and place == "cpu")
            for place in (source, target)
        ]
        card = target if source == "cpu" else source
        calls, begin = -1, 0.0
        while calls < 1 or time.perf_counter() - begin < 0.1:
            if calls < 0:
                begin = time.perf_counter()  # the first one warms up
            tensors[1].copy_(tensors[0], non_blocking=True)
            wait(card)
            calls += 1
            if not calls:
                begin = time.perf_counter()
        bytes_per_s = COPY_BYTES * calls / (time.perf_counter() - begin)
        return {"copy": {"source": source, "target": target, "bytes_per_s": bytes_per_s}}

    return Task(f"copies from {source} to {target}", work)
