"""A policy that runs any torch module: in samplers, evaluator and `rlz.load` on the CPU, in a server also on a card."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlz.acting.flat import Unpacked, manifest
from rlz.acting.rules import Moment, rule_of
from rlz.envs.actions import actions_of
from rlz.errors import NonFiniteError, PolicyError, RlzError

if TYPE_CHECKING:
    from rlz._native import Subscriber
    from rlz.answers import PolicySpec


STATISTICS = 2
"""Tensors of mean and scale of observations, the last of a policy's."""


class TorchPolicy:
    """See `rlz.acting.Policy`.

    Attributes
    ----------
    manifest : its tensors in flat order.

    Parameters
    ----------
    spec : names the user's module and the rule that acts with it.
    seed : of everything that it draws.
    device : where the module runs; None: on the CPU, with views of the parameters. On a card torch draws from the
        card's own generator, which `state` has not.

    Raises
    ------
    ConfigError
        The module or the rule cannot be found or imported.
    PolicyError
        The module cannot be made, or has other tensors than the spec says.
    """

    def __init__(self, spec: PolicySpec, seed: np.random.SeedSequence, device: torch.device | None = None) -> None:
        rule, self._spaces = rule_of(spec.network, spec.extras)
        self._rule = rule
        self._name = str(spec.network["module"]).partition(":")[2] if not self._pickled(spec) else "the module"
        try:
            self._module = rule.build(self._spaces)
        except Exception as error:
            raise self._raised("could not be made:", error) from error
        self._clip = spec.network.get("obs_clip")
        expected = tuple(spec.manifest) if self._clip is None else tuple(spec.manifest)[:-STATISTICS]
        found = manifest(self._module)
        if found != expected:
            raise PolicyError(f"{self._name} has other tensors than the policy: {_difference(found, expected)}")
        self.manifest = list(spec.manifest)
        self._unpacked = Unpacked(self._module, 0 if self._clip is None else 8 * self._spaces.obs_dim)
        self._device = device
        self._acting = self._module if device is None else copy.deepcopy(self._module).to(device)
        if device is not None and device.type == "cuda":
            torch.cuda.manual_seed(int(seed.spawn(3)[2].generate_state(1)[0]))
        self._shape = self._spaces.obs_shape
        self._uniform = actions_of(self._spaces).uniform
        self._choices = np.array(self._spaces.action_choices, np.int64)
        self._draws = _Draws(seed)
        self._version = 0

    @staticmethod
    def _pickled(spec: PolicySpec) -> bool:
        return str(spec.network["module"]).startswith("pickle:")

    @property
    def nbytes(self) -> int:
        """Bytes of its parameters."""
        return self._unpacked.parameters.nbytes

    @property
    def version(self) -> int:
        """Version in use, 0 before the first `refresh`."""
        return self._version

    def load(self, parameters: NDArray[np.uint8]) -> None:
        """Take parameters [nbytes]."""
        if parameters.shape != self._unpacked.parameters.shape:
            raise ValueError(f"parameters: given {parameters.size} bytes, expected {self.nbytes} (see manifest)")
        self._unpacked.parameters[:] = parameters
        self._follow()

    def refresh(self, subscriber: Subscriber) -> int:
        """Read the newest version when it moved; returns the version in use."""
        if subscriber.version() != self._version:
            self._version, _, _ = subscriber.read(self._unpacked.parameters)
            self._follow()
        return self._version

    def act(
        self,
        obs: NDArray[Any],
        actions: NDArray[Any],
        *,
        progress: float = 1.0,
        deterministic: bool = False,
        ranks: NDArray[np.float32] | None = None,
        extras: dict[str, NDArray[Any]] | None = None,
    ) -> None:
        """Actions [m, action_dim] for obs [m, obs_dim]."""
        rows = len(obs)
        # A copy: the module may change it, and an array of the caller's must not be.
        shaped = torch.from_numpy(self._normal(obs.astype(np.float32)).reshape(rows, *self._shape))
        if self._device is not None:
            shaped = shaped.to(self._device)
        moment = Moment(progress, deterministic, self._draws.numpy, ranks)
        with _one_thread(), self._draws.lent(advance=not deterministic), torch.inference_mode():
            try:
                chosen, more = self._rule.act(self._acting, shaped, self._spaces, moment)
            except RlzError as error:
                raise PolicyError(f"{self._name}: {error}") from error
            except Exception as error:
                raise self._raised("raised", error) from error
        self._take(chosen, actions)
        for name, into in (extras or {}).items():
            self._fill(name, more, into)

    def uniform(self, actions: NDArray[Any]) -> None:
        """Fill actions [m, action_dim] with uniform ones."""
        self._uniform(self._draws.numpy, actions)

    @property
    def state(self) -> bytes:
        """State of its random streams, for a checkpoint; settable."""
        return self._draws.state()

    @state.setter
    def state(self, value: bytes) -> None:
        self._draws.restore(value)

    def _follow(self) -> None:
        """The module takes what `parameters` holds now."""
        self._unpacked.follow()
        if self._device is not None:
            with torch.no_grad():
                own, acting = self._module.state_dict(), self._acting.state_dict()
                torch._foreach_copy_([acting[name] for name in own], list(own.values()))

    def _normal(self, obs: NDArray[np.float32]) -> NDArray[np.float32]:
        """Observations [m, obs_dim] in place, as the module sees them."""
        if self._clip is not None:
            mean, scale = np.frombuffer(self._unpacked.rest.tobytes(), np.float32).reshape(2, -1)
            obs -= mean
            obs *= scale
            obs.clip(-self._clip, self._clip, out=obs)
        return obs

    def _take(self, chosen: Any, actions: NDArray[Any]) -> None:
        if not isinstance(chosen, Tensor):
            raise PolicyError(f"{self._name} gave a {type(chosen).__name__} as actions, expected a tensor")
        if chosen.shape != actions.shape:
            raise PolicyError(f"{self._name} gave actions {list(chosen.shape)}, expected {list(actions.shape)}")
        values = chosen.cpu().numpy()
        if self._choices.size:
            if not ((values >= 0) & (values < self._choices)).all():
                raise PolicyError(
                    f"{self._name} gave {values.tolist()}; choices are counted from 0 to below {self._choices.tolist()}"
                )
        elif not np.isfinite(values).all():
            raise NonFiniteError(f"{self._name} gave an action that is not finite: {values.tolist()}")
        actions[:] = values

    def _fill(self, name: str, extras: Mapping[str, Tensor], into: NDArray[Any]) -> None:
        if name not in extras:
            raise PolicyError(f"{self._name} gave no {name!r}, which the data keeps; it gave {sorted(extras)}")
        try:
            into[:] = extras[name].reshape(into.shape).cpu().numpy()
        except (RuntimeError, ValueError):
            given = list(extras[name].shape)
            raise PolicyError(f"{self._name} gave {name!r} as {given}, expected {list(into.shape)}") from None

    def _raised(self, what: str, error: Exception) -> PolicyError:
        return PolicyError(f"{self._name} {what} {type(error).__name__}: {error}")


class _Draws:
    """Random streams of one policy: numpy's for rules, and torch's own generator while it acts.

    Modules and distributions draw from the generator that torch keeps for the process. It is lent to this policy for
    the time of a call: in serial mode learner, samplers and evaluator share the process.
    """

    def __init__(self, seed: np.random.SeedSequence) -> None:
        own, other = seed.spawn(2)
        self.numpy = np.random.Generator(np.random.PCG64(own))
        generator = torch.Generator().manual_seed(int(other.generate_state(1, np.uint64)[0] >> np.uint64(1)))
        self._torch = generator.get_state()
        self._same = generator.manual_seed(0).get_state()

    @contextmanager
    def lent(self, *, advance: bool) -> Iterator[None]:
        """Torch's generator is this policy's. Without `advance` every call of every policy draws the same."""
        others = torch.get_rng_state()
        torch.set_rng_state(self._torch if advance else self._same)
        try:
            yield
        finally:
            if advance:
                self._torch = torch.get_rng_state()
            torch.set_rng_state(others)

    def state(self) -> bytes:
        both = {"numpy": self.numpy.bit_generator.state, "torch": self._torch.numpy().tobytes().hex()}
        return json.dumps(both).encode()

    def restore(self, value: bytes) -> None:
        both = json.loads(value)
        self.numpy.bit_generator.state = both["numpy"]
        self._torch = torch.from_numpy(np.frombuffer(bytes.fromhex(both["torch"]), np.uint8).copy())


@contextmanager
def _one_thread() -> Iterator[None]:
    """What acts uses one thread: samplers share the machine, and a batch of observations is small."""
    threads = torch.get_num_threads()
    if threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _difference(found: Any, expected: Any) -> str:
    for one, other in zip(found, expected, strict=False):
        if one != tuple(other):
            return f"{one[0]} {one[1]}{list(one[2])} instead of {other[0]} {other[1]}{list(other[2])}"
    return f"{len(found)} instead of {len(expected)}"
