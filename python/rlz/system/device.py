"""Whether `--device` can work at all, without torch: before a folder is made or a process started."""

from pathlib import Path

from rlz.errors import DeviceError

DRIVERS = ("nvidiactl", "dxg", "nvhost-ctrl-gpu", "nvmap")
"""In /dev: of a PC or server, of WSL, of Jetson."""


def check_device(device: str, root: Path = Path("/"), option: str = "--device") -> None:
    """Refuse CUDA on a machine without an NVIDIA driver; which cards there are, the learner asks torch.

    Parameters
    ----------
    device : value of the option.
    root : where /dev is looked for.

    Raises
    ------
    DeviceError
        No driver: neither /dev/nvidiactl, nor /dev/dxg (WSL), nor /dev/nvhost-ctrl-gpu or /dev/nvmap (Jetson).
    """
    if device.startswith("cuda") and not has_driver(root):
        raise DeviceError(f"{option} {device}: this machine has no NVIDIA driver; use {option} cpu")


def has_driver(root: Path = Path("/")) -> bool:
    """Whether this machine has an NVIDIA driver, so that there may be a card."""
    return any((root / "dev" / name).exists() for name in DRIVERS)
