"""NVIDIA's cards that this process may use and the links between them, from nvidia-smi: no torch, no CUDA context."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Gpu:
    """One GPU as nvidia-smi tells it; memory in bytes."""

    name: str
    memory: int
    compute_capability: str
    driver: str

    @property
    def capability(self) -> tuple[int, int]:
        """Compute capability as numbers; (0, 0): not known."""
        major, _, minor = self.compute_capability.partition(".")
        return (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else (0, 0)


@dataclass(frozen=True)
class GpuLink:
    """How two GPUs, by index, reach each other, in nvidia-smi's words: NV18 (NVLink), PIX, PHB, SYS, ..."""

    first: int
    second: int
    kind: str


class Card(NamedTuple):
    """A GPU of the machine, with nvidia-smi's names for it."""

    number: int
    uuid: str
    gpu: Gpu


def gpus() -> tuple[tuple[Gpu, ...], tuple[GpuLink, ...]]:
    """Cards in CUDA's order (cuda:0 first), and their links by that order. Takes an nvidia-smi call, or two."""
    query = "--query-gpu=index,uuid,name,memory.total,compute_cap,driver_version"
    cards = visible(parse_cards(nvidia_smi(query, "--format=csv,noheader,nounits")), os.environ.get(VISIBLE))
    links = parse_links(nvidia_smi("topo", "-m")) if len(cards) > 1 else ()
    return tuple(card.gpu for card in cards), links_between(cards, links)


def visible(cards: Sequence[Card], wanted: str | None) -> list[Card]:
    """The cards that CUDA shows a process, in its order.

    As in CUDA's programming guide: indices, or UUIDs that may be cut short, up to the first entry that is none; a card
    that is named twice leaves no card at all. A slice of a card (MIG-...) is not known here. CUDA counts the fastest
    card first unless CUDA_DEVICE_ORDER=PCI_BUS_ID, nvidia-smi by slot: the same where all cards are of one model.

    Parameters
    ----------
    cards : of the machine.
    wanted : CUDA_VISIBLE_DEVICES; None: not set.
    """
    if wanted is None:
        return list(cards)
    found: list[Card] = []
    for entry in (part.strip() for part in wanted.split(",")):
        named = [
            card
            for card in cards
            if (entry.isdecimal() and card.number == int(entry))
            or (entry.startswith("GPU-") and card.uuid.startswith(entry))
        ]
        if len(named) != 1:
            break
        found += named
    return found if len(set(found)) == len(found) else []


def parse_cards(text: str) -> list[Card]:
    """Read nvidia-smi's CSV (index, UUID, name, MiB, compute capability, driver); what does not fit is left out."""
    cards = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == 6 and cells[0].isdecimal():
            mib = int(cells[3]) if cells[3].isdecimal() else 0  # [N/A] on cards that share the host's memory
            cards.append(Card(int(cells[0]), cells[1], Gpu(cells[2], mib * 1024 * 1024, *cells[4:])))
    return cards


def parse_links(text: str) -> tuple[GpuLink, ...]:
    """Read the matrix of `nvidia-smi topo -m`; whatever else it prints is left out."""
    rows = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.replace("\x1b[4m", "").replace("\x1b[0m", "").split("\t")]
        if cells[0].startswith("GPU") and cells[0][3:].isdigit() and "X" in cells:
            rows[int(cells[0][3:])] = cells[1:]
    return tuple(
        GpuLink(first, second, rows[first][second])
        for first in sorted(rows)
        for second in sorted(rows)
        if first < second < len(rows[first])
    )


def links_between(cards: Sequence[Card], links: Sequence[GpuLink]) -> tuple[GpuLink, ...]:
    """Links of some of the machine's cards, by their place among these."""
    kinds = {frozenset((link.first, link.second)): link.kind for link in links}
    return tuple(
        GpuLink(first, second, kind)
        for first, one in enumerate(cards)
        for second, other in enumerate(cards)
        if first < second and (kind := kinds.get(frozenset((one.number, other.number)))) is not None
    )


def nvidia_smi(*arguments: str, timeout: float = 20.0) -> str:
    """What nvidia-smi prints; "" where it is not there, fails, or takes longer (s)."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    try:
        done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=timeout, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
