"""Executors, the helper that compiles, and the engine that swaps."""

import os
from pathlib import Path

import pytest
import torch

from rlz.algorithms.base import Batch
from rlz.algorithms.sac import Sac, SacState
from rlz.errors import NonFiniteError
from rlz.networks import mlp
from rlz.workers.execution.compiled import Compilation, CompiledExecutor, Job, layouts
from rlz.workers.execution.engine import Engine, EnginePlan
from rlz.workers.execution.executors import EagerExecutor, disagreement

RATE = torch.tensor(1e-3, dtype=torch.float64)
CPU = torch.device("cpu")


def make_sac(**values: float) -> Sac:
    critic = mlp.critics(3, 2, (8,), "relu", layer_norm=True, members=2)
    return Sac(mlp.actor(3, 2, (8,), "relu", layer_norm=True), critic, target_entropy=-2.0, **values)


def make_state(sac: Sac, seed: int = 1) -> SacState:
    return sac.init(torch.Generator().manual_seed(seed))


def make_batch(seed: int = 1) -> Batch:
    rows = torch.randn(16, 12, generator=torch.Generator().manual_seed(seed))  # as decoded: views of packed rows
    return Batch(rows[:, :3], rows[:, 3:5].tanh_(), rows[:, 5:8], rows[:, 8], rows[:, 9].fill_(0.99))


def noise(sac: Sac, seed: int = 2) -> torch.Tensor:
    return torch.randn(sac.noise_shape(16), generator=torch.Generator().manual_seed(seed))


def flag() -> torch.Tensor:
    return torch.zeros((), dtype=torch.int64)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The one library that these tests compile."""
    compilation = Compilation(
        Job(make_sac(), layouts(make_batch().tensors()), "cpu"), tmp_path_factory.mktemp("compiled")
    )
    compilation.start(urgent=True)
    assert compilation.finished(wait=True), compilation.error
    assert compilation.error is None
    compilation.close()
    return compilation.library


def make_engine(sac: Sac, state: SacState, lines: list[str], **plan: object) -> Engine:
    settings = EnginePlan(**{"threads": 1, **plan})  # type: ignore[arg-type]
    return Engine(
        sac, state, layout=layouts(make_batch().tensors()), device=CPU, seed=3, plan=settings, log=lines.append
    )


def test_eager_writes_the_state_in_place() -> None:
    sac = make_sac()
    state = make_state(sac)
    pointers = [tensor.data_ptr() for tensor in state]
    expected = sac.update(make_state(sac), make_batch(), noise(sac), RATE)
    metrics, td_errors = EagerExecutor(sac)(state, flag(), make_batch(), noise(sac), RATE)
    assert td_errors is None
    torch.testing.assert_close(tuple(state), tuple(expected.state), rtol=0, atol=0)
    torch.testing.assert_close(metrics, expected.metrics)
    assert pointers == [tensor.data_ptr() for tensor in state]


@pytest.mark.parametrize(
    ("field", "check"), [("reward", "critic_loss"), ("obs", "critic_loss"), ("next_obs", "critic_loss")]
)
def test_a_bad_batch_freezes_the_state_for_good(field: str, check: str) -> None:
    sac = make_sac()
    state, failed = make_state(sac), flag()
    run = EagerExecutor(sac)
    run(state, failed, make_batch(), noise(sac), RATE)
    before = [tensor.clone() for tensor in state]
    batch = make_batch()
    getattr(batch, field)[3] = float("nan")
    run(state, failed, batch, noise(sac), RATE)
    run(state, failed, make_batch(), noise(sac), RATE)
    assert sac.check_names[int(failed) - 1] == check
    assert all(torch.equal(a, b) for a, b in zip(before, state, strict=True))


def test_an_actor_that_breaks_alone_is_named() -> None:
    sac = make_sac()
    state, failed = make_state(sac), flag()
    batch = make_batch()
    batch.discount.zero_()
    state.critic.mul_(1e30)  # Q overflows only where the actor's loss squares it in its gradient's sum
    batch.reward.copy_(sac.q_values(state.critic, batch.obs, batch.action)[0])
    EagerExecutor(sac)(state, failed, batch, noise(sac), RATE)
    assert int(failed) != 0


@pytest.mark.slow
def test_compiled_equals_eager_over_many_updates(library: Path) -> None:
    sac = make_sac()
    compiled = CompiledExecutor(library, layouts(make_batch().tensors()), "cpu")
    assert disagreement(EagerExecutor(sac), compiled, make_state(sac), make_batch(), noise(sac), RATE) is None
    states = make_state(sac), make_state(sac)
    for step in range(20):
        for run, state in zip((EagerExecutor(sac), compiled), states, strict=True):
            torch.set_num_threads(1 + step % 2)  # the number of threads is not part of the code
            metrics, _ = run(state, flag(), make_batch(step), noise(sac, step), RATE)
            assert torch.isfinite(metrics).all()
    torch.set_num_threads(1)
    # Rounding decides Adam's direction where a gradient is near 0, so single parameters drift apart, whole ones do not.
    for name, old, a, b in zip(SacState._fields, make_state(sac), *states, strict=True):
        moved = (a - old).double().norm().item()
        assert (a - b).double().norm().item() <= 1e-2 * moved, name


@pytest.mark.slow
def test_compiled_freezes_like_eager(library: Path) -> None:
    sac = make_sac()
    state, failed, batch = make_state(sac), flag(), make_batch()
    batch.reward[0] = float("inf")
    before = [tensor.clone() for tensor in state]
    CompiledExecutor(library, layouts(batch.tensors()), "cpu")(state, failed, batch, noise(sac), RATE)
    assert int(failed) == 1
    assert all(torch.equal(a, b) for a, b in zip(before, state, strict=True))


@pytest.mark.slow
def test_compiled_refuses_another_layout(library: Path) -> None:
    compiled = CompiledExecutor(library, layouts(make_batch().tensors()), "cpu")
    sac, batch = make_sac(), make_batch()
    with pytest.raises(ValueError, match="compiled for batches of"):
        compiled(make_state(sac), flag(), batch._replace(obs=batch.obs.contiguous()), noise(sac), RATE)


def test_parity_check_sees_another_algorithm() -> None:
    found = disagreement(
        EagerExecutor(make_sac()), EagerExecutor(make_sac(tau=0.5)), make_state(make_sac()), make_batch(),
        noise(make_sac()), RATE,
    )  # fmt: skip
    assert found is not None
    assert found.startswith("target differs by")


def test_the_cache_key_depends_on_algorithm_shapes_and_sources(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    job = Job(make_sac(), layouts(make_batch().tensors()), "cpu")
    assert job.key() == Job(make_sac(), layouts(make_batch().tensors()), "cpu").key()
    assert job.key() != Job(make_sac(tau=0.1), layouts(make_batch().tensors()), "cpu").key()
    assert job.key() != Job(make_sac(), layouts([t.contiguous() for t in make_batch().tensors()]), "cpu").key()
    changed = tmp_path / "sac.py"
    changed.write_text("# another version")
    before = job.key()
    monkeypatch.setattr("rlz.workers.execution.compiled._sources", lambda algorithm: [changed])
    assert job.key() != before


@pytest.mark.slow
def test_engine_loads_from_the_cache_before_the_first_update(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlz.workers.execution.compiled.cache_folder", lambda: library.parent)
    sac, lines = make_sac(), list[str]()
    engine = make_engine(sac, make_state(sac), lines)
    engine.start()
    engine.update(make_batch(), 1e-3)
    assert engine.executor == "compiled"
    assert lines == ["updates are compiled now (checked against an eager one)"]
    batch = make_batch()
    batch.reward.fill_(float("inf"))
    with pytest.raises(NonFiniteError, match="critic_loss is not finite"):
        engine.update(batch, 1e-3)
    engine.close()


@pytest.mark.parametrize("fixed", [False, True])
def test_without_a_compiler_training_goes_on_eagerly(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fixed: bool
) -> None:
    monkeypatch.setattr("rlz.workers.execution.compiled.cache_folder", lambda: tmp_path)
    monkeypatch.setenv("CXX", "/no/compiler")
    sac, lines = make_sac(), list[str]()
    engine = make_engine(sac, make_state(sac), lines, fixed=fixed)
    engine.start()
    for _ in range(3):
        engine.update(make_batch(), 1e-3)
    engine.close()
    assert engine.executor == "eager"
    assert lines == [
        "compile failed, updates stay eager: there is no C++ compiler /no/compiler (install g++, or set CXX)"
    ]


@pytest.mark.slow
def test_a_helper_that_fails_gives_one_line(tmp_path: Path) -> None:
    compilation = Compilation(
        Job(make_sac(), layouts(make_batch().tensors()), "xpu"), tmp_path
    )  # a device that is not there
    compilation.start(urgent=True)
    assert compilation.finished(wait=True)
    compilation.close()
    assert not compilation.ready
    assert compilation.error is not None
    assert "\n" not in compilation.error
    assert "xpu" in compilation.error.lower()


def test_a_broken_library_is_thrown_away(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("rlz.workers.execution.compiled.cache_folder", lambda: tmp_path)
    sac, lines = make_sac(), list[str]()
    engine = make_engine(sac, make_state(sac), lines)
    broken = Compilation(Job(sac, layouts(make_batch().tensors()), "cpu")).library
    broken.write_bytes(b"not a library")
    engine.start()
    engine.update(make_batch(), 1e-3)
    engine.close()
    assert engine.executor == "eager"
    assert lines[0].startswith("compile failed, updates stay eager: ")
    assert not broken.exists()


def test_the_helper_ends_with_the_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("rlz.workers.execution.compiled.cache_folder", lambda: tmp_path)
    sac = make_sac()
    engine = make_engine(sac, make_state(sac), [])
    engine.start()
    assert engine._compilation is not None
    process = engine._compilation._process
    assert process is not None
    assert os.getpgid(process.pid) == os.getpgrp()
    engine.update(make_batch(), 1e-3)
    engine.close()
    assert process.poll() is not None
    assert not list(tmp_path.glob("*.pt2"))


def test_an_engine_with_one_seed_repeats_itself() -> None:
    sac = make_sac()
    states = [make_state(sac), make_state(sac)]
    for state in states:
        engine = make_engine(sac, state, [], compile=False, fixed=True)
        for step in range(3):
            engine.update(make_batch(step), 1e-3)
    assert all(torch.equal(a, b) for a, b in zip(*states, strict=True))
