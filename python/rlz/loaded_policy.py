"""Use a trained policy: `rlz.load(RUN)` needs no torch, unless what acts is a torch module of a user's own.

A folder holds a policy when it has two files, which every checkpoint and `checkpoints/best` have:

- `policy.safetensors`: the tensors of what acts, named and shaped as its manifest says.
- `policy.json`: `{"format": 2, "algo", "policy": PolicySpec, "env_spec": EnvSpec,
  "env": {"id", "kwargs", "wrapper", "obs_dtype", "max_episode_steps", "index"}, "version", "env_steps"}`. Format 1 had
  "actor" in the place of "policy": the arguments of the native policy.
"""

import json
import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rlz.acting import Policy as Acting
from rlz.acting import Rule, as_rule, make_policy
from rlz.answers import Field, PolicySpec
from rlz.dtypes import numpy_dtype
from rlz.envs import EnvSpec, actions_of
from rlz.envs.instances import spare_index
from rlz.errors import CheckpointError, ConfigError, EnvError
from rlz.networks.spec import actor_manifest, normalized
from rlz.options.literals import encode
from rlz.records.runs import find_run
from rlz.references import label, mark, marked

if TYPE_CHECKING:
    from rlz.config import RunConfig

FORMAT = 2
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
        self,
        path: Path,
        description: dict[str, Any],
        parameters: NDArray[np.uint8],
        seed: int | None,
        spec: PolicySpec | None = None,
    ) -> None:
        self.path = path
        self.spec = EnvSpec.from_json(description["env_spec"])
        self.algo = str(description["algo"])
        self.env_steps = int(description["env_steps"])
        self.version = int(description["version"])
        self._env = dict(description["env"])
        self._acting = make_policy(spec or policy_spec(description), np.random.SeedSequence(seed))
        self._acting.load(parameters)
        self._actions = actions_of(self.spec)

    @property
    def acting(self) -> Acting:
        """What acts itself, for callers that keep their own arrays."""
        return self._acting

    def predict(self, obs: ArrayLike, deterministic: bool = True) -> NDArray[Any]:
        """Actions for one observation or for a batch.

        Parameters
        ----------
        obs : real numbers of shape `spec.obs_shape`, or [n, *spec.obs_shape].
        deterministic : the action of evaluations; False explores as training does at its end.

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
        flat = np.empty((len(rows), self.spec.action_dim), self.spec.row_action_dtype)
        if not len(rows):
            return np.empty((0, *self.spec.action_shape), self.spec.action_dtype)
        self._acting.act(rows, flat, deterministic=deterministic)
        actions = [self._actions.to_env(row) for row in flat]
        return actions[0] if single else np.stack(actions)

    def make_env(self, **kwargs: Any) -> Any:
        """The environment that it was trained in (same id, arguments and wrappers), as a `gymnasium.Env`.

        `kwargs` are added to the arguments of the run, for instance `render_mode="rgb_array"` or
        `max_episode_steps=500`.
        """
        from rlz import envs

        try:
            known = marked(self._env["id"])
        except ConfigError as error:
            raise EnvError(f"The environment of {self.path} cannot be made: {error}") from error
        return envs.make_env({**self._env, "id": known}, **kwargs)


def load(
    run: str | Path,
    checkpoint: str | None = None,
    *,
    seed: int | None = None,
    acting: Rule | Callable[[EnvSpec], Any] | None = None,
) -> Policy:
    """Load the policy of a run.

    Parameters
    ----------
    run : run as `rlz` takes it (folder, name, "last"), or a folder that holds the policy itself.
    checkpoint : "best", "latest", or the name of a folder in `checkpoints/`; default: "best" where the run has one
        (it was evaluated), else "latest".
    seed : of `predict(..., deterministic=False)`; default: a new one each time.
    acting : the class of modules, or the rule, that acts; needed where the run's own cannot be imported here, because
        its file has moved or it was made in a notebook.

    Raises
    ------
    CheckpointError
        When the folder is no run, has no such checkpoint, or its files are broken.
    """
    folder = find_policy(run, checkpoint)
    description = _read_description(folder)
    try:
        spec = policy_spec(description) if acting is None else _given(acting, description)
        return Policy(folder, description, read_parameters(folder, description, spec.manifest), seed, spec)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{folder / _POLICY_JSON} is broken: {type(error).__name__}: {error}") from error
    except ConfigError as error:
        raise CheckpointError(f"{error} What acts can be given: rlz.load({str(run)!r}, acting=Net)") from error


def find_policy(run: str | Path, checkpoint: str | None = None) -> Path:
    """The folder with the two policy files that `load` reads; raises CheckpointError."""
    if checkpoint is None and (Path(run) / _POLICY_JSON).is_file():
        return Path(run)
    checkpoints = Path(run) / "checkpoints"
    if not checkpoints.is_dir():
        checkpoints = find_run(run) / "checkpoints"
    names = sorted(child.name for child in checkpoints.glob("[!.]*") if child.is_dir())
    wanted = [checkpoint] if checkpoint is not None else ["best", "latest"]
    for name in wanted:
        if (checkpoints / name / _POLICY_JSON).is_file():
            return checkpoints / name
    if not names:
        raise CheckpointError(f"{run} has no checkpoint yet (no folder in {checkpoints}).")
    raise CheckpointError(f"{run} has no checkpoint {' or '.join(wanted)!r}; it has: {', '.join(names)}")


def describe(
    config: "RunConfig", env_spec: EnvSpec, policy: PolicySpec, *, version: int, env_steps: int
) -> dict[str, Any]:
    """Contents of `policy.json`, for whoever writes a checkpoint. Never holds code: a pickle becomes its mark alone."""
    network = {key: mark(value) if isinstance(value, str) else value for key, value in policy.network.items()}
    return {
        "format": FORMAT,
        "algo": label(config.algo),
        "policy": {**asdict(policy), "network": network},
        "env_spec": env_spec.to_json(),
        "env": {
            "id": mark(config.env),
            "kwargs": encode(config.env_kwargs),
            "wrapper": list(config.wrapper),
            "obs_dtype": config.obs_dtype,
            "max_episode_steps": config.max_episode_steps,
            "index": spare_index(config),
        },
        "version": version,
        "env_steps": env_steps,
    }


def split_parameters(manifest: Sequence[Field], parameters: NDArray[np.uint8]) -> dict[str, NDArray[Any]]:
    """Packed parameters (as published) by tensor name, for `safetensors.numpy.save`."""
    tensors, start = {}, 0
    for name, native, shape in manifest:
        dtype = numpy_dtype(native)
        end = start + dtype.itemsize * math.prod(shape)
        part = parameters[start:end]
        if len(part) < end - start:
            break
        tensors[name] = (part.view(dtype) if start % dtype.itemsize == 0 else part.copy().view(dtype)).reshape(shape)
        start = end
    if start != parameters.size or len(tensors) != len(manifest):
        raise ValueError(f"the packed policy has {parameters.size} bytes, which is not what its manifest says")
    return tensors


def _spaces(description: dict[str, Any]) -> EnvSpec:
    return EnvSpec.from_json(description["env_spec"])


def _given(acting: Rule | Callable[[EnvSpec], Any], description: dict[str, Any]) -> PolicySpec:
    """What acts by a rule that was given, on observations as those of the run."""
    spaces = _spaces(description)
    spec = as_rule(acting).policy(spaces)
    return normalized(spec, spaces.obs_dim) if "obs_clip" in description.get("policy", {}).get("network", {}) else spec


def policy_spec(description: dict[str, Any]) -> PolicySpec:
    """What acts, from the contents of a `policy.json` of any format."""
    if "actor" in description:  # format 1
        actor = description["actor"]
        return PolicySpec("native", actor, tuple(actor_manifest(actor)))
    spec = PolicySpec.from_json(description["policy"])
    try:
        known = {key: marked(value) if isinstance(value, str) else value for key, value in spec.network.items()}
    except ConfigError as error:
        raise ConfigError(f"What acts cannot be found: {error}") from error
    return replace(spec, network=known)


def _read_description(folder: Path) -> dict[str, Any]:
    path = folder / _POLICY_JSON
    try:
        description = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    if not isinstance(description, dict):
        raise CheckpointError(f"{path} is broken: it holds a {type(description).__name__}")
    acts = {1: "actor", FORMAT: "policy"}.get(description.get("format", FORMAT))
    if acts is None:
        raise CheckpointError(f"{path} has format {description.get('format')}, this rlz reads formats 1 and {FORMAT}")
    missing = {"format", "algo", acts, "env_spec", "env", "version", "env_steps"} - set(description)
    if missing:
        raise CheckpointError(f"{path} lacks {', '.join(sorted(missing))}")
    return dict(description)


def read_parameters(folder: Path, description: dict[str, Any], manifest: Sequence[Field]) -> NDArray[np.uint8]:
    """The packed tensors of a policy, as published; raises CheckpointError where they are not those of the manifest."""
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
    for name, native, shape in manifest:
        tensor, dtype = tensors.get(name), numpy_dtype(native)
        if tensor is None or tensor.shape != tuple(shape) or tensor.dtype != dtype:
            got = "nothing" if tensor is None else f"{tensor.dtype}{list(tensor.shape)}"
            raise CheckpointError(f"{path}: tensor {name!r} must be {dtype}{list(shape)}, got {got}")
        packed.append(np.ascontiguousarray(tensor).reshape(-1).view(np.uint8))
    return np.concatenate(packed)
