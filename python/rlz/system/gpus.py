"""NVIDIA's cards that this process may use and the links between them, from nvidia-smi: no torch, no CUDA context."""

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
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
    cards = visible(machine_cards(), os.environ.get(VISIBLE))
    links = parse_links(nvidia_smi("topo", "-m")) if len(cards) > 1 else ()
    return tuple(card.gpu for card in cards), links_between(cards, links)


def machine_cards() -> list[Card]:
    """Every card of the machine, and the slices (MIG) of those that are cut into some."""
    for capability in ("compute_cap,", ""):  # drivers before 510 do not know it, and answer nothing at all
        query = f"--query-gpu=index,uuid,name,memory.total,{capability}driver_version"
        if cards := parse_cards(nvidia_smi(query, "--format=csv,noheader,nounits")):
            break
    wanted = os.environ.get(VISIBLE, "")
    return cards + (parse_slices(nvidia_smi("-L"), cards) if "MIG-" in wanted else [])


def visible(cards: Sequence[Card], wanted: str | None) -> list[Card]:
    """The cards that CUDA shows a process, in its order.

    As in CUDA's programming guide: indices, or UUIDs that may be cut short, up to the first entry that is none; a card
    that is named twice leaves no card at all. A slice of a card (MIG-...) is a card. CUDA counts the fastest card
    first unless CUDA_DEVICE_ORDER=PCI_BUS_ID, nvidia-smi by slot: the same where all cards are of one model.

    Parameters
    ----------
    cards : of the machine.
    wanted : CUDA_VISIBLE_DEVICES; None: not set.
    """
    if wanted is None:
        return [card for card in cards if not card.uuid.startswith("MIG-")]
    found: list[Card] = []
    for entry in (part.strip() for part in wanted.split(",")):
        named = [
            card
            for card in cards
            if (entry.isdecimal() and card.number == int(entry) and card.uuid.startswith("GPU-"))
            or (entry.startswith(("GPU-", "MIG-")) and card.uuid.startswith(entry))
        ]
        if len(named) != 1:
            break
        found += named
    return found if len(set(found)) == len(found) else []


def parse_cards(text: str) -> list[Card]:
    """Read nvidia-smi's CSV: index, UUID, name, MiB, compute capability where it is known, driver.

    What does not fit is left out.
    """
    cards = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) in (5, 6) and cells[0].isdecimal():
            mib = int(cells[3]) if cells[3].isdecimal() else 0  # [N/A] on cards that share the host's memory
            number, uuid, name, driver = cells[0], cells[1], cells[2], cells[-1]
            capability = cells[4] if len(cells) == 6 else ""
            cards.append(Card(int(number), uuid, Gpu(name, mib * 1024 * 1024, capability, driver)))
    return cards


SLICE = re.compile(r"MIG (\S*?(\d+)gb\S*)\s.*\(UUID: (MIG-[^)]+)\)")
"""A line of `nvidia-smi -L`: profile, its memory in GiB, name of the slice."""


def parse_slices(text: str, cards: Sequence[Card]) -> list[Card]:
    """Slices from `nvidia-smi -L`, each with the number of the card above it and the memory of its profile."""
    found: list[Card] = []
    above: Card | None = None
    for line in text.splitlines():
        if line.startswith("GPU "):
            above = next((card for card in cards if f"(UUID: {card.uuid})" in line), None)
        elif (slice_ := SLICE.search(line)) is not None and above is not None:
            profile, memory, uuid = slice_.groups()
            gpu = replace(above.gpu, name=f"{above.gpu.name} MIG {profile}", memory=int(memory) * 2**30)
            found.append(Card(above.number, uuid, gpu))
    return found


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
