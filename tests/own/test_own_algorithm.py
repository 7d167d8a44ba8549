"""A user's own algorithm in one file: its options, its errors, its state, exact resume."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch import nn

import rlz
from rlz.algorithms.registry import algorithm_type
from rlz.algorithms.settings_json import description, settings_class
from rlz.cli.app import main
from rlz.envs.spaces import EnvSpec
from rlz.errors import CheckpointError
from rlz.learning.compiled import Compilation, CompileJob, layouts
from rlz.learning.executors import EagerExecutor, disagreement
from rlz.references import load
from support.algorithm_contract import Case

EXAMPLES = Path(__file__).parents[2] / "examples"
DQN = f"{EXAMPLES / 'dqn.py'}:Dqn"
SHORT = "--env CartPole-v1 --mode serial --learning-starts 50 --eval-every 0 --plan off --checkpoint-every 0".split()  # noqa: SIM905


def rlz_train(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rlz", "train", *options], capture_output=True, text=True, timeout=110, check=False
    )


def test_half_and_half_is_the_whole(tmp_path: Path) -> None:
    options = ["--runs-dir", str(tmp_path), "--double", "--batch-size", "16"]
    assert main(["train", DQN, *SHORT, "-n", "160", "--name", "whole", *options]) == 0
    assert main(["train", DQN, *SHORT, "-n", "100", "--name", "half", *options]) == 0
    assert main(["train", "--resume", str(tmp_path / "half"), "-n", "160"]) == 0
    whole, half = (
        load_file(tmp_path / name / "checkpoints" / "latest" / "learner.safetensors") for name in ("whole", "half")
    )
    assert whole.keys() == half.keys()
    assert {"net.values.weight", "optimizer.state.0.exp_avg", "optimizer.param_groups.0.lr", "updates"} <= whole.keys()
    assert whole["updates"] == 110
    for name, tensor in whole.items():
        np.testing.assert_array_equal(tensor, half[name], err_msg=name)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--double", "maybe"], ["unexpected extra argument"]),
        (["--target-every", "0"], ["--target-every 0", "an integer of at least 1"]),
        (["--tau", "0.1"], ["No such option --tau"]),
    ],
)
def test_options_are_checked_like_those_of_rlz(options: list[str], words: list[str]) -> None:
    found = rlz_train(DQN, "--env", "CartPole-v1", *options)
    assert found.returncode == 2
    assert all(word in found.stderr for word in words), found.stderr


BROKEN = """
import torch
import rlz


class Net(torch.nn.Module):
    def __init__(self, spaces):
        super().__init__()
        self.layer = torch.nn.Linear(spaces.obs_dim, sum(spaces.action_choices))

    def forward(self, obs):
        return self.layer(obs)


class Mine(rlz.TorchAlgorithm):
    acting = rlz.EpsilonGreedy(Net)

    def setup(self):
        self.net = Net(self.spaces)

    def learn(self, batch, update):
        return {"loss": self.net(batch.action).mean()}


class Neither:
    pass
"""


def test_an_error_in_the_users_file_is_shown_where_it_is_and_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(BROKEN)
    found = rlz_train(f"{tmp_path / 'mine.py'}:Mine", *SHORT, "--runs-dir", str(tmp_path / "runs"))
    assert found.returncode == 1
    assert 'return {"loss": self.net(batch.action).mean()}' in found.stderr
    assert "This is a bug in rlz" not in found.stderr
    assert not (tmp_path / "runs").exists() or not list((tmp_path / "runs").iterdir())
    found = rlz_train(f"{tmp_path / 'mine.py'}:Neither", *SHORT)
    assert found.returncode == 1
    assert "derives from rlz.TorchAlgorithm" in found.stderr
    found = rlz_train(f"{tmp_path / 'mine.py'}:Mne", *SHORT)
    assert "Did you mean 'Mine'?" in found.stderr


class Settings(rlz.ReplaySettings, rlz.NetworkSettings):
    depth: int = rlz.option(3, ge=1, le=9, help="How deep.")
    style: float | None = rlz.option(None, gt=0, help="How.")
    gamma: float = rlz.option(0.9, ge=0, le=1, help="Another default.")


def test_settings_travel_as_a_description() -> None:
    found = settings_class(description(Settings))
    assert found.model_fields.keys() == Settings.model_fields.keys()
    made = found(depth="5", hidden="8,8", batch_size=32)  # type: ignore[call-arg]
    assert (made.depth, made.style, made.gamma, made.hidden, made.data().batch) == (5, None, 0.9, (8, 8), 32)  # type: ignore[attr-defined]
    for bad in ({"depth": 10}, {"style": 0}, {"hidden": "x"}, {"depth": 1.5}, {"other": 1}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            found(**bad)


class Net(nn.Module):
    def __init__(self, spaces: EnvSpec) -> None:
        super().__init__()
        self.layer = nn.Linear(spaces.obs_dim, spaces.action_dim)
        self.norm = nn.BatchNorm1d(spaces.action_dim)

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return self.norm(self.layer(obs)).tanh()


class Everything(rlz.TorchAlgorithm[rlz.ReplaySettings]):
    """One of each kind that has a state."""

    acting = Net

    def setup(self) -> None:
        self.net = Net(self.spaces)
        self.optimizer = torch.optim.SGD(self.net.parameters(), self.learning_rate, momentum=0.9)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2)
        self.scale = torch.ones(2)
        self.count = 0
        self.running = 0.5

    def learn(self, batch: rlz.Batch, update: int) -> dict[str, float]:
        loss = (self.net(batch.obs) * self.scale[:1]).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        self.scale += 1.0
        self.count += 1
        self.running *= 0.5
        return {"loss": loss.item()}


def made() -> Everything:
    algorithm = Everything(rlz.ReplaySettings(), EnvSpec.of_sizes(3, 2))
    algorithm.setup()
    return algorithm


def batch(seed: int) -> rlz.Batch:
    draw = torch.Generator().manual_seed(seed)
    obs = torch.randn(8, 3, generator=draw)
    return rlz.Batch(obs, torch.zeros(8, 2), obs, torch.zeros(8), torch.ones(8))


def test_every_part_with_a_state_is_saved_and_goes_on_exactly() -> None:
    one = made()
    for step in range(3):
        one.learn(batch(step), step)
    saved = {name: tensor.clone() for name, tensor in one.state_dict().items()}
    other = made()
    other.load_state_dict(None, saved)
    assert (other.count, other.running) == (3, 0.0625)
    for step in range(3, 6):
        assert one.learn(batch(step), step) == other.learn(batch(step), step)
    for name, tensor in one.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name]), name


def test_a_state_of_another_algorithm_is_refused() -> None:
    saved = made().state_dict()
    with pytest.raises(CheckpointError, match="lacks scale"):
        made().load_state_dict(None, {name: value for name, value in saved.items() if name != "scale"})
    with pytest.raises(CheckpointError, match="has further"):
        made().load_state_dict(None, saved | {"further": torch.zeros(1)})
    with pytest.raises(CheckpointError, match="net does not fit"):
        made().load_state_dict(None, saved | {"net.layer.weight": torch.zeros(1, 1)})


def test_a_scheduler_of_the_users_own_decides_while_the_learning_rate_of_rlz_stays() -> None:
    """A resumed run goes on with its learning rate, not with a part of it."""

    class Halves(Everything):
        def setup(self) -> None:
            super().setup()
            self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=1, gamma=0.5)

    case = Case(Halves, settings={"learning_rate": "lin_1e-3"})
    found, trainer = case.learned()
    group = trainer._algorithm.optimizer.param_groups[0]  # type: ignore[attr-defined]
    for rate, after in ((1e-3, 5e-4), (1e-3, 2.5e-4), (8e-4, 4e-4)):
        trainer.update(case.batch(), rate)
        assert group["lr"] == pytest.approx(after)
    found.load_state_dict({name: tensor.clone() for name, tensor in trainer.state_dict().items()})
    found.trainer(case.place(1)).update(case.batch(), 4e-4)
    assert found._algorithm.optimizer.param_groups[0]["lr"] == pytest.approx(2e-4)  # type: ignore[attr-defined]


def test_answers_name_the_metrics_and_what_acts() -> None:
    answers = Everything(rlz.ReplaySettings(), EnvSpec.of_sizes(3, 2)).answers()
    assert answers.metrics == ("loss",)
    assert answers.policy.runner == "torch"
    assert [name for name, _, _ in answers.policy.manifest][:2] == ["layer.weight", "layer.bias"]
    assert type(answers).from_json(answers.to_json()) == answers


@pytest.mark.parametrize(("name", "ratio"), [("redq.py:Redq", 20), ("tqc.py:Tqc", 1)])
def test_examples_of_pure_updates_train_and_hold_their_ratio(tmp_path: Path, name: str, ratio: int) -> None:
    options = ["--env", "Pendulum-v1", "--mode", "serial", "--eval-every", "0", "--no-compile", "--plan", "off"]
    size = ["-n", "60", "--learning-starts", "50", "--hidden", "16,16", "--batch-size", "32", "--seed", "3"]
    where = ["--runs-dir", str(tmp_path), "--name", "run"]
    assert main(["train", f"{EXAMPLES / name}", *options, *size, *where]) == 0
    saved = load_file(tmp_path / "run" / "checkpoints" / "latest" / "learner.safetensors")
    assert saved["updates"] == 10 * ratio
    assert "adam.mean.critic.0.weight" in saved
    policy = rlz.load(tmp_path / "run")
    assert policy.predict(np.zeros(3, np.float32)).shape == (1,)


OWN_LAYERS = """
from torch import nn

class Net(nn.Sequential):
    def __init__(self, inputs, outputs):
        super().__init__(nn.Linear(inputs, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, outputs))
"""


@pytest.mark.parametrize("own", ["algorithm", "network"])
def test_a_pure_update_of_a_users_file_is_compiled_by_the_helper(tmp_path: Path, own: str) -> None:
    (tmp_path / "net.py").write_text(OWN_LAYERS)
    kind = load(f"{EXAMPLES / 'tqc.py'}:Tqc") if own == "algorithm" else algorithm_type("sac")
    settings = {"n_quantiles": 3, "drop": 1} if own == "algorithm" else {"network": f"{tmp_path / 'net.py'}:Net"}
    algorithm = kind(kind.Settings(hidden=(8,), **settings), EnvSpec.of_sizes(3, 2))
    state = algorithm.init(torch.Generator().manual_seed(1))
    draw = torch.Generator().manual_seed(2)
    rows = [torch.randn(4, 3, generator=draw), torch.rand(4, 2, generator=draw), torch.randn(4, 3, generator=draw)]
    given = rlz.Batch(*rows, torch.randn(4, generator=draw), torch.full((4,), 0.9))
    compilation = Compilation(CompileJob(algorithm, layouts(given.tensors()), "cpu", ("whole",)), tmp_path)
    compilation.start(nice=0)
    assert compilation.finished(wait=True)
    assert compilation.error is None
    compiled = compilation.load()
    noise = torch.randn(algorithm.noise_shape(4), generator=draw)
    rate = torch.tensor(1e-3, dtype=torch.float64)
    assert disagreement(EagerExecutor(algorithm), compiled, state, given, noise, rate, "whole") is None
    compilation.close()
