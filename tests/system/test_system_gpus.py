"""Cards as nvidia-smi tells them, and which of them a process may use."""

import re
import shutil
from pathlib import Path

import pytest

from rlz.system.detect import detect
from rlz.system.gpus import VISIBLE, Gpu, GpuLink, machine_cards, parse_cards, parse_links, parse_slices, visible

CARDS = (
    "0, GPU-aa00-1, H100, 81559, 9.0, 570.1\n"
    "1, GPU-aa11-2, T4, 1024, 7.5, 570.1\n"
    "broken line\n"
    "2, GPU-bb22-3, A10, 2048, 8.6, 570.1\n"
    "[N/A], GPU-cc33-4, Name, 2048, 9.0, 1\n"
)

LINKS = (
    "\t\x1b[4mGPU0\tGPU1\tGPU2\tCPU Affinity\x1b[0m\n"
    "GPU0\t X \tNV18\tSYS\t0-31\nGPU1\tNV18\t X \tPHB\t0-31\nGPU2\tSYS\tPHB\t X \t0-31\n\nLegend:\n  X = Self\n"
)


SLICES = (
    "GPU 0: H100 (UUID: GPU-aa00-1)\n"
    "GPU 1: T4 (UUID: GPU-aa11-2)\n"
    "  MIG 3g.20gb     Device  0: (UUID: MIG-1111-2222)\n"
    "  MIG 1g.10gb+me  Device  1: (UUID: MIG-2222-3333)\n"
    "GPU 7: Unknown (UUID: GPU-ee)\n"
    "  MIG 1g.5gb      Device  0: (UUID: MIG-GPU-ee/7/0)\n"
)


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stands for nvidia-smi on a machine of three cards."""
    (tmp_path / "cards").write_text(CARDS)
    (tmp_path / "links").write_text(LINKS)
    (tmp_path / "slices").write_text(SLICES)
    program = tmp_path / "nvidia-smi"
    (tmp_path / "fewer").write_text(re.sub(r", [0-9.]+, 570.1", ", 570.1", CARDS))
    program.write_text(
        f"""#!/bin/sh
cd {tmp_path}
case "$1" in
  topo) cat links ;;
  -L) cat slices ;;
  *compute_cap*) test -e old && exit 6; cat cards ;;
  *) cat fewer ;;
esac
"""
    )
    program.chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda name: str(program))
    monkeypatch.delenv(VISIBLE, raising=False)


def test_cards_from_nvidia_smi() -> None:
    cards = parse_cards(CARDS)
    assert [card.number for card in cards] == [0, 1, 2]
    assert cards[0].gpu == Gpu("H100", 81559 * 2**20, "9.0", "570.1")
    shared = parse_cards("0, GPU-dd44-5, GB10, [N/A], 12.1, 580.1\n")  # a card that has no memory of its own
    assert shared[0].gpu == Gpu("GB10", 0, "12.1", "580.1")


@pytest.mark.parametrize(
    ("wanted", "indices"),
    [
        (None, [0, 1, 2]),
        ("0,1,2", [0, 1, 2]),
        ("2,0", [2, 0]),
        (" 1 , 2 ", [1, 2]),
        ("", []),
        ("-1", []),
        ("1,-1,2", [1]),
        ("0,7,1", [0]),
        ("GPU-bb,GPU-aa00", [2, 0]),
        ("GPU-aa", []),  # not clear which
        ("GPU-none,0", []),
        ("GPU-bb22-3,0", [2, 0]),
        ("0,0", []),
        ("MIG-1234", []),
        ("MIG-2222", [1]),
        ("MIG-1111,GPU-aa00", [1, 0]),
        ("x", []),
    ],
)
def test_only_cards_that_cuda_shows_this_process_are_there(wanted: str | None, indices: list[int]) -> None:
    cards = parse_cards(CARDS)
    assert [card.number for card in visible(cards + parse_slices(SLICES, cards), wanted)] == indices


@pytest.mark.usefixtures("smi")
def test_the_machine_has_the_cards_that_may_be_used_and_is_another_one_without_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = detect()
    assert [gpu.name for gpu in whole.gpus] == ["H100", "T4", "A10"]
    assert whole.gpu_links == (GpuLink(0, 1, "NV18"), GpuLink(0, 2, "SYS"), GpuLink(1, 2, "PHB"))
    monkeypatch.setenv(VISIBLE, "2,1")
    part = detect()
    assert [gpu.name for gpu in part.gpus] == ["A10", "T4"]
    assert part.gpu_links == (GpuLink(0, 1, "PHB"),)
    monkeypatch.setenv(VISIBLE, "")
    none = detect()
    assert (none.gpus, none.gpu_links) == ((), ())
    assert len({machine.fingerprint() for machine in (whole, part, none)}) == 3


def test_links_of_gpus() -> None:
    links = [(link.first, link.second, link.kind) for link in parse_links(LINKS)]
    assert links == [(0, 1, "NV18"), (0, 2, "SYS"), (1, 2, "PHB")]
    assert parse_links("") == ()


def test_compute_capability_as_numbers() -> None:
    assert [Gpu("", 0, text, "").capability for text in ("9.0", "12.1", "[N/A]", "")] == [
        (9, 0),
        (12, 1),
        (0, 0),
        (0, 0),
    ]


def test_slices_of_cards() -> None:
    slices = parse_slices(SLICES, parse_cards(CARDS))
    assert [(card.number, card.uuid, card.gpu.name, card.gpu.memory >> 30) for card in slices] == [
        (1, "MIG-1111-2222", "T4 MIG 3g.20gb", 20),
        (1, "MIG-2222-3333", "T4 MIG 1g.10gb+me", 10),
    ]
    assert slices[0].gpu.capability == (7, 5)


@pytest.mark.usefixtures("smi")
def test_a_process_on_a_slice_has_that_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VISIBLE, "MIG-2222-3333")
    assert [(gpu.name, gpu.memory >> 30) for gpu in detect().gpus] == [("T4 MIG 1g.10gb+me", 10)]


@pytest.mark.usefixtures("smi")
def test_drivers_that_do_not_know_the_compute_capability(tmp_path: Path) -> None:
    (tmp_path / "old").touch()
    found = machine_cards()
    assert [card.gpu.name for card in found] == ["H100", "T4", "A10"]
    assert {(card.gpu.capability, card.gpu.driver) for card in found} == {((0, 0), "570.1")}
