import pytest

from rlz.errors import DeviceError
from rlz.system.device import check_device


def test_cuda_needs_a_driver(tmp_path):
    (tmp_path / "dev").mkdir()
    for name in ("cuda", "cuda:1"):
        with pytest.raises(DeviceError, match=f"--device {name}: this machine has no NVIDIA driver"):
            check_device(name, tmp_path)
    check_device("auto", tmp_path)
    check_device("cpu", tmp_path)
    (tmp_path / "dev" / "nvidiactl").touch()
    check_device("cuda", tmp_path)
