"""What the compiler of updates needs beside torch, and where it finds CUDA on a machine without NVIDIA's toolkit.

Torch's wheels bring the runtime library, its headers and, in Triton's, the headers that these include; the driver
brings `libcuda.so.1`. The compiler asks for a toolkit's folder (CUDA_HOME) and links with `-lcuda`, so such a folder is
put together from links. Imports no torch.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shlex
import shutil
import sysconfig
from collections.abc import Iterator
from pathlib import Path

RUNTIME_HEADER = "cuda_runtime_api.h"
HOST_HEADER = "crt/host_defines.h"
"""Included by the one above, and left out of the runtime's own wheel."""


def missing_tool(*, cuda: bool) -> str | None:
    """What keeps an update from being compiled, and the way out; None: nothing does.

    Parameters
    ----------
    cuda : it is to run on a card: Triton also builds a small C module for this Python.
    """
    if (name := _missing_compiler("CXX", ("g++",))) is not None:
        return f"there is no C++ compiler {name} (install g++, or set CXX)"
    if not cuda:
        return None
    if (name := _missing_compiler("CC", ("gcc", "clang"))) is not None:
        return f"there is no C compiler {name} (install gcc, or set CC)"
    include = Path(sysconfig.get_paths()["include"])
    if not (include / "Python.h").is_file():
        return f"there are no headers of Python in {include} (install python3-dev, or a Python from uv)"
    if _given_home() is None and (header := _missing_header()) is not None:
        return f"there is no CUDA header {header} (install nvidia-cuda-runtime and nvidia-cuda-crt, or set CUDA_HOME)"
    return None


def use_cuda(folder: Path) -> None:
    """Point this process's compiler to CUDA's headers and to the driver's library; before it is imported.

    Parameters
    ----------
    folder : empty, and there as long as the compiler runs. A CUDA_HOME of the user's stays.

    Raises
    ------
    OSError
        There is no driver.
    """
    libraries = folder / "lib64"
    libraries.mkdir()
    (libraries / "libcuda.so").symlink_to(driver_library())
    os.environ["LIBRARY_PATH"] = os.pathsep.join(filter(None, (str(libraries), os.environ.get("LIBRARY_PATH"))))
    if _given_home() is not None:
        return
    include = folder / "include"
    include.mkdir()
    for source in filter(Path.is_dir, _header_folders()):
        for entry in source.iterdir():
            if not (include / entry.name).is_symlink():  # the runtime's own come first
                (include / entry.name).symlink_to(entry)
    os.environ["CUDA_HOME"] = str(folder)


def driver_library() -> Path:
    """The driver's library, which the loader knows by its versioned name only. Raises OSError: there is none."""
    ctypes.CDLL("libcuda.so.1")
    for line in Path("/proc/self/maps").read_text().splitlines():
        place = line.partition("/")[2]
        if place.rpartition("/")[2].startswith("libcuda.so"):
            return Path("/" + place)
    raise OSError("libcuda.so.1 is loaded from nowhere")


def _missing_compiler(variable: str, names: tuple[str, ...]) -> str | None:
    given = shlex.split(os.environ.get(variable, ""))
    found = any(shutil.which(name) for name in (given[:1] or names))
    return None if found else " or ".join(given[:1] or names)


def _given_home() -> Path | None:
    """A toolkit that the user names, if it has the headers."""
    homes = (os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH"))
    return next((Path(home) for home in homes if home and (Path(home) / "include" / RUNTIME_HEADER).is_file()), None)


def _missing_header() -> str | None:
    folders = list(_header_folders())
    return next(
        (name for name in (RUNTIME_HEADER, HOST_HEADER) if not any((folder / name).is_file() for folder in folders)),
        None,
    )


def _header_folders() -> Iterator[Path]:
    """Folders of CUDA headers in wheels: the runtime's, those of other libraries, Triton's; a toolkit's last."""
    torch = importlib.util.find_spec("torch")
    assert torch is not None
    assert torch.origin is not None
    packages = Path(torch.origin).parent.parent
    found = sorted(packages.glob("nvidia/*/include"))
    yield from sorted(found, key=lambda folder: not (folder / RUNTIME_HEADER).is_file())
    triton = importlib.util.find_spec("triton")
    if triton is not None and triton.origin is not None:
        yield Path(triton.origin).parent / "backends" / "nvidia" / "include"
    if (nvcc := shutil.which("nvcc")) is not None:
        yield Path(nvcc).resolve().parent.parent / "include"
    yield Path("/usr/local/cuda/include")
