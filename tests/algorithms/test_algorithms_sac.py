"""SAC against a plain float64 implementation in the manner of Stable-Baselines3, and controls that must fail."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from rlz.algorithms.base import Batch
from rlz.algorithms.optim import adam, gradient, polyak
from rlz.algorithms.sac import Sac, SacState, parse_ent_coef
from rlz.errors import CheckpointError, ConfigError
from rlz.networks import mlp

OBS, ACTION, HIDDEN = 3, 2, (8, 8)
RATE = torch.tensor(3e-3, dtype=torch.float64)
FLOAT = torch.float64


def make_sac(kind: type[Sac] = Sac, *, members: int = 2, learn: bool = True, ent_coef: float = 0.5) -> Sac:
    critic = mlp.critics(OBS, ACTION, HIDDEN, "tanh", layer_norm=False, members=members)
    actor = mlp.actor(OBS, ACTION, HIDDEN, "tanh", layer_norm=False)
    return kind(actor, critic, target_entropy=-2.0, ent_coef=ent_coef, learn_ent_coef=learn, tau=0.1)


def make_batch(size: int = 16, seed: int = 1) -> Batch:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=FLOAT)

    discount = torch.full((size,), 0.9, dtype=FLOAT)
    discount[::3] = 0.0
    return Batch(normal(size, OBS), normal(size, ACTION).tanh(), normal(size, OBS), normal(size), discount)


def noises(count: int, size: int = 16) -> list[Tensor]:
    generator = torch.Generator().manual_seed(9)
    return [torch.randn(2, size, ACTION, generator=generator, dtype=FLOAT) for _ in range(count)]


class Plain:
    """SAC with modules, backward and torch.optim, as SB3's `train` does it."""

    def __init__(self, sac: Sac, state: SacState) -> None:
        self.sac = sac
        self.actor = modules(sac.actor.named(state.actor), None)
        self.critics = [modules(sac.critic.named(state.critic), k) for k in range(sac.critic.members or 1)]
        self.targets = copy.deepcopy(self.critics)
        self.log_alpha = state.log_alpha.clone().requires_grad_()
        rate = float(RATE)
        self.actor_optimiser = torch.optim.Adam(self.actor.parameters(), lr=rate)
        self.critic_optimiser = torch.optim.Adam([p for c in self.critics for p in c.parameters()], lr=rate)
        self.alpha_optimiser = torch.optim.Adam([self.log_alpha], lr=rate)

    def act(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self.actor(obs).chunk(2, -1)
        normal = torch.distributions.Normal(mean, log_std.clamp(-20, 2).exp())
        u = mean + normal.stddev * noise
        action = torch.tanh(u)
        return action, (normal.log_prob(u) - torch.log(1 - action.square())).sum(-1)

    def train(self, batch: Batch, noise: Tensor) -> dict[str, float]:
        action, log_prob = self.act(batch.obs, noise[1])
        alpha = self.log_alpha.detach().exp() if self.sac.learn_ent_coef else torch.tensor(self.sac.ent_coef)
        alpha_loss = -(self.log_alpha * (log_prob + self.sac.target_entropy).detach()).mean()
        with torch.no_grad():
            next_action, next_log_prob = self.act(batch.next_obs, noise[0])
            x = torch.cat([batch.next_obs, next_action], 1)
            next_q = torch.stack([target(x)[:, 0] for target in self.targets]).min(0).values
            y = batch.reward + batch.discount * (next_q - alpha * next_log_prob)
        x = torch.cat([batch.obs, batch.action], 1)
        critic_loss = 0.5 * sum(nn.functional.mse_loss(critic(x)[:, 0], y) for critic in self.critics)
        self.critic_optimiser.zero_grad()
        critic_loss.backward()
        self.critic_optimiser.step()
        x = torch.cat([batch.obs, action], 1)
        q = torch.stack([critic(x)[:, 0] for critic in self.critics]).min(0).values
        actor_loss = (alpha * log_prob - q).mean()
        self.actor_optimiser.zero_grad()
        actor_loss.backward()
        self.actor_optimiser.step()
        if self.sac.learn_ent_coef:
            self.alpha_optimiser.zero_grad()
            alpha_loss.backward()
            self.alpha_optimiser.step()
        with torch.no_grad():
            for critic, target in zip(self.critics, self.targets, strict=True):
                for p, t in zip(critic.parameters(), target.parameters(), strict=True):
                    t.mul_(1 - self.sac.tau).add_(self.sac.tau * p)
        return {"critic_loss": critic_loss.item(), "actor_loss": actor_loss.item(), "ent_coef": alpha.item()}

    def flat(self, stack: nn.Module | list[nn.Module]) -> Tensor:
        """Parameters in rlz's flat order."""
        stacks = stack if isinstance(stack, list) else [stack]
        tensors = zip(*(module.parameters() for module in stacks), strict=True)
        return torch.cat(
            [torch.stack([t.detach().mT if t.ndim == 2 else t.detach() for t in group]).flatten() for group in tensors]
        )


def modules(named: dict[str, Tensor], member: int | None) -> nn.Sequential:
    layers: list[nn.Module] = []
    values = [tensor if member is None else tensor[member] for tensor in named.values()]
    for weight, bias in zip(values[::2], values[1::2], strict=True):
        linear = nn.Linear(*weight.shape, dtype=FLOAT)
        linear.weight.data, linear.bias.data = weight.T.clone(), bias.clone()
        layers += [linear, nn.Tanh()]
    return nn.Sequential(*layers[:-1])


def distance_to_plain(sac: Sac, plain_sac: Sac, updates: int = 4) -> float:
    """Largest difference of any parameter after some updates."""
    state = sac.init(torch.Generator().manual_seed(3), FLOAT)
    plain = Plain(plain_sac, state)
    for index, noise in enumerate(noises(updates)):
        batch = make_batch(seed=index)
        with torch.no_grad():
            state, metrics, *_ = sac.update(state, batch, noise, RATE)
        expected = plain.train(batch, noise)
        found = dict(zip(sac.metric_names, metrics.tolist(), strict=True))
        if type(sac) is Sac:
            assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-9)
    pairs = [
        (state.actor, plain.flat(plain.actor)),
        (state.critic, plain.flat(plain.critics)),
        (state.target, plain.flat(plain.targets)),
        (state.log_alpha, plain.log_alpha.detach()),
    ]
    return max(float((a - b).abs().max()) for a, b in pairs)


@pytest.mark.parametrize("members", [1, 2, 3])
@pytest.mark.parametrize("learn", [True, False])
def test_updates_equal_a_plain_implementation(members: int, learn: bool) -> None:
    sac = make_sac(members=members, learn=learn)
    assert distance_to_plain(sac, sac) < 1e-10


class TargetNotConstant(Sac):
    """The target is differentiated through a shared network: the stop-gradient is missing."""

    def critic_loss(self, critic: Tensor, td_target: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        q = self.q_values(critic, batch.obs, batch.action)
        leaky = td_target + self.q_values(critic, batch.next_obs, batch.action).amin(0)
        leaky = leaky - self.q_values(critic, batch.next_obs, batch.action).amin(0).detach()
        return 0.5 * (q - leaky).square().mean(1).sum(), q.detach()


class WrongEntropySign(Sac):
    def td_target(self, actor: Tensor, target: Tensor, alpha: Tensor, batch: Batch, noise: Tensor) -> Tensor:
        return super().td_target(actor, target, -alpha, batch, noise)


class WrongTemperatureSign(Sac):
    def ent_coef_loss(self, log_alpha: Tensor, log_prob: Tensor) -> tuple[Tensor, Tensor]:
        loss, entropy = super().ent_coef_loss(log_alpha, log_prob)
        return -loss, entropy


class IgnoresTermination(Sac):
    def td_target(self, actor: Tensor, target: Tensor, alpha: Tensor, batch: Batch, noise: Tensor) -> Tensor:
        batch = batch._replace(discount=torch.full_like(batch.discount, 0.9))
        return super().td_target(actor, target, alpha, batch, noise)


class ActorBeforeCritic(Sac):
    """The actor's loss sees the critics from before their step."""

    def update(self, state, batch, noise, learning_rate):  # type: ignore[no-untyped-def]
        outcome = super().update(state, batch, noise, learning_rate)
        alpha = state.log_alpha.exp()
        slope, _, _ = gradient(self.actor_loss, state.actor, state.critic, alpha, batch.obs, noise[1])
        step = outcome.state.updates
        actor = adam(state.actor, state.actor_mean, state.actor_square, slope, step, learning_rate)
        new = outcome.state._replace(actor=actor.parameters, actor_mean=actor.mean, actor_square=actor.square)
        return outcome._replace(state=new)


@pytest.mark.parametrize(
    "wrong", [TargetNotConstant, WrongEntropySign, WrongTemperatureSign, IgnoresTermination, ActorBeforeCritic]
)
def test_mistakes_are_seen(wrong: type[Sac]) -> None:
    assert distance_to_plain(make_sac(wrong), make_sac()) > 1e-5


def test_gradients_equal_finite_differences() -> None:
    sac, batch, noise = make_sac(), make_batch(), noises(1)[0]
    state = sac.init(torch.Generator().manual_seed(4), FLOAT)
    alpha = state.log_alpha.exp()
    target = sac.td_target(state.actor, state.target, alpha, batch, noise[0])
    losses: list[tuple[Callable[..., tuple[Tensor, Tensor]], Tensor, tuple[object, ...]]] = [
        (sac.critic_loss, state.critic, (target, batch)),
        (sac.actor_loss, state.actor, (state.critic, alpha, batch.obs, noise[1])),
    ]
    for loss, parameters, constants in losses:
        slope, _, _ = gradient(loss, parameters, *constants)
        for index in range(0, len(parameters), 17):
            shift = torch.zeros_like(parameters)
            shift[index] = 1e-6
            up, down = loss(parameters + shift, *constants)[0], loss(parameters - shift, *constants)[0]
            assert slope[index].item() == pytest.approx((up - down).item() / 2e-6, rel=1e-5, abs=1e-8)


def test_only_termination_stops_the_bootstrap() -> None:
    sac, batch, noise = make_sac(), make_batch(), noises(1)[0]
    state = sac.init(torch.Generator().manual_seed(5), FLOAT)
    alpha = state.log_alpha.exp()
    ended = batch._replace(discount=torch.zeros(16, dtype=FLOAT))
    cut = batch._replace(discount=torch.full((16,), 0.9, dtype=FLOAT))
    torch.testing.assert_close(sac.td_target(state.actor, state.target, alpha, ended, noise[0]), batch.reward)
    next_action, log_prob = sac.policy(state.actor, batch.next_obs, noise[0])
    value = sac.q_values(state.target, batch.next_obs, next_action).amin(0) - alpha * log_prob
    torch.testing.assert_close(
        sac.td_target(state.actor, state.target, alpha, cut, noise[0]), batch.reward + 0.9 * value
    )


def test_targets_move_by_tau_every_update() -> None:
    sac = make_sac()
    state = sac.init(torch.Generator().manual_seed(6), FLOAT)
    assert torch.equal(state.target, state.critic)
    with torch.no_grad():
        for noise in noises(3):
            new = sac.update(state, make_batch(), noise, RATE).state
            torch.testing.assert_close(new.target, polyak(state.target, new.critic, 0.1))
            state = new
    assert state.updates.item() == 3


def chain_q(discount_at_end: float) -> float:
    """Q of the first state of a ring of 10 states, reward 1, gamma 0.9, learned from episodes of 10 steps."""
    sac = Sac(
        mlp.actor(10, 1, (8,), "tanh", layer_norm=False),
        mlp.critics(10, 1, (64,), "relu", layer_norm=False, members=2),
        target_entropy=-1.0,
        ent_coef=0.0,
        learn_ent_coef=False,
        tau=0.5,
    )
    state = sac.init(torch.Generator().manual_seed(1))
    obs = torch.eye(10).repeat(10, 1)
    discount = torch.full((100,), 0.9)
    discount[9::10] = discount_at_end
    next_obs = obs.roll(1, 1)  # the true final observation of the last step is one of the ring
    batch = Batch(obs, torch.zeros(100, 1), next_obs, torch.ones(100), discount)
    generator = torch.Generator().manual_seed(2)
    rate = torch.tensor(1e-2, dtype=torch.float64)
    with torch.no_grad():
        for _ in range(300):
            batch = batch._replace(action=torch.rand(100, 1, generator=generator) * 2 - 1)
            noise = torch.randn(sac.noise_shape(100), generator=generator)
            state = sac.update(state, batch, noise, rate).state
        return sac.q_values(state.critic, obs[:1], torch.zeros(1, 1)).mean().item()


def test_truncated_chain_has_the_value_of_an_endless_one() -> None:
    assert chain_q(0.9) == pytest.approx(10.0, abs=0.3)
    # Control: with truncation taken for termination it is the return of ten steps.
    assert chain_q(0.0) == pytest.approx((1 - 0.9**10) / 0.1, abs=0.3)


def test_state_dict_names_every_tensor_and_loads_back() -> None:
    sac = make_sac()
    state = sac.init(torch.Generator().manual_seed(7), FLOAT)
    with torch.no_grad():
        state = sac.update(state, make_batch(), noises(1)[0], RATE).state
    names = sac.state_dict(state)
    assert {"actor.0.weight", "critic.head.bias", "target.critic.0.weight", "adam.square.actor.1.bias"} <= names.keys()
    assert sum(t.numel() for t in names.values()) == sum(t.numel() for t in state)
    other = sac.init(torch.Generator().manual_seed(8), FLOAT)
    sac.load_state_dict(other, {name: tensor.clone() for name, tensor in names.items()})
    for a, b in zip(state, other, strict=True):
        assert torch.equal(a, b)


def test_loading_other_networks_is_refused_before_anything_changes() -> None:
    sac = make_sac()
    state = sac.init(torch.Generator().manual_seed(7))
    names = {name: torch.zeros_like(tensor) for name, tensor in sac.state_dict(state).items()}
    before = state.actor.clone()
    with pytest.raises(CheckpointError, match=r"log_alpha: the checkpoint has \(2,\)"):
        sac.load_state_dict(state, names | {"log_alpha": torch.zeros(2)})
    with pytest.raises(CheckpointError, match="unknown extra"):
        sac.load_state_dict(state, names | {"extra": torch.zeros(2)})
    del names["actor.0.bias"]
    with pytest.raises(CheckpointError, match=r"lacks actor\.0\.bias"):
        sac.load_state_dict(state, names)
    assert torch.equal(before, state.actor)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("auto", (1.0, True)), ("auto_0.1", (0.1, True)), (0.2, (0.2, False)), ("0", (0.0, False))],
)
def test_ent_coef(text: str | float, expected: tuple[float, bool]) -> None:
    assert parse_ent_coef(text) == expected


@pytest.mark.parametrize("text", ["auto_0", "auto_x", "nan", -1.0])
def test_bad_ent_coef(text: str | float) -> None:
    with pytest.raises(ConfigError):
        parse_ent_coef(text)


def test_importance_weights_count_in_the_critics_loss_alone() -> None:
    sac = make_sac()
    state = sac.init(torch.Generator().manual_seed(3), FLOAT)
    batch, (noise, *_) = make_batch(seed=1), noises(1)
    plain = sac.update(state, batch, noise, RATE)
    assert plain.td_errors is None
    ones = sac.update(state, batch._replace(weight=torch.ones_like(batch.reward)), noise, RATE)
    torch.testing.assert_close(tuple(ones.state), tuple(plain.state), rtol=0, atol=0)
    weight = torch.rand(len(batch.reward), generator=torch.Generator().manual_seed(4), dtype=FLOAT)
    found = sac.update(state, batch._replace(weight=weight), noise, RATE)

    alpha = state.log_alpha.exp()
    target = sac.td_target(state.actor, state.target, alpha, batch, noise[0])
    errors = sac.q_values(state.critic, batch.obs, batch.action) - target
    names = sac.metric_names
    assert float(found.metrics[names.index("critic_loss")]) == pytest.approx(
        sum(float((weight * error.square()).mean()) / 2 for error in errors), rel=1e-9
    )
    assert found.td_errors is not None
    torch.testing.assert_close(found.td_errors, errors.abs().mean(0))
    critic = found.state.critic
    slope, loss, _ = gradient(sac.actor_loss, state.actor, critic, alpha, batch.obs, noise[1])
    assert float(found.metrics[names.index("actor_loss")]) == pytest.approx(float(loss), rel=1e-9)
    torch.testing.assert_close(found.state.actor_mean, 0.1 * slope)
