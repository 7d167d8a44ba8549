"""Matrix products and copies between devices, by device, dtype and threads: what every learner is made of."""

import time
from collections.abc import Sequence
from itertools import permutations
from typing import Any

import torch

from rlz.learning.auto_precision import AMPERE
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
        return [self._product(*shape) for shape in shapes]

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
            return {"product": {"device": device, "dtype": dtype, "threads": threads, "flops": flops}}

        return Task(f"matrix products on {device}, {dtype}, {threads_in_words(threads)}", work)

    def _flops(self, device: str, dtype: str, rows: int) -> float:
        left = torch.ones(rows, self._width, dtype=DTYPES[dtype], device=device)
        right = torch.ones(self._width, self._width, dtype=DTYPES[dtype], device=device)
        out = left @ right
        each = 8 if device == "cpu" else 200
        calls, begin = 0, 0.0
        while True:
            if not calls:
                wait(device)
                begin = time.perf_counter()
            for _ in range(1 if not calls else each):
                torch.mm(left, right, out=out)
                calls += 1
            wait(device)
            passed = time.perf_counter() - begin
            if passed >= 0.1:
                return 2.0 * rows * self._width * self._width * calls / passed


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
