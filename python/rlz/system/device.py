"""Whether `--device` can work at all, without torch: before a folder is made or a process started."""

from pathlib import Path

from rlz.errors import DeviceError


def check_device(device: str, root: Path = Path("/")) -> None:
    """Refuse CUDA on a machine without an NVIDIA driver; which cards there are, the learner asks torch.

    Parameters
    ----------
    device : value of `--device`.
    root : where /dev is looked for.

    Raises
    ------
    DeviceError
        No driver: neither /dev/nvidiactl, nor /dev/dxg (WSL), nor /dev/nvhost-ctrl-gpu or /dev/nvmap (Jetson).
    """
    drivers = ("nvidiactl", "dxg", "nvhost-ctrl-gpu", "nvmap")
    if device.startswith("cuda") and not any((root / "dev" / name).exists() for name in drivers):
        raise DeviceError(f"--device {device}: this machine has no NVIDIA driver; use --device auto or cpu")
