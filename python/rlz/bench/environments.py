"""Environments of the peers: each library gets a venv of its own in the user's cache folder, made by uv.

A peer shares rlz's interpreter version and, as far as its own requirements allow, the exact versions of torch,
gymnasium and MuJoCo, so that a difference in speed is one of the libraries. What was installed in the end is recorded
with every result.
"""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from rlz.errors import ConfigError
from rlz.system.user_cache import user_cache

SHARED = ("torch", "gymnasium", "mujoco", "numpy")
"""Packages whose versions a peer takes over from rlz where it can, the most important first."""


@dataclass(frozen=True)
class Peer:
    """A library to compare with.

    Attributes
    ----------
    name : as on the command line.
    requirements : what its environment holds.
    recorded : packages whose versions stand in the result.
    workloads : those that it is measured in.
    adapter : its file in `peers/`, which says with which settings it is run and why; default: by its name.
    threads : whether it runs on a number of torch threads that is to be searched; else it takes what it wants.
    num_envs : numbers of environments to try.
    algos : algorithms that its adapter runs.
    shared : packages whose versions it takes over from rlz.
    """

    name: str
    requirements: tuple[str, ...]
    recorded: tuple[str, ...]
    workloads: tuple[str, ...]
    shared: tuple[str, ...] = SHARED
    adapter: str = ""
    threads: bool = True
    num_envs: tuple[int, ...] = (1, 4)
    algos: tuple[str, ...] = ("sac",)

    @property
    def script(self) -> str:
        """File of its adapter."""
        return self.adapter or f"{self.name}.py"


_ENVS = "gymnasium[mujoco,classic-control]"
_TORCH = ("gymnasium", "mujoco", "torch", "numpy")

PEERS = {
    peer.name: peer
    for peer in (
        Peer(
            "sb3",
            ("stable-baselines3==2.9.2", _ENVS, "torch"),
            ("stable-baselines3", *_TORCH),
            ("train", "sampling", "replay", "update", "inference", "score"),
            algos=("sac", "td3", "ddpg", "ppo"),
        ),
        Peer(
            "sbx",
            ("sbx-rl==0.28.0", "stable-baselines3==2.9.2", _ENVS, "torch"),
            ("sbx-rl", "stable-baselines3", "jax", *_TORCH),
            ("train", "sampling", "update"),
            adapter="sb3.py",
            threads=False,
            algos=("sac", "td3", "ddpg", "ppo"),
        ),
        Peer("cleanrl", (_ENVS, "torch"), _TORCH, ("train", "score"), num_envs=(1,)),
        Peer(
            "rllib",
            ("ray[rllib]==2.60.0", _ENVS, "torch"),
            ("ray", *_TORCH),
            ("train",),
            threads=False,
            algos=("sac", "ppo"),
            adapter="ray_rllib.py",
        ),
        # Gymnasium 1 and numpy 2 are too new for it; MuJoCo 3 works with its Gymnasium, except for drawing.
        Peer(
            "sample-factory",
            ("sample-factory==2.1.1", "gymnasium[classic-control]", "mujoco", "imageio"),
            ("sample-factory", "gymnasium", "mujoco", "torch", "numpy"),
            ("train",),
            ("torch", "mujoco"),
            adapter="ppo.py",
            threads=False,
            num_envs=(8,),
            algos=("ppo", "appo"),
        ),
        Peer(
            "tianshou",
            ("tianshou==2.0.1", _ENVS, "torch"),
            ("tianshou", *_TORCH),
            ("train",),
            adapter="tianshou_sac.py",
        ),
        Peer(
            "rltools",
            (
                "rltools==2.2.1",
                "mkl==2026.2.0",
                "mkl-include==2026.2.0",
                _ENVS,
            ),  # without MKL it has loops of its own for its products
            ("rltools", "mkl", "gymnasium", "numpy"),
            ("train",),
            shared=("gymnasium", "numpy"),
            threads=False,
            num_envs=(1,),
            adapter="rltools_sac.py",
        ),
        Peer(
            "gymnasium",
            (_ENVS,),
            ("gymnasium", "mujoco", "numpy"),
            ("sampling",),
            shared=("gymnasium", "mujoco", "numpy"),
            threads=False,
            num_envs=(1, 4, 16),
            adapter="gymnasium_vector.py",
        ),
        Peer(
            "envpool",
            ("envpool==1.2.5",),
            ("envpool", "gymnasium", "numpy"),
            ("sampling",),
            shared=("gymnasium", "numpy"),
            threads=False,
            num_envs=(1, 4, 16),
            adapter="envpool_vector.py",
        ),
        Peer("cpprb", ("cpprb==11.0.0",), ("cpprb", "numpy"), ("replay",), ("numpy",), adapter="buffers.py"),
        Peer(
            "torchrl",
            ("torchrl==0.14.1",),
            ("torchrl", "tensordict", "torch", "numpy"),
            ("replay",),
            ("torch", "numpy"),
            adapter="buffers.py",
        ),
        Peer(
            "faster-fifo",
            ("faster-fifo==1.5.2", "numpy"),
            ("faster-fifo", "numpy"),
            ("transport",),
            ("numpy",),
            adapter="fifo.py",
        ),
    )
}


PEER_SCRIPTS = Path(__file__).parent / "peers"
"""Programs that run in the peers' environments."""


def find_uv(checkout: Path | None = None) -> str:
    """Path of uv: $UV, PATH, beside this interpreter, or `.uv/bin/uv` of the checkout (where `make` puts it).

    Raises
    ------
    ConfigError
        When there is none.
    """
    root = checkout or Path(__file__).resolve().parents[3]
    candidates = [os.environ.get("UV"), shutil.which("uv"), Path(sys.executable).parent / "uv", root / ".uv/bin/uv"]
    for candidate in candidates:
        if candidate and os.access(candidate, os.X_OK):
            return str(candidate)
    raise ConfigError("peers need uv to make their environments: install it (pip install uv), or set UV to its path")


def cache_folder() -> Path:
    """Folder for the peers' environments: $XDG_CACHE_HOME/rlz/peers, by default under ~/.cache."""
    return user_cache("peers")


def peer_python(name: str, *, log: Path | None = None) -> Path:
    """Interpreter of a peer's environment; makes the environment on first use (minutes, and gigabytes with torch).

    Parameters
    ----------
    name : a key of `PEERS`.
    log : file that uv's output is added to.

    Raises
    ------
    ConfigError
        When the name is unknown, uv is missing, or no combination of versions can be installed.
    """
    if name not in PEERS:
        raise ConfigError(f"unknown peer {name!r}; known: {', '.join(PEERS)}")
    peer, pins, folder = PEERS[name], _pins(name), _folder(name)
    python = folder / "bin" / "python"
    if _complete(folder):
        return python
    uv = find_uv()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f".{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process may be making it
        if not _complete(folder):
            _make(uv, peer, pins, folder, log)
    return python


def _make(uv: str, peer: Peer, pins: dict[str, str], folder: Path, log: Path | None) -> None:
    python = folder / "bin" / "python"
    shutil.rmtree(folder, ignore_errors=True)
    errors = _run([uv, "venv", "--quiet", "--python", sys.executable, str(folder)], log)
    if errors:
        raise ConfigError(f"uv could not make the environment of {peer.name}: {errors}")
    # Give up the pins from the least important one on, until the peer's own requirements can be met.
    for count in range(len(pins), -1, -1):
        pinned = [f"{package}=={pins[package]}" for package in list(pins)[:count]]
        errors = _run([uv, "pip", "install", "--quiet", "--python", str(python), *peer.requirements, *pinned], log)
        if not errors:
            (folder / "complete").touch()
            return
    raise ConfigError(f"uv could not install {peer.name}: {errors}")


def installed_peers() -> list[str]:
    """Names of the peers whose environment has been made."""
    return [name for name in PEERS if _complete(_folder(name))]


def _pins(name: str) -> dict[str, str]:
    return {package: found for package in PEERS[name].shared if (found := _version(package))}


def _folder(name: str) -> Path:
    key = json.dumps([PEERS[name].requirements, _pins(name), sys.version_info[:3]])
    return cache_folder() / f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:12]}"


def _complete(folder: Path) -> bool:
    return (folder / "complete").exists() and (folder / "bin" / "python").exists()


def _run(command: list[str], log: Path | None) -> str:
    """Run uv; returns the end of what it printed when it failed, else ""."""
    environment = {key: value for key, value in os.environ.items() if key not in ("VIRTUAL_ENV", "PYTHONPATH")}
    # Not in the present folder: in a checkout uv would hold a peer's own dependencies to the versions of its pyproject.
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=cache_folder(), check=False)
    if log is not None:
        with log.open("a", encoding="utf-8") as file:
            file.write(f"$ {' '.join(command)}\n{done.stdout}{done.stderr}\n")
    return "" if done.returncode == 0 else (done.stderr or done.stdout).strip()[-2000:] or f"status {done.returncode}"


def _version(package: str) -> str:
    try:
        return version(package).partition("+")[0]
    except PackageNotFoundError:
        return ""
