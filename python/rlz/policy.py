"""Use a trained policy: `rlz.load(RUN)` needs neither torch nor the code that trained it.

A folder holds a policy when it has two files, which every checkpoint and `checkpoints/best` have:

- `policy.safetensors`: the actor's tensors, named and shaped as `rlz.networks.spec.actor_manifest` says.
- `policy.json`: `{"format": 1, "algo", "actor": arguments of the native policy, "env_spec": EnvSpec,
  "env": {"id", "kwargs", "wrapper", "obs_dtype", "max_episode_steps"}, "version", "env_steps"}`.
"""

import json
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rlz._native import Policy as NativePolicy
from rlz.config.literals import encode
from rlz.envs import EnvSpec, actions_of
from rlz.errors import CheckpointError
from rlz.networks.spec import actor_manifest

if TYPE_CHECKING:
    from rlz.config import RunConfig

FORMAT = 1
_POLICY_JSON = "policy.json"
_POLICY_TENSORS = "policy.safetensors"


class Policy:
    """A trained policy of one environment. Make one with `rlz.load`.

    Attributes
    ----------
    path : the folder it was read from.
    spec : `EnvSpec` of the environment it acts in.
    algo : the algorithm that trained it.
    env_steps : env steps of the run when these parameters were published.
    version : their version in that run.
    """

    def __init__(
        self, path: Path, description: dict[str, Any], parameters: NDArray[np.uint8], seed: int | None
    ) -> None:
        self.path = path
        self.spec = EnvSpec.from_json(description["env_spec"])
        self.algo = str(description["algo"])
        self.env_steps = int(description["env_steps"])
        self.version = int(description["version"])
        self._env = dict(description["env"])
        words = np.random.SeedSequence(seed).generate_state(4, np.uint64)
        self._native = NativePolicy(**description["actor"], seed=[int(word) for word in words])
        self._native.load(parameters)
        self._actions = actions_of(self.spec)

    @property
    def native(self) -> NativePolicy:
        """The actor itself, for callers that keep their own arrays."""
        return self._native

    def predict(self, obs: ArrayLike, deterministic: bool = True) -> NDArray[Any]:
        """Actions for one observation or for a batch.

        Parameters
        ----------
        obs : real numbers of shape `spec.obs_shape`, or [n, *spec.obs_shape].
        deterministic : take the mean of the distribution; False draws from it.

        Returns
        -------
        Actions in the environment's own units and dtype: `spec.action_shape`, or [n, *spec.action_shape].

        Raises
        ------
        ValueError
            When the shape fits neither.
        TypeError
            When `obs` does not hold real numbers.
        """
        array = np.asarray(obs)
        if array.dtype.kind not in "fiub":
            raise TypeError(f"obs must hold real numbers, got dtype {array.dtype}")
        shape = self.spec.obs_shape
        single = array.shape == shape
        if not single and array.shape[1:] != shape:
            raise ValueError(
                f"obs has shape {array.shape}; {self.spec.env_id} needs {shape}, or (n, *{shape}) for a batch"
            )
        count = 1 if single else len(array)
        rows = np.ascontiguousarray(array.reshape(count, self.spec.obs_dim), dtype=np.float32)
        flat = np.empty((len(rows), self.spec.action_dim), np.float32)
        if not len(rows):
            return np.empty((0, *self.spec.action_shape), self.spec.action_dtype)
        self._native.act(rows, flat, deterministic=deterministic)
        actions = [self._actions.to_env(row) for row in flat]
        return actions[0] if single else np.stack(actions)

    def make_env(self, **kwargs: Any) -> Any:
        """The environment that it was trained in (same id, arguments and wrappers), as a `gymnasium.Env`.

        `kwargs` are added to the arguments of the run, for instance `render_mode="rgb_array"` or
        `max_episode_steps=500`.
        """
        from rlz import envs

        return envs.make_env(self._env, **kwargs)


def load(run: str | Path, checkpoint: str | None = None, *, seed: int | None = None) -> Policy:
    """Load the policy of a run.

    Parameters
    ----------
    run : run folder (or the name of one under `runs/`), or a folder that holds the policy itself.
    checkpoint : "best", "latest", or the name of a folder in `checkpoints/`; default: "best" where the run has one
        (it was evaluated), else "latest".
    seed : of `predict(..., deterministic=False)`; default: a new one each time.

    Raises
    ------
    CheckpointError
        When the folder is no run, has no such checkpoint, or its files are broken.
    """
    folder = find_policy(run, checkpoint)
    description = _read_description(folder)
    try:
        return Policy(folder, description, _read_parameters(folder, description), seed)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{folder / _POLICY_JSON} is broken: {type(error).__name__}: {error}") from error


def find_policy(run: str | Path, checkpoint: str | None = None) -> Path:
    """The folder with the two policy files that `load` reads; raises CheckpointError."""
    folder = Path(run)
    if not folder.exists() and (Path("runs") / folder).exists():
        folder = Path("runs") / folder
    if not folder.is_dir():
        what = "it is a file" if folder.exists() else "there is no such folder"
        raise CheckpointError(f"{run} is no run: {what}. `rlz runs` lists the runs.")
    if checkpoint is None and (folder / _POLICY_JSON).is_file():
        return folder
    if not (folder / "config.toml").is_file() and not (folder / "checkpoints").is_dir():
        raise CheckpointError(f"{run} is no run: it has no config.toml. `rlz runs` lists the runs.")
    checkpoints = folder / "checkpoints"
    names = sorted(child.name for child in checkpoints.glob("[!.]*") if child.is_dir())
    wanted = [checkpoint] if checkpoint is not None else ["best", "latest"]
    for name in wanted:
        if (checkpoints / name / _POLICY_JSON).is_file():
            return checkpoints / name
    if not names:
        raise CheckpointError(f"{run} has no checkpoint yet (no folder in {checkpoints}).")
    raise CheckpointError(f"{run} has no checkpoint {' or '.join(wanted)!r}; it has: {', '.join(names)}")


def describe(
    config: "RunConfig", env_spec: EnvSpec, actor: dict[str, Any], *, version: int, env_steps: int
) -> dict[str, Any]:
    """Contents of `policy.json`, for whoever writes a checkpoint."""
    return {
        "format": FORMAT,
        "algo": config.algo,
        "actor": actor,
        "env_spec": env_spec.to_json(),
        "env": {
            "id": config.env,
            "kwargs": encode(config.env_kwargs),
            "wrapper": list(config.wrapper),
            "obs_dtype": config.obs_dtype,
            "max_episode_steps": config.max_episode_steps,
        },
        "version": version,
        "env_steps": env_steps,
    }


def split_parameters(actor: dict[str, Any], parameters: NDArray[np.uint8]) -> dict[str, NDArray[np.float32]]:
    """Views of a packed actor (as published) by tensor name, for `safetensors.numpy.save_file`."""
    flat = parameters.view(np.float32)
    tensors, start = {}, 0
    for name, _, shape in actor_manifest(actor):
        size = int(np.prod(shape))
        tensors[name] = flat[start : start + size].reshape(shape)
        start += size
    if start != flat.size:
        raise ValueError(f"the packed actor has {flat.size} numbers, its manifest {start}")
    return tensors


def _read_description(folder: Path) -> dict[str, Any]:
    path = folder / _POLICY_JSON
    try:
        description = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    if not isinstance(description, dict):
        raise CheckpointError(f"{path} is broken: it holds a {type(description).__name__}")
    missing = {"algo", "actor", "env_spec", "env", "version", "env_steps"} - set(description)
    if missing:
        raise CheckpointError(f"{path} lacks {', '.join(sorted(missing))}")
    if description.get("format") != FORMAT:
        raise CheckpointError(f"{path} has format {description.get('format')}, this rlz reads format {FORMAT}")
    return dict(description)


def _read_parameters(folder: Path, description: dict[str, Any]) -> NDArray[np.uint8]:
    from safetensors import SafetensorError
    from safetensors.numpy import load

    path = folder / _POLICY_TENSORS
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error
    crc32 = zlib.crc32(data)
    if description.get("crc32", crc32) != crc32:  # older policies have none
        raise CheckpointError(f"{path} is damaged: its CRC-32 is {crc32}, expected {description['crc32']}")
    try:
        tensors = load(data)
    except SafetensorError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    packed = []
    for name, _, shape in actor_manifest(description["actor"]):
        tensor = tensors.get(name)
        if tensor is None or tensor.shape != tuple(shape) or tensor.dtype != np.float32:
            got = "nothing" if tensor is None else f"{tensor.dtype}{list(tensor.shape)}"
            raise CheckpointError(f"{path}: tensor {name!r} must be float32{list(shape)}, got {got}")
        packed.append(np.ascontiguousarray(tensor).reshape(-1))
    return np.concatenate(packed).view(np.uint8)
