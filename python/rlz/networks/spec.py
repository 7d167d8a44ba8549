"""Descriptions of the networks that need no torch: what a sampler's native policy is made from, and in which order.

The flat actor of the learner, the parameter store, `policy.safetensors` and the native policy all use the order of
`actor_manifest`, so publishing an actor is one copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rlz.algorithms.answers import PolicySpec
from rlz.algorithms.registry import ALGORITHMS, DETERMINISTIC

if TYPE_CHECKING:
    from rlz.config import RunConfig
    from rlz.envs.spaces import EnvSpec

Parameter = tuple[str, str, tuple[int, ...]]
"""(name, dtype, shape) of one tensor, as in `rlz._native`."""


def actor_spec(config: RunConfig, env_spec: EnvSpec) -> dict[str, Any]:
    """Arguments of `rlz._native.Policy` (all but the seed); JSON can hold them."""
    env_spec.require_box_actions(config.algo)
    head = ALGORITHMS[config.algo].head
    exploration = {"exploration_noise": config.exploration_noise} if head == DETERMINISTIC else {}
    return {
        "obs_dim": env_spec.obs_dim,
        "action_dim": env_spec.action_dim,
        "hidden": list(config.hidden),
        "activation": config.activation,
        "layer_norm": config.layer_norm,
        "head": head,
        **exploration,
    }


def policy_spec(config: RunConfig, env_spec: EnvSpec) -> PolicySpec:
    """What acts in a run."""
    arguments = actor_spec(config, env_spec)
    return PolicySpec("native", arguments, tuple(actor_manifest(arguments)))


def actor_manifest(spec: dict[str, Any]) -> list[Parameter]:
    """Tensors of the actor described by `actor_spec`, in flat order. Weights are [in, out]."""
    outputs = head_outputs(spec["head"], spec["action_dim"])
    layout = mlp_layout(spec["obs_dim"], spec["hidden"], outputs, layer_norm=spec["layer_norm"])
    return [(f"actor.{name}", "f32", shape) for name, shape in layout]


def head_outputs(head: str, action_dim: int) -> int:
    """Outputs of an actor: its actions, or the mean and log_std of each."""
    return action_dim if head == DETERMINISTIC else 2 * action_dim


def mlp_layout(
    inputs: int, hidden: Sequence[int], outputs: int, *, layer_norm: bool
) -> list[tuple[str, tuple[int, ...]]]:
    """Names and shapes of the tensors of one MLP in flat order: `0.weight`, `0.bias`, ..., `head.bias`."""
    layout: list[tuple[str, tuple[int, ...]]] = []
    width = inputs
    for layer, size in enumerate(hidden):
        layout += [(f"{layer}.weight", (width, size)), (f"{layer}.bias", (size,))]
        if layer_norm:
            layout += [(f"{layer}.norm.weight", (size,)), (f"{layer}.norm.bias", (size,))]
        width = size
    return [*layout, ("head.weight", (width, outputs)), ("head.bias", (outputs,))]
