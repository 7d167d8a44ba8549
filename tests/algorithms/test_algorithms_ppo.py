"""PPO and APPO beside plain implementations in float64."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Independent, Normal

from rlz.acting import make_policy
from rlz.algorithms.optim import gradient
from rlz.algorithms.ppo import ADAM_EPS, Ppo, PpoRows, PpoState
from rlz.algorithms.returns import gae
from support.rollouts import LENGTH, OBS, SEGMENTS, made, make_appo, make_rows, make_segments
from support.updates import FLOAT, RATE, generator, module

ACTIONS = [(), (3,), (2, 4)]
NOISE = torch.zeros(1, dtype=FLOAT)


def plain(algorithm: Ppo[Any], flat: Tensor) -> tuple[nn.Module, nn.Module, nn.Parameter]:
    """Policy and value as modules of torch with the same parameters, and log_std."""
    log_std, actor, critic = torch.split(flat.clone(), algorithm.net.sizes)
    assert algorithm.net.critic is not None
    return module(algorithm.net.actor, actor), module(algorithm.net.critic, critic), nn.Parameter(log_std)


def distributions(algorithm: Ppo[Any], outputs: Tensor, log_std: Tensor) -> list[Any]:
    if not algorithm.choices:
        return [Independent(Normal(outputs, log_std.exp().expand_as(outputs)), 1)]
    return [Categorical(logits=part) for part in torch.split(outputs, list(algorithm.choices), 1)]


def plain_loss(algorithm: Ppo[Any], actor: nn.Module, critic: nn.Module, log_std: Tensor, b: PpoRows) -> Tensor:
    """As Stable-Baselines3 writes it."""
    s = algorithm.settings
    found = distributions(algorithm, actor(b.obs), log_std)
    columns = [b.action] if not algorithm.choices else list(b.action.unbind(1))
    log_prob = sum(one.log_prob(column) for one, column in zip(found, columns, strict=True))
    entropy = sum(one.entropy() for one in found)
    advantage = b.advantage
    if s.normalize_advantage:
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    ratio = torch.exp(log_prob - b.log_prob)
    clip = float(s.clip_range)
    policy_loss = -torch.min(advantage * ratio, advantage * torch.clamp(ratio, 1 - clip, 1 + clip)).mean()
    value = critic(b.obs).flatten()
    if s.clip_range_vf is not None:
        value = b.value + torch.clamp(value - b.value, -s.clip_range_vf, s.clip_range_vf)
    value_loss = nn.functional.mse_loss(b.target, value)
    return policy_loss - s.ent_coef * torch.mean(entropy) + s.vf_coef * value_loss


@pytest.mark.parametrize("choices", ACTIONS)
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"normalize_advantage": False, "ent_coef": 0.03, "vf_coef": 0.7, "clip_range": 0.05, "max_grad_norm": 0.1},
        {"clip_range_vf": 0.1, "ent_coef": 0.01, "activation": "relu", "log_std_init": -0.7, "max_grad_norm": 100.0},
    ],
)
def test_updates_equal_a_plain_implementation(choices: tuple[int, ...], settings: dict[str, Any]) -> None:
    algorithm = made(choices=choices, **settings)
    state = algorithm.init(generator(3), FLOAT)
    actor, critic, log_std = plain(algorithm, state.net)
    parameters = [log_std, *actor.parameters(), *critic.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=RATE.item(), eps=ADAM_EPS)
    for seed in range(4):
        b = make_rows(algorithm, seed=seed)
        assert (torch.exp(b.log_prob) > 0).all()
        loss = plain_loss(algorithm, actor, critic, log_std, b)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(parameters, settings.get("max_grad_norm", 0.5))
        optimizer.step()
        with torch.no_grad():
            outcome = algorithm.update(state, b, NOISE, RATE)
        assert outcome.checks[0].item() == pytest.approx(loss.item(), abs=1e-13)
        state = outcome.state
    expected = [log_std, *(p.T if p.dim() == 2 else p for network in (actor, critic) for p in network.parameters())]
    torch.testing.assert_close(state.net, torch.cat([p.reshape(-1) for p in expected]).detach(), rtol=0, atol=1e-12)
    assert (state.updates, state.steps, state.stopped) == (4, 4, -1)


@pytest.mark.parametrize("wrong", ["sign", "clip", "entropy", "value", "advantage", "ratio"])
def test_mistakes_are_seen(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = made(ent_coef=0.05)
    state = algorithm.init(generator(3), FLOAT)
    b = make_rows(algorithm)
    actor, critic, log_std = plain(algorithm, state.net)
    right = plain_loss(algorithm, actor, critic, log_std, b).item()
    assert algorithm.loss(state.net, b)[0].item() == pytest.approx(right, abs=1e-13)
    changes = {
        "sign": lambda: b._replace(advantage=-b.advantage),
        "clip": lambda: b._replace(clip_range=b.clip_range * 1.5),
        "value": lambda: b._replace(target=b.target + 0.1),
        "advantage": lambda: b._replace(advantage=b.advantage.roll(1)),
        "ratio": lambda: b._replace(log_prob=-b.log_prob),
    }
    if wrong == "entropy":
        log_prob = algorithm.log_prob
        monkeypatch.setattr(algorithm, "log_prob", lambda *a: (log_prob(*a)[0], -log_prob(*a)[1]))
    changed = changes.get(wrong, lambda: b)()
    assert abs(algorithm.loss(state.net, changed)[0].item() - right) > 1e-4


def test_metrics_are_what_their_names_say() -> None:
    algorithm = made()
    b = make_rows(algorithm, 64)
    state = algorithm.init(generator(3), FLOAT)
    _, measured = algorithm.loss(state.net, b)
    found = dict(zip(algorithm.metrics, measured.tolist(), strict=True))
    policy, log_std, _ = algorithm.net(state.net, b.obs)
    (one,) = distributions(algorithm, policy, log_std)
    log_ratio = one.log_prob(b.action) - b.log_prob
    assert found["entropy"] == pytest.approx(one.entropy().mean().item())
    assert found["approx_kl"] == pytest.approx((log_ratio.exp() - 1 - log_ratio).mean().item())
    assert found["clip_fraction"] == (abs(log_ratio.exp() - 1) > 0.2).double().mean().item()
    unexplained = np.var((b.target - b.value).numpy()) / np.var(b.target.numpy())
    assert found["explained_variance"] == pytest.approx(1 - unexplained)


def test_a_rollout_beyond_the_target_kl_makes_no_more_updates() -> None:
    free, held = made(), made(target_kl=0.02)
    state = held.init(generator(3), FLOAT)
    near = make_rows(held)
    with torch.no_grad():
        policy, log_std, _ = held.net(state.net, near.obs)
        near = near._replace(log_prob=held.log_prob(policy, log_std, near.action)[0])
        far = near._replace(log_prob=near.log_prob + 0.5)
        moved = held.update(state, near, NOISE, RATE).state
        assert torch.equal(moved.net, free.update(state, near, NOISE, RATE).state.net), "it is near enough"
        stopped = held.update(moved, far, NOISE, RATE).state
        after = held.update(stopped, near, NOISE, RATE).state
        for one in (stopped, after):
            assert torch.equal(one.net, moved.net)
            assert torch.equal(one.net_square, moved.net_square)
        assert (after.updates, after.steps, after.stopped) == (3, 1, 0)
        following = near._replace(rollout=near.rollout + 3)
        again = held.update(after, following, NOISE, RATE).state
    assert not torch.equal(again.net, moved.net), "the next rollout begins anew"
    assert (again.updates, again.steps) == (4, 2)


@pytest.mark.parametrize("shared", [False, True])
def test_rows_of_a_rollout_bootstrap_from_true_final_observations(shared: bool) -> None:
    algorithm = made(gamma=0.9, gae_lambda=0.8, shared_network=shared, clip_range="lin_0.4")
    state = algorithm.init(generator(3), FLOAT)
    s = make_segments(algorithm)
    with torch.no_grad():
        found = algorithm.prepare(state, s, 0.25)
        value, after = (
            algorithm.net.value(state.net, obs.flatten(0, 1)).view(SEGMENTS, LENGTH) for obs in (s.obs, s.next_obs)
        )
    after = torch.where(s.terminated, 0.0, after)
    advantage = gae(s.reward, value, after, s.terminated | s.truncated, 0.9, 0.8)
    torch.testing.assert_close(found.advantage, advantage.flatten(), rtol=0, atol=1e-12)
    torch.testing.assert_close(found.target, (advantage + value).flatten(), rtol=0, atol=1e-12)
    assert torch.equal(found.obs, s.obs.reshape(-1, OBS))
    assert torch.equal(found.log_prob, s.extras["log_prob"].flatten())
    torch.testing.assert_close(found.clip_range, torch.full_like(found.clip_range, 0.3))
    # Where an episode was truncated only its true final observation counts.
    other = s._replace(next_obs=torch.where(s.truncated[..., None], s.next_obs + 1.0, s.next_obs))
    with torch.no_grad():
        changed = algorithm.prepare(state, other, 0.25).advantage != found.advantage
    assert changed.view(SEGMENTS, LENGTH)[0, 4:8].all()
    assert not changed.view(SEGMENTS, LENGTH)[0, :4].any()
    assert not changed.view(SEGMENTS, LENGTH)[1].any(), "terminated and truncated at once does not bootstrap"


def test_appo_corrects_for_the_policy_that_acted() -> None:
    """With the newest policy nothing is left to correct: rho is 1, and targets are those of PPO."""
    appo, ppo = make_appo(gae_lambda=0.9, normalize_advantage=False), made(gae_lambda=0.9)
    state = appo.init(generator(3), FLOAT)
    s = make_segments(appo)
    with torch.no_grad():
        policy, log_std, _ = appo.net(state.net, s.obs.flatten(0, 1))
        log_prob = appo.log_prob(policy, log_std, s.action.flatten(0, 1))[0].view(SEGMENTS, LENGTH)
        own = s._replace(extras={"log_prob": log_prob})
        found, expected = appo.prepare(state, own, 0.0), ppo.prepare(state, own, 0.0)
        torch.testing.assert_close(found.target, expected.target, rtol=0, atol=1e-12)
        older = appo.prepare(state, own._replace(extras={"log_prob": log_prob + 1.0}), 0.0)
    torch.testing.assert_close(older.log_prob, log_prob.flatten(), rtol=0, atol=1e-12)
    assert (older.advantage != found.advantage).all()
    last = s.terminated | s.truncated
    last[:, -1] = True
    rho = torch.full_like(log_prob, -1.0).exp()
    torch.testing.assert_close(
        older.advantage.view(SEGMENTS, LENGTH)[last], (rho * found.advantage.view(SEGMENTS, LENGTH))[last]
    )


def test_actions_that_the_newest_policy_hardly_takes_teach_it_nothing() -> None:
    """Advantages are normalised before they are weighted: behind it each would get minus the mean."""
    appo = make_appo(vf_coef=0.0)
    state = appo.init(generator(3), FLOAT)
    s = make_segments(appo)
    with torch.no_grad():
        policy, log_std, _ = appo.net(state.net, s.obs.flatten(0, 1))
        log_prob = appo.log_prob(policy, log_std, s.action.flatten(0, 1))[0].view(SEGMENTS, LENGTH)
        rare = torch.zeros_like(log_prob)
        rare[:, ::3] = 40.0  # by so much the older policy preferred them
        rows = appo.prepare(state, s._replace(reward=s.reward + 5.0, extras={"log_prob": log_prob + rare}), 0.0)
        share = (-rare).exp().flatten() / (-rare).exp().sum()
        assert rows.advantage.sum().item() == pytest.approx(0.0, abs=1e-6)
        assert (rows.advantage.square() * share).sum().item() == pytest.approx(1.0, rel=1e-6)
        other = torch.where(rare.flatten()[:, None] > 0, rows.action + 0.5, rows.action)
        moved = rows._replace(action=other, log_prob=appo.log_prob(policy, log_std, other)[0])
        gradients = [gradient(appo.loss, state.net, one)[0] for one in (rows, moved)]
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-9)


@pytest.mark.parametrize("choices", ACTIONS)
@pytest.mark.parametrize("shared", [False, True])
def test_what_is_published_acts_as_the_learner_thinks(choices: tuple[int, ...], shared: bool) -> None:
    algorithm = made(choices=choices, shared_network=shared, ortho_init=False)
    state = algorithm.init(generator(3))
    published = algorithm.published(state)
    policy = algorithm.policy()
    assert sum(torch.Size(shape).numel() for _, _, shape in policy.manifest) == len(published)
    names = [name for name in algorithm.state_dict(state) if name.startswith("actor.")]
    assert [name for name, _, _ in policy.manifest] == names
    acts = make_policy(policy, np.random.SeedSequence(1))
    acts.load(published.numpy().view(np.uint8))
    obs = np.random.default_rng(2).standard_normal((50, OBS), np.float32)
    actions = np.zeros((50, algorithm.spaces.action_dim), algorithm.spaces.row_action_dtype)
    log_prob = np.zeros(50, np.float32)
    acts.act(obs, actions, extras={"log_prob": log_prob})
    outputs, log_std, _ = algorithm.net(state.net, torch.from_numpy(obs))
    expected, _ = algorithm.log_prob(outputs, log_std, torch.from_numpy(actions))
    np.testing.assert_allclose(log_prob, expected.numpy(), atol=1e-5)


def test_first_weights_are_orthogonal_with_the_gains_of_the_paper() -> None:
    algorithm = made(hidden=(16, 16), log_std_init=-1.0)
    named = algorithm.state_dict(algorithm.init(generator(3), FLOAT))
    for name, gain in (("actor.1.weight", 2.0), ("actor.head.weight", 0.01**2), ("critic.head.weight", 1.0)):
        weight = named[name]
        torch.testing.assert_close(weight.T @ weight, gain * torch.eye(weight.shape[1], dtype=FLOAT), rtol=0, atol=1e-9)
    assert not any(tensor.any() for name, tensor in named.items() if name.endswith("bias"))
    assert (named["actor.log_std"] == -1.0).all()
    shared = made(hidden=(16,), shared_network=True)
    head = shared.state_dict(shared.init(generator(3), FLOAT))["actor.head.weight"]
    assert head[:, -1].norm().item() == pytest.approx(1.0)
    assert head[:, 0].norm().item() == pytest.approx(0.01)


def test_the_state_is_named_and_loads_back() -> None:
    for algorithm in (made(), made(choices=(3,), shared_network=True)):
        state = algorithm.init(generator(7), FLOAT)
        with torch.no_grad():
            state = algorithm.update(state, make_rows(algorithm), NOISE, RATE).state
        names = algorithm.state_dict(state)
        assert {"actor.0.weight", "adam.square.actor.0.bias", "updates", "stopped"} <= names.keys()
        other = algorithm.init(generator(8), FLOAT)
        algorithm.load_state_dict(other, {name: tensor.clone() for name, tensor in names.items()})
        assert all(torch.equal(a, b) for a, b in zip(state, other, strict=True))
        assert isinstance(other, PpoState)
