"""What nvidia-smi tells about a learner's cards: who else computes there, and whether something slows them down."""

import os
from collections.abc import Sequence
from dataclasses import dataclass

from rlz.system.gpus import VISIBLE, machine_cards, nvidia_smi

REASONS = {
    "hw_thermal_slowdown": "it is too hot",
    "sw_thermal_slowdown": "it is too hot",
    "hw_power_brake_slowdown": "its power supply asked for it",
}
"""Why a card lowers its clock, by the end of nvidia-smi's name for it. Not its power limit, where busy cards belong."""


GROUPS = ("clocks_event_reasons", "clocks_throttle_reasons")
"""nvidia-smi's names of these fields, since driver 535 and before. An unknown name makes it answer nothing."""


@dataclass(frozen=True)
class Cards:
    """Cards at one instant. `users`: other processes that compute there; `slowed`: by what, "" where by nothing."""

    users: int = 0
    slowed: str = ""


def look_at_cards(devices: Sequence[str], own: set[int]) -> Cards:
    """Ask nvidia-smi, which takes a tenth of a second and more.

    Parameters
    ----------
    devices : torch's names, such as cuda:0.
    own : process ids of the run's workers; what this process and they have started counts as the run's too.
    """
    import psutil

    helpers = {child.pid for child in psutil.Process().children(recursive=True)}
    cards = ",".join(_of_driver(device) for device in devices)
    return Cards(
        users=foreign(_ask(cards, "--query-compute-apps=pid"), own | helpers),
        slowed=next((slowed(text) for group in GROUPS if (text := _ask(cards, _reasons(group)))), ""),
    )


def foreign(text: str, own: set[int]) -> int:
    """Processes of a list of pids that are none of our own.

    In a container the list may hold the host's pids, by which we would count ourselves. The learner is on the card, so
    a list without any pid of ours is such a one and says nothing.
    """
    listed = {int(line) for line in text.split() if line.isdigit()}
    return len(listed - own) if listed & own else 0


def slowed(text: str) -> str:
    """What slows a card down, from lines of its temperature and, for each of `REASONS`, Active or not."""
    for line in text.splitlines():
        temperature, *active = (cell.strip() for cell in line.split(","))
        for name, state in zip(REASONS, active, strict=False):
            if state == "Active":
                at = f" ({temperature} degrees Celsius)" if temperature.isdigit() else ""
                return f"the GPU has lowered its clock: {REASONS[name]}{at}"
    return ""


def _of_driver(device: str) -> str:
    """Torch's name of a card as nvidia-smi knows it: number or UUID. A slice is asked by its card."""
    number = int(device.partition(":")[2] or 0)
    visible = [name.strip() for name in os.environ.get(VISIBLE, "").split(",") if name.strip()]
    name = visible[number] if number < len(visible) else str(number)
    if name.startswith("MIG-"):
        return next((str(card.number) for card in machine_cards() if card.uuid.startswith(name)), name)
    return name


def _reasons(group: str) -> str:
    return f"--query-gpu={','.join(['temperature.gpu', *(f'{group}.{name}' for name in REASONS)])}"


def _ask(cards: str, query: str) -> str:
    return nvidia_smi("-i", cards, query, "--format=csv,noheader,nounits", timeout=5)
