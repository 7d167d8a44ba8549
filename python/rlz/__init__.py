"""rlz: train deep-RL agents as fast as the machine allows.

`rlz.train(ALGORITHM, "Ant-v4")` trains, `rlz.load(RUN)` gives a trained policy. Everything here is loaded on first use:
`import rlz` costs almost nothing.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlz.acting import EpsilonGreedy
    from rlz.algorithms.base import Algorithm, Batch
    from rlz.algorithms.settings import NetworkSettings, ReplaySettings, RolloutSettings, Settings
    from rlz.algorithms.torch_algorithm import TorchAlgorithm
    from rlz.api import Result, evaluate, runs, train
    from rlz.config import RunConfig
    from rlz.errors import ConfigError
    from rlz.loaded_policy import load
    from rlz.options import option

__all__ = [
    "Algorithm",
    "Batch",
    "ConfigError",
    "EpsilonGreedy",
    "NetworkSettings",
    "ReplaySettings",
    "Result",
    "RolloutSettings",
    "RunConfig",
    "Settings",
    "TorchAlgorithm",
    "__version__",
    "evaluate",
    "load",
    "option",
    "runs",
    "train",
]

_HOME = {
    **dict.fromkeys(("Algorithm", "Batch"), "rlz.algorithms.base"),
    "EpsilonGreedy": "rlz.acting",
    "ConfigError": "rlz.errors",
    **dict.fromkeys(("NetworkSettings", "ReplaySettings", "RolloutSettings", "Settings"), "rlz.algorithms.settings"),
    "TorchAlgorithm": "rlz.algorithms.torch_algorithm",
    "RunConfig": "rlz.config",
    "load": "rlz.loaded_policy",
    **dict.fromkeys(("Result", "evaluate", "runs", "train"), "rlz.api"),
    "option": "rlz.options",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("rlz")
    if name in _HOME:
        from importlib import import_module

        from rlz.errors import check_platform

        if name in ("load", "train", "evaluate"):
            check_platform()
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'rlz' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
