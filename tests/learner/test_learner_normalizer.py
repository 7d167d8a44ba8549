"""Running statistics beside Gymnasium's own wrappers on the same stream, and what they do to batches and policies."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import wrappers
from gymnasium.wrappers.utils import RunningMeanStd
from numpy.typing import NDArray

from rlz._native import FLAG_FIRST, FLAG_TERMINATED, FLAG_TRUNCATED
from rlz.algorithms.base import Batch, Segments
from rlz.learning.moments import Moments
from rlz.learning.normalizer import Normalizer
from rlz.learning.seen_rows import SeenRows
from rlz.networks.spec import OBS_CLIP
from rlz.records.checkpoint import newest_checkpoint
from support.learner import OBS, Run, config, make

GAMMA = 0.9
CPU = torch.device("cpu")


class Walk(gymnasium.Env[Any, Any]):
    """Observations and rewards from a seed, which float32 holds exactly; episodes of 3 to 9 steps end in either way.

    The space is of float64, because Gymnasium keeps its sums in the dtype of the observations.
    """

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (OBS,), np.float64)
    action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)

    def observe(self) -> NDArray[np.float64]:
        return self.random.normal([0.5, 1000.0, -3.0], [0.1, 50.0, 2.0]).astype(np.float32).astype(np.float64)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.left = int(self.random.integers(3, 10))
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        self.left -= 1
        ended = self.left == 0
        truncated = ended and bool(self.random.random() < 0.5)
        return self.observe(), float(np.float32(self.random.normal(2.0, 3.0))), ended and not truncated, truncated, {}


Step = tuple[bool, NDArray[np.float64], NDArray[np.float64], float, bool, bool]


def stream(seed: int, steps: int) -> list[Step]:
    """Steps of one environment: first, obs, next_obs, reward, terminated, truncated."""
    env = Walk(seed)
    (obs, _), first, found = env.reset(), True, []
    for _ in range(steps):
        next_obs, reward, terminated, truncated, _ = env.step(None)
        found.append((first, obs, next_obs, reward, terminated, truncated))
        first = terminated or truncated
        obs = env.reset()[0] if first else next_obs
    return found


def theirs(seed: int, steps: int) -> tuple[Any, Any]:
    """Gymnasium's statistics of the same stream."""
    env = wrappers.NormalizeReward(wrappers.NormalizeObservation(Walk(seed)), gamma=GAMMA)
    env.reset()
    for index in range(steps):
        _, _, terminated, truncated, _ = env.step(None)
        if (terminated or truncated) and index + 1 < steps:
            env.reset()
    return env.env.obs_rms, env.return_rms  # type: ignore[attr-defined]


def normalizer(lanes: int = 1, **values: Any) -> Normalizer:
    given = {"obs": True, "reward": True, "obs_dim": OBS, "lanes": lanes, "gamma": GAMMA, "device": CPU}
    return Normalizer(**{**given, **values})


def check_equal(found: Normalizer, of_obs: Any, of_returns: Any) -> None:
    """Statistics to rounding, and what is used of them to that of float32."""
    (mean, variance), (_, of_return) = found._of_obs.total(), found._of_returns.total()
    np.testing.assert_allclose(mean, of_obs.mean, rtol=1e-9)
    np.testing.assert_allclose(variance, of_obs.var, rtol=1e-9)
    np.testing.assert_allclose(of_return[0], float(np.squeeze(of_returns.var)), rtol=1e-9)
    batch = Batch(*(torch.full((1, OBS), 2.0) for _ in range(3)), torch.ones(1), torch.ones(1))
    given = found.batch(batch)
    expected = np.clip((2.0 - of_obs.mean) / np.sqrt(of_obs.var + 1e-8), -OBS_CLIP, OBS_CLIP)
    np.testing.assert_allclose(given.next_obs[0].numpy(), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(float(given.reward), 1.0 / np.sqrt(np.squeeze(of_returns.var) + 1e-8), rtol=1e-5)


@pytest.mark.parametrize("one_by_one", [False, True])
def test_statistics_of_rows_are_those_of_gymnasium(one_by_one: bool) -> None:
    """In pieces of any length."""
    replay, found = make(10_000, 1), normalizer(one_by_one=one_by_one)
    rows, random = SeenRows(replay, found, 1), np.random.default_rng(0)
    with replay.writer([0], worker=3) as writer:
        for index, (first, obs, next_obs, reward, terminated, truncated) in enumerate(stream(1, 700)):
            flags = FLAG_FIRST * first | FLAG_TERMINATED * terminated | FLAG_TRUNCATED * truncated
            row = [obs.astype(np.float32), np.zeros(2, np.float32), next_obs.astype(np.float32), reward, 0.9]
            writer.append(0, row, version=0, flags=flags)
            if random.random() < 0.02 or index == 699:
                rows.follow()
                found.refresh()
                check_equal(found, *theirs(1, index + 1))


def test_statistics_of_segments_are_those_of_gymnasium() -> None:
    """Of 8 steps, whose first may begin an episode."""
    steps, found = stream(2, 400), normalizer()
    for begin in range(0, 400, 8):
        _, obs, next_obs, reward, terminated, truncated = map(np.array, zip(*steps[begin : begin + 8], strict=True))
        fields = {"obs": obs.astype(np.float32), "next_obs": next_obs.astype(np.float32), "reward": reward}
        found.see(0, {**fields, "terminated": terminated, "truncated": truncated})
    found.refresh()
    check_equal(found, *theirs(2, 400))


def test_several_environments_add_up_in_any_order_and_pieces() -> None:
    values = np.random.default_rng(0).normal(5.0, 2.0, (3, 40, 2))
    gymnasiums, whole = RunningMeanStd(shape=(2,)), Moments(3, 2, one_by_one=True)
    pieces, apart = Moments(3, 2, one_by_one=True), Moments(3, 2, one_by_one=False)
    for lane in range(3):
        gymnasiums.update(values[lane])
        whole.add(lane, values[lane])
        apart.add(lane, values[lane])
    for begin in (0, 1, 7, 30):
        end = {0: 1, 1: 7, 7: 30, 30: 40}[begin]
        for lane in (2, 0, 1):
            pieces.add(lane, values[lane, begin:end])
    for one, other in zip(whole.total(), pieces.total(), strict=True):
        assert one.tobytes() == other.tobytes(), "bit for bit"
    for found in (whole, apart):
        np.testing.assert_allclose(found.total()[0], gymnasiums.mean, rtol=1e-12)
        np.testing.assert_allclose(found.total()[1], gymnasiums.var, rtol=1e-12)
    fewer = Moments(2, 2, one_by_one=True)
    fewer.load(whole.tensors())
    np.testing.assert_allclose(fewer.total()[1], whole.total()[1], rtol=1e-12)


def test_rows_of_several_steps_count_what_was_acted_on() -> None:
    replay, found = make(100, 1), normalizer(reward=False)
    rows = SeenRows(replay, found, 3)
    seen = np.random.default_rng(0).normal(size=(20, OBS)).astype(np.float32)
    with replay.writer([0], worker=3) as writer:
        for obs in seen:
            writer.append(0, [obs, np.zeros(2, np.float32), 100 + obs, 0.0, 0.9], version=0)
        rows.follow()
    expected = RunningMeanStd(shape=(OBS,))
    expected.update(seen.astype(np.float64))
    np.testing.assert_allclose(found._of_obs.total()[0], expected.mean, rtol=1e-9)


def test_a_copy_goes_on_alike_and_one_of_other_observations_is_refused() -> None:
    found, other = normalizer(2), normalizer(2)
    steps = {"obs": np.ones((4, OBS)), "next_obs": np.full((4, OBS), 3.0), "reward": np.arange(4.0)}
    ends = {"terminated": np.array([0, 1, 0, 0], bool), "truncated": np.zeros(4, bool)}
    found.see(1, {**steps, **ends})
    found.refresh()
    other.load({name: tensor.numpy() for name, tensor in found.tensors().items()})
    for one in (found, other):
        one.see(1, {**steps, **ends})
    for name, tensor in found.tensors().items():
        assert torch.equal(tensor, other.tensors()[name]), name
    with pytest.raises(KeyError):
        other.load({})
    with pytest.raises((RuntimeError, ValueError)):
        normalizer(2, obs_dim=4).load({name: tensor.numpy() for name, tensor in found.tensors().items()})


def test_segments_are_normalised_as_batches_are() -> None:
    found = normalizer()
    obs, ends = np.random.default_rng(0).normal(3, 2, (9, OBS)), np.zeros(9, bool)
    steps = {"obs": obs, "next_obs": obs + 1, "reward": np.arange(9.0), "terminated": ends, "truncated": ends}
    found.see(0, steps)
    found.refresh()
    seen, reward = torch.randn(2, 4, OBS), torch.randn(2, 4)
    none = torch.zeros(2, 4, dtype=torch.bool)
    segments = found.segments(Segments(seen, torch.zeros(2, 4, 1), seen, reward, none, none, {}))
    rows = seen.flatten(0, 1)
    flat = found.batch(Batch(rows, torch.zeros(8, 1), rows, reward.flatten(), torch.ones(8)))
    torch.testing.assert_close(segments.obs.flatten(0, 1), flat.obs)
    torch.testing.assert_close(segments.next_obs.flatten(0, 1), flat.next_obs)
    torch.testing.assert_close(segments.reward.flatten(), flat.reward)
    assert found.batch(flat._replace(obs=1e9 * flat.obs, reward=1e9 * flat.reward)).obs.abs().max() == OBS_CLIP


def test_what_acts_gets_the_statistics_of_accepted_steps_with_its_parameters(tmp_path: Path) -> None:
    """Rows stay as they were written; the policy file has the very numbers of the last version."""
    run = Run(tmp_path, config(normalize_obs=True, normalize_reward=True))
    learner = run.learner()
    learner.start()
    parameters = run.streams.parameters
    published = np.zeros(parameters.nbytes, np.uint8)
    subscriber = parameters.subscriber(worker=5)

    def used() -> NDArray[np.float32]:
        subscriber.read(published)
        return published.view(np.float32)[-2 * OBS :].reshape(2, OBS)

    np.testing.assert_array_equal(used(), [[0.0] * OBS, [1.0] * OBS], "nothing was seen")
    run.sample(40)
    while learner.step(0.0):
        pass
    learner.close()
    rows, meta = np.zeros((40, run.streams.replay.stride), np.uint8), np.zeros(40, np.uint64)
    assert run.streams.replay.read_rows(0, 1, rows, meta) == 40
    start = {name: offset for name, _, _, offset in run.streams.replay.fields}
    next_obs = rows[:, start["next_obs"] :][:, : 4 * OBS].copy().view(np.float32)
    assert next_obs.min() >= 0.0
    assert next_obs.max() > 4.0, "as the environment gave them"
    expected = RunningMeanStd(shape=(OBS,))
    # The first row begins an episode, and none ends.
    given = np.concatenate([rows[:1, start["obs"] :][:, : 4 * OBS].copy().view(np.float32), next_obs])
    expected.update(given.astype(np.float64))
    mean, scale = used()
    np.testing.assert_allclose(mean, expected.mean, rtol=1e-6)
    np.testing.assert_allclose(scale, 1 / np.sqrt(expected.var + 1e-8), rtol=1e-6)
    checkpoint = newest_checkpoint(tmp_path)
    np.testing.assert_array_equal(checkpoint.learner["normalizer.used"][: 2 * OBS], np.concatenate([mean, scale]))
