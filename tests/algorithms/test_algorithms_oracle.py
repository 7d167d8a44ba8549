"""Updates beside Stable-Baselines3's own train(): same weights, batches and noise, float64 (`make oracle`)."""

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import support
from rlz.algorithms.base import Batch
from rlz.bench.environments import peer_python
from support.updates import generator, kinds, make

pytestmark = [pytest.mark.oracle, pytest.mark.timeout(900)]  # the environment of SB3 is made on first use

OBS, ACTION, BATCH, UPDATES = 5, 3, 64, 60
FLOAT = torch.float64
RATE, TAU, GAMMA = 1e-3, 0.02, 0.97
PARAMETERS = ("actor.", "critic.", "q.", "target.", "log_alpha")


def batches(choices: int = 0) -> list[Batch]:
    draw = generator(100)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=draw, dtype=FLOAT)

    def one() -> Batch:
        ends = torch.rand(BATCH, generator=draw, dtype=FLOAT) < 0.2
        discount = GAMMA * (~ends).to(FLOAT)
        batch = Batch(normal(BATCH, OBS), normal(BATCH, ACTION).tanh(), normal(BATCH, OBS), 2 * normal(BATCH), discount)
        return batch._replace(action=torch.randint(choices, (BATCH, 1), generator=draw)) if choices else batch

    return [one() for _ in range(UPDATES)]


@pytest.mark.parametrize(
    ("algo", "settings", "options"),
    [
        ("sac", {}, {}),
        ("sac", {"ent_coef": "auto_0.1", "n_critics": 3}, {"ent_coef": "auto_0.1"}),
        ("sac", {"ent_coef": 0.25}, {"ent_coef": 0.25}),  # a number that float32 holds exactly: SB3 keeps it so
        ("td3", {}, {}),
        (
            "td3",
            {"policy_delay": 3, "n_critics": 4, "target_policy_noise": 0.5, "target_noise_clip": 0.3},
            {"policy_delay": 3, "target_policy_noise": 0.5, "target_noise_clip": 0.3},
        ),
        ("ddpg", {}, {}),
        ("dqn", {"target_every": 7}, {"target_update_interval": 7}),
        # The norm of the gradient is clipped in most updates.
        (
            "dqn",
            {"target_every": 1, "max_grad_norm": 0.1},
            {"target_update_interval": 1, "max_grad_norm": 0.1},
        ),
    ],
)
def test_updates_equal_those_of_stable_baselines3(
    tmp_path: Path, algo: str, settings: dict[str, Any], options: dict[str, Any]
) -> None:
    critics = {} if algo == "dqn" else {"n_critics": settings.get("n_critics", 1 if algo == "ddpg" else 2)}
    algorithm: Any = make(algo, OBS, ACTION, hidden=(32, 24), gamma=GAMMA, tau=TAU, **{**settings, **critics})
    state = algorithm.init(generator(3), FLOAT)
    draw = generator(500)
    noise = torch.stack(
        [torch.randn(algorithm.noise_shape(BATCH), generator=draw, dtype=FLOAT) for _ in range(UPDATES)]
    )
    if algo != "sac":
        noise = 1.5 * noise  # so that the clip acts
    rows = batches(ACTION if algo == "dqn" else 0)
    job = {"algo": algo, "options": options, "obs": OBS, "action": ACTION, "batch": BATCH, "updates": UPDATES}
    job |= {"hidden": [32, 24], **critics, "learning_rate": RATE, "tau": TAU}
    np.savez(
        tmp_path / "in.npz",
        job=json.dumps(job),
        noise=noise.numpy(),
        **{f"state/{name}": tensor.numpy() for name, tensor in algorithm.state_dict(state).items()},
        **{f"batch/{name}": np.stack([getattr(one, name).numpy() for one in rows]) for name in Batch._fields[:5]},
    )
    script = Path(support.__file__).with_name("sb3_oracle.py")
    command = [peer_python("sb3"), script, tmp_path / "in.npz", tmp_path / "out.npz"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    rate = torch.tensor(RATE, dtype=FLOAT)
    with torch.no_grad():
        for one, drawn, kind in zip(rows, noise, kinds(algorithm, UPDATES), strict=True):
            state = algorithm.update(state, one, drawn, rate, kind).state
    theirs = dict(np.load(tmp_path / "out.npz"))
    compared = set()
    for name, tensor in algorithm.state_dict(state).items():
        if name.startswith(PARAMETERS):
            np.testing.assert_allclose(tensor.numpy(), theirs[name], rtol=0, atol=1e-13, err_msg=name)
            compared.add(name)
    known = ("actor.head.weight", "critic.0.bias", "target.critic.head.weight")
    assert set(("q.0.weight", "target.q.head.bias") if algo == "dqn" else known) <= compared
