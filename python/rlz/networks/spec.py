"""Descriptions of the networks that need no torch: what a sampler's native policy is made from, and in which order.

The flat actor of the learner, the parameter store, `policy.safetensors` and the native policy all use the order of
`actor_manifest`, so publishing an actor is one copy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from rlz.answers import Field, PolicySpec

if TYPE_CHECKING:
    from rlz.networks.mlp import Mlp

SQUASHED_GAUSSIAN = "squashed_gaussian"
"""Head: means, then log standard deviations, of a Gaussian squashed by tanh."""

DETERMINISTIC = "deterministic"
"""Head: actions before tanh; samplers add exploration noise."""

GAUSSIAN = "gaussian"
"""Head: means of a Gaussian; its log standard deviations are a tensor of their own, `actor.log_std`. Not bounded."""

CATEGORICAL = "categorical"
"""Head: logits of all choices of every component, side by side."""

EPSILON_GREEDY = "epsilon_greedy"
"""Head: values of all choices of every component, side by side."""

OBS_CLIP = 10.0
"""Most deviations of a normalised observation, as in Stable-Baselines3's VecNormalize."""

Values = Literal["none", "shared", "separate"]
"""Where values of observations come from: nowhere, the last output of the actor's network, or a network `critic`."""


def native_policy(
    network: Mlp, action_dim: int, head: str, *, value: Values = "none", extras: tuple[Field, ...] = (), **more: Any
) -> PolicySpec:
    """The policy that Rust runs.

    Parameters
    ----------
    network : the actor's, with `head_outputs` outputs, and one more where the value is shared.
    action_dim, head : length of an action, and what the outputs mean.
    value : a separate network has the hidden layers of the actor's, and is named critic.
    extras : what the data keeps beside the action: log_prob, value.
    more : further arguments of `rlz._native.Policy`, such as `choices`.
    """
    arguments = {
        "obs_dim": network.inputs,
        "action_dim": action_dim,
        "hidden": list(network.hidden),
        "activation": network.activation,
        "layer_norm": network.layer_norm,
        "head": head,
        **more,
    }
    if value != "none":
        arguments["value"] = value
    return PolicySpec("native", arguments, tuple(actor_manifest(arguments)), extras)


def normalized(spec: PolicySpec, obs_dim: int) -> PolicySpec:
    """The same policy on observations in units of their deviation: clip((obs - mean) * scale), by either runner.

    Mean and scale [obs_dim] are the last tensors of its manifest.
    """
    statistics: tuple[Field, ...] = (("obs.mean", "f32", (obs_dim,)), ("obs.scale", "f32", (obs_dim,)))
    network = {**spec.network, "obs_clip": OBS_CLIP}
    return replace(spec, network=network, manifest=(*spec.manifest, *statistics))


def actor_manifest(arguments: Mapping[str, Any]) -> list[Field]:
    """Tensors of the policy that Rust runs with these arguments, in flat order. Weights are [in, out]."""
    head, action_dim, value = arguments["head"], arguments["action_dim"], arguments.get("value", "none")
    outputs = head_outputs(head, action_dim, arguments.get("choices", ())) + (value == "shared")
    networks = {"actor": outputs} | ({"critic": 1} if value == "separate" else {})
    log_std: list[Field] = [("actor.log_std", "f32", (action_dim,))] if head == GAUSSIAN else []
    return log_std + [
        (f"{network}.{name}", "f32", shape)
        for network, width in networks.items()
        for name, shape in mlp_layout(
            arguments["obs_dim"], arguments["hidden"], width, layer_norm=arguments["layer_norm"]
        )
    ]


def head_outputs(head: str, action_dim: int, choices: Sequence[int] = ()) -> int:
    """Outputs of an actor's network: its actions, the mean and log_std of each, or one for each choice."""
    if head in (CATEGORICAL, EPSILON_GREEDY):
        return sum(choices)
    return 2 * action_dim if head == SQUASHED_GAUSSIAN else action_dim


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
