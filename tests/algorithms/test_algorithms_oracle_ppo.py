"""PPO's updates beside Stable-Baselines3's own train(): same weights and rollouts, float64 (`make oracle`)."""

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import support
from rlz.bench.environments import peer_python
from support.rollouts import OBS, made, make_rows
from support.updates import FLOAT, generator

pytestmark = [pytest.mark.oracle, pytest.mark.timeout(900)]  # the environment of SB3 is made on first use

MINIBATCHES, EPOCHS, BATCH, RATE = 4, 5, 32, 1e-3


@pytest.mark.parametrize("choices", [(), (3,), (2, 4)])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"ent_coef": 0.01, "vf_coef": 0.7, "clip_range": 0.1, "max_grad_norm": 0.1, "normalize_advantage": False},
        {"clip_range_vf": 0.2},
        {"target_kl": 2e-4},
    ],
    ids=["defaults", "others", "clipped values", "target KL"],
)
def test_updates_equal_those_of_stable_baselines3(
    tmp_path: Path, choices: tuple[int, ...], options: dict[str, Any]
) -> None:
    algorithm = made(choices=choices, hidden=(32, 24), **options)
    state = algorithm.init(generator(3), FLOAT)
    # The probabilities are those of the first weights, so that the distance from them grows with the updates.
    seeds = [seed for _ in range(EPOCHS) for seed in range(MINIBATCHES)]
    rows = []
    for seed in seeds:
        one = make_rows(algorithm, BATCH, seed)
        with torch.no_grad():
            policy, log_std, _ = algorithm.net(state.net, one.obs)
            rows.append(one._replace(log_prob=algorithm.log_prob(policy, log_std, one.action)[0]))
    job = {"obs": OBS, "action": algorithm.spaces.action_dim, "choices": list(choices), "hidden": [32, 24]}
    job |= {"minibatches": MINIBATCHES, "learning_rate": RATE, "options": options}
    fields = ("obs", "action", "value", "log_prob", "advantage", "target")
    np.savez(
        tmp_path / "in.npz",
        job=json.dumps(job),
        **{f"state/{name}": tensor.numpy() for name, tensor in algorithm.state_dict(state).items()},
        **{f"batch/{name}": np.stack([getattr(one, name).numpy() for one in rows]) for name in fields},
    )
    script = Path(support.__file__).with_name("sb3_rollouts.py")
    command = [peer_python("sb3"), script, tmp_path / "in.npz", tmp_path / "out.npz"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    rate = torch.tensor(RATE, dtype=FLOAT)
    with torch.no_grad():
        for one in rows:
            state = algorithm.update(state, one, torch.zeros(1, dtype=FLOAT), rate).state
    assert (int(state.steps) < len(rows)) == ("target_kl" in options), "the target KL ends the rollout's updates"
    theirs = dict(np.load(tmp_path / "out.npz"))
    for name, tensor in algorithm.state_dict(state).items():
        if name.startswith(("actor.", "critic.")):
            np.testing.assert_allclose(tensor.numpy(), theirs[name], rtol=0, atol=1e-12, err_msg=name)
