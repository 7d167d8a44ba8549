"""Descriptions of the networks that need no torch: what a sampler's native policy is made from, and in which order.

The flat actor of the learner, the parameter store, `policy.safetensors` and the native policy all use the order of
`actor_manifest`, so publishing an actor is one copy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rlz.answers import Field, PolicySpec

if TYPE_CHECKING:
    from rlz.networks.mlp import Mlp

SQUASHED_GAUSSIAN = "squashed_gaussian"
"""Head: means, then log standard deviations, of a Gaussian squashed by tanh."""

DETERMINISTIC = "deterministic"
"""Head: actions before tanh; samplers add exploration noise."""


def native_policy(network: Mlp, action_dim: int, head: str, **more: Any) -> PolicySpec:
    """The policy that Rust runs: a network, and what its outputs mean. `more`: further arguments of it."""
    arguments = {
        "obs_dim": network.inputs,
        "action_dim": action_dim,
        "hidden": list(network.hidden),
        "activation": network.activation,
        "layer_norm": network.layer_norm,
        "head": head,
        **more,
    }
    return PolicySpec("native", arguments, tuple((name, "f32", shape) for name, shape in network.layout))


def actor_manifest(arguments: Mapping[str, Any]) -> list[Field]:
    """Tensors of the actor that Rust runs with these arguments, in flat order. Weights are [in, out]."""
    outputs = head_outputs(arguments["head"], arguments["action_dim"])
    hidden, norm = arguments["hidden"], arguments["layer_norm"]
    layout = mlp_layout(arguments["obs_dim"], hidden, outputs, layer_norm=norm)
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
