"""How busy the machine is: cores, memory, cards."""

import shutil
import time
from dataclasses import dataclass

import psutil

from rlz.system.gpus import nvidia_smi

CARDS_S = 5.0
"""Seconds between two questions to nvidia-smi, which takes some hundred milliseconds of a core."""


@dataclass(frozen=True)
class CardUsage:
    """A GPU; `busy` in percent, memory in bytes."""

    name: str
    busy: float
    used: int
    total: int


@dataclass(frozen=True)
class MachineUsage:
    """`cores`: percent of each since the reading before; memory in bytes, without what the kernel can give up."""

    cores: tuple[float, ...]
    memory_used: int
    memory_total: int
    cards: tuple[CardUsage, ...] = ()


class MachineReader:
    """Takes readings of the machine; the first one of cores is 0."""

    def __init__(self) -> None:
        self._cards: tuple[CardUsage, ...] = ()
        self._asked = -CARDS_S
        self._smi = shutil.which("nvidia-smi") is not None
        psutil.cpu_percent(percpu=True)

    def read(self) -> MachineUsage:
        """Take one."""
        if self._smi and time.monotonic() - self._asked >= CARDS_S:
            self._asked = time.monotonic()
            self._cards = parse_cards(
                nvidia_smi("--query-gpu=name,utilization.gpu,memory.used,memory.total", "--format=csv,noheader,nounits")
            )
        memory = psutil.virtual_memory()
        cores = tuple(psutil.cpu_percent(percpu=True))
        return MachineUsage(cores, memory.total - memory.available, memory.total, self._cards)


def parse_cards(text: str) -> tuple[CardUsage, ...]:
    """Cards in the words of nvidia-smi: name, percent, MiB, MiB; lines with anything else are left out."""
    found = []
    for line in text.splitlines():
        name, *numbers = (word.strip() for word in line.split(","))
        try:
            busy, used, total = map(float, numbers)
        except ValueError:
            continue
        found.append(CardUsage(name, busy, int(used) << 20, int(total) << 20))
    return tuple(found)
