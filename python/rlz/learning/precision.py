"""Precision of the networks' matrix products. Everything else of an update is float32 whatever is chosen here.

`bf16` is a property of the networks (`rlz.networks.mlp`), because it is part of what is computed; `tf32` is a switch of
torch's for the products of float32 tensors on a CUDA device.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from rlz.errors import CheckpointError, DeviceError
from rlz.learning.auto_precision import AMPERE, auto_precision


def use_precision(precision: str, devices: Iterable[torch.device], *, serial: bool = False) -> str:
    """Switch this process to `--precision`: what `auto` stands for, else the same name.

    Raises
    ------
    DeviceError
        A device cannot do what was asked for.
    """
    devices = list(devices)
    lacking = [_lack(device) for device in devices]
    tf32_missing = next((reason for reason, _ in lacking if reason), None)
    bf16_missing = next((reason for _, reason in lacking if reason), None)
    if precision == "auto":
        precision = auto_precision((capability(device) for device in devices), serial=serial)
    missing = {"tf32": tf32_missing, "bf16": bf16_missing}.get(precision)
    if missing:
        raise DeviceError(f"--precision {precision}: {missing}; use auto or fp32")
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    return precision


def check_resumed(precision: str, saved: str | None) -> None:
    """Refuse to go on in another precision than that of the checkpoint (None: it does not say).

    Raises
    ------
    CheckpointError
        They differ; names both.
    """
    if saved is not None and saved != precision:
        raise CheckpointError(
            f"the run was trained in {saved}, this would go on in {precision}: give --precision {saved}, or a device "
            "that has it"
        )


def _lack(device: torch.device) -> tuple[str | None, str | None]:
    """Why a device has no tf32, and why it has no bf16; None where it has."""
    found = capability(device)
    if found is None:
        return "the CPU has no tf32", None
    if found >= AMPERE:
        return None, None
    major, minor = found
    reason = f"{torch.cuda.get_device_name(device)} (compute capability {major}.{minor}) has neither tf32 nor bf16"
    return reason, reason


def capability(device: torch.device) -> tuple[int, int] | None:
    """Compute capability of a card; None for the CPU."""
    return None if device.type == "cpu" else torch.cuda.get_device_capability(device)
