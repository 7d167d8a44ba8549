"""Functional MLPs against torch.nn, and the torch actor against the native policy."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rlz._native import Policy
from rlz.networks import mlp
from rlz.networks.mlp import Mlp
from rlz.networks.spec import actor_manifest, head_outputs

MODULES = {"relu": nn.ReLU, "tanh": nn.Tanh, "silu": nn.SiLU, "elu": nn.ELU}


def reference(network: Mlp, named: dict[str, Tensor]) -> nn.Sequential:
    """The same network from torch.nn (weights there are [out, in])."""
    layers: list[nn.Module] = []
    sizes = [network.inputs, *network.hidden, network.outputs]
    for index, (inputs, outputs) in enumerate(pairwise(sizes)):
        prefix = f"{network.name}.{index if index < len(network.hidden) else 'head'}"
        linear = nn.Linear(inputs, outputs, dtype=torch.float64)
        linear.weight.data = named[f"{prefix}.weight"].T.clone()
        linear.bias.data = named[f"{prefix}.bias"].clone()
        layers.append(linear)
        if index < len(network.hidden):
            if network.layer_norm:
                norm = nn.LayerNorm(outputs, dtype=torch.float64)
                norm.weight.data = named[f"{prefix}.norm.weight"].clone()
                norm.bias.data = named[f"{prefix}.norm.bias"].clone()
                layers.append(norm)
            layers.append(MODULES[network.activation]())
    return nn.Sequential(*layers)


@pytest.mark.parametrize("activation", list(MODULES))
@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("hidden", [(), (5,), (7, 4, 6)])
@pytest.mark.parametrize("members", [None, 1, 3])
def test_forward_equals_torch_nn(
    activation: str, layer_norm: bool, hidden: tuple[int, ...], members: int | None
) -> None:
    generator = torch.Generator().manual_seed(1)
    network = Mlp("net", 3, hidden, 2, activation, layer_norm, members)
    flat = torch.randn(network.numel, generator=generator, dtype=torch.float64)
    x = torch.randn(11, 3, generator=generator, dtype=torch.float64)
    found = network(flat, x)
    named = network.named(flat)
    if members is None:
        torch.testing.assert_close(found, reference(network, named)(x))
        return
    for member in range(members):
        one = reference(network, {name: tensor[member] for name, tensor in named.items()})
        torch.testing.assert_close(found[member], one(x))


@pytest.mark.parametrize("first", [1, 2, 3, None])
def test_the_first_members_of_a_stack_alone(first: int | None) -> None:
    network = Mlp("net", 3, (5,), 2, layer_norm=True, members=3)
    generator = torch.Generator().manual_seed(1)
    flat, x = torch.randn(network.numel, generator=generator), torch.randn(4, 3, generator=generator)
    torch.testing.assert_close(network(flat, x, first=first), network(flat, x)[:first])


def test_init_is_that_of_torch_linear() -> None:
    network = Mlp("net", 100, (400,), 50, members=2, layer_norm=True)
    named = network.named(network.init(torch.Generator().manual_seed(1)))
    for layer, inputs in (("0", 100), ("head", 400)):
        bound = 1.0 / math.sqrt(inputs)
        for tensor in (named[f"net.{layer}.weight"], named[f"net.{layer}.bias"]):
            assert 0.95 * bound < tensor.abs().max() <= bound
            assert tensor.std() == pytest.approx(bound / math.sqrt(3), rel=0.1)
    assert (named["net.0.norm.weight"] == 1).all()
    assert (named["net.0.norm.bias"] == 0).all()
    assert not torch.equal(named["net.0.weight"][0], named["net.0.weight"][1])


def test_unknown_activation_is_named() -> None:
    with pytest.raises(ValueError, match="'swish' is not one of relu"):
        Mlp("net", 1, (2,), 1, "swish")


@pytest.mark.parametrize("activation", list(MODULES))
@pytest.mark.parametrize(("layer_norm", "hidden"), [(False, (256, 256)), (True, (33, 64, 5)), (False, (7,))])
@pytest.mark.parametrize("head", ["squashed_gaussian", "deterministic"])
def test_native_policy_agrees(activation: str, layer_norm: bool, hidden: tuple[int, ...], head: str) -> None:
    spec = {
        "obs_dim": 27,
        "action_dim": 8,
        "hidden": list(hidden),
        "activation": activation,
        "layer_norm": layer_norm,
        "head": head,
    }
    actor = mlp.Mlp("actor", 27, hidden, head_outputs(head, 8), activation, layer_norm)
    policy = Policy(**spec, seed=[1, 2, 3, 4])
    layout = [(name, "f32", shape) for name, shape in actor.layout]
    assert [(n, d, tuple(s)) for n, d, s in policy.manifest] == layout == actor_manifest(spec)

    flat = actor.init(torch.Generator().manual_seed(2))
    if layer_norm:  # not the identity
        for name, tensor in actor.named(flat).items():
            if "norm" in name:
                tensor.uniform_(0.5, 1.5, generator=torch.Generator().manual_seed(3))
    policy.load(flat.numpy().view(np.uint8))
    obs = np.random.default_rng(4).standard_normal((16, 27)).astype(np.float32)
    actions = np.empty((16, 8), np.float32)
    policy.act(obs, actions, deterministic=True)
    mean = actor(flat, torch.from_numpy(obs))[:, :8]
    np.testing.assert_allclose(actions, torch.tanh(mean).numpy(), atol=1e-5)
