"""Executors, the helper that compiles, and the engine that swaps."""

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from rlz._native import dense_instructions
from rlz.algorithms.actor_critic import ActorCritic
from rlz.algorithms.base import ACTOR, CRITIC, CRITIC_TARGET, WHOLE, Algorithm, Batch
from rlz.errors import NonFiniteError
from rlz.learning.compiled import Compilation, CompiledExecutor, layouts
from rlz.learning.engine import Engine, EnginePlan
from rlz.learning.executors import EagerExecutor, disagreement
from support.executors import CPU, RATE, flag, make_batch, make_job, make_sac, make_state, make_td3, noise

PATIENCE = pytest.mark.timeout(600)  # the compiler needs half a minute of CPU time, and machines may be busy


class Compiled(NamedTuple):
    """What these tests compile: an update of SAC with torch's products, two kinds of TD3's with dense layers."""

    algorithm: ActorCritic
    library: Path
    executor: CompiledExecutor


@pytest.fixture(scope="module", params=[(make_sac, False), (make_td3, True)], ids=["sac", "td3_dense"])
def compiled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    make, dense = request.param
    algorithm = make()
    job = replace(make_job(algorithm), dense=dense)
    compilation = Compilation(job, tmp_path_factory.mktemp("compiled"))
    compilation.start(nice=0)
    assert compilation.finished(wait=True), compilation.error
    assert compilation.error is None
    compilation.close()
    executor = compilation.load()
    assert executor.dense == dense
    return Compiled(algorithm, compilation.library, executor)


def make_engine(sac: Algorithm[Any], state: Any, lines: list[str], **plan: object) -> Engine:
    settings = EnginePlan(**{"threads": 1, **plan})  # type: ignore[arg-type]
    return Engine(
        sac, state, layout=layouts(make_batch().tensors()), device=CPU, seed=3, plan=settings, log=lines.append
    )


def test_eager_writes_the_state_in_place() -> None:
    sac = make_sac()
    state = make_state(sac)
    pointers = [tensor.data_ptr() for tensor in state]
    expected = sac.update(make_state(sac), make_batch(), noise(sac), RATE)
    metrics, td_errors = EagerExecutor(sac)(state, flag(), make_batch(), noise(sac), RATE, WHOLE)
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
    run(state, failed, make_batch(), noise(sac), RATE, WHOLE)
    before = [tensor.clone() for tensor in state]
    batch = make_batch()
    getattr(batch, field)[3] = float("nan")
    run(state, failed, batch, noise(sac), RATE, WHOLE)
    run(state, failed, make_batch(), noise(sac), RATE, WHOLE)
    assert sac.checks[int(failed) - 1] == check
    assert all(torch.equal(a, b) for a, b in zip(before, state, strict=True))


def test_an_actor_that_breaks_alone_is_named() -> None:
    sac = make_sac()
    state, failed = make_state(sac), flag()
    batch = make_batch()
    batch.discount.zero_()
    state.critic.mul_(1e30)  # Q overflows only where the actor's loss squares it in its gradient's sum
    batch.reward.copy_(sac.q_values(state.critic, batch.obs, batch.action)[0])
    EagerExecutor(sac)(state, failed, batch, noise(sac), RATE, WHOLE)
    assert int(failed) != 0


@pytest.mark.slow
@PATIENCE
def test_compiled_equals_eager_over_many_updates(compiled: Compiled) -> None:
    algorithm, _, executor = compiled
    eager = EagerExecutor(algorithm)
    for kind in algorithm.cycle:
        sample = make_batch(), noise(algorithm), RATE, kind
        assert disagreement(eager, executor, make_state(algorithm), *sample) is None
    states = make_state(algorithm), make_state(algorithm)
    for step in range(20):
        torch.set_num_threads(1 + step % 3 % 2)  # the number of threads is not part of the code
        kind = algorithm.cycle[step % len(algorithm.cycle)]
        results = [
            run(state, flag(), make_batch(step), noise(algorithm, step), RATE, kind)
            for run, state in zip((eager, executor), states, strict=True)
        ]
        wanted, found = (result.metrics for result in results)
        torch.testing.assert_close(found, wanted, rtol=0.02, atol=0.02, equal_nan=True)
        assert wanted.isnan().any() == (kind == CRITIC)
    torch.set_num_threads(1)
    # Rounding decides Adam's direction where a gradient is near 0, so single parameters drift apart, whole ones do not.
    for name, old, a, b in zip(states[0]._fields, make_state(algorithm), *states, strict=True):
        moved = (a - old).double().norm().item()
        assert (a - b).double().norm().item() <= 1e-2 * moved, name


@pytest.mark.slow
@PATIENCE
def test_compiled_freezes_like_eager(compiled: Compiled) -> None:
    algorithm, _, executor = compiled
    for kind in algorithm.cycle:
        state, failed, batch = make_state(algorithm), flag(), make_batch()
        batch.reward[0] = float("inf")
        before = [tensor.clone() for tensor in state]
        executor(state, failed, batch, noise(algorithm), RATE, kind)
        assert int(failed) == 1
        assert all(torch.equal(a, b) for a, b in zip(before, state, strict=True))


@pytest.mark.slow
@PATIENCE
def test_compiled_refuses_another_layout(compiled: Compiled) -> None:
    algorithm, _, executor = compiled
    other = make_batch()._replace(obs=make_batch().obs.contiguous())
    with pytest.raises(ValueError, match="compiled for batches of"):
        executor(make_state(algorithm), flag(), other, noise(algorithm), RATE, WHOLE)


def test_parity_check_sees_another_algorithm() -> None:
    found = disagreement(
        EagerExecutor(make_sac()), EagerExecutor(make_sac(tau=0.5)), make_state(make_sac()), make_batch(),
        noise(make_sac()), RATE, WHOLE,
    )  # fmt: skip
    assert found is not None
    assert found.startswith("target_critic differs by")


def test_the_cache_key_depends_on_algorithm_shapes_and_sources(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    job = make_job(make_sac())
    assert job.key() == make_job(make_sac()).key()
    assert job.key() != make_job(make_sac(tau=0.1)).key()
    assert job.key() != make_job(make_sac(), Batch(*(t.contiguous() for t in make_batch().tensors()))).key()
    assert job.key() != replace(job, kinds=(CRITIC_TARGET, ACTOR)).key()
    changed = tmp_path / "sac.py"
    changed.write_text("# another version")
    before = job.key()
    monkeypatch.setattr("rlz.learning.compiled._sources", lambda algorithm: [changed])
    assert job.key() != before


@pytest.mark.slow
@PATIENCE
def test_engine_loads_from_the_cache_before_the_first_update(
    compiled: Compiled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlz.learning.compiled.cache_folder", lambda: compiled.library.parent)
    shutil.copy(compiled.library, Compilation(make_job(compiled.algorithm)).library)
    lines = list[str]()
    engine = make_engine(compiled.algorithm, make_state(compiled.algorithm), lines)
    engine.start()
    engine.update(make_batch(), 1e-3)
    assert engine.executor == "compiled"
    dense = f", dense layers by rlz with {dense_instructions()}" if compiled.executor.dense else ""
    assert lines == [f"updates are compiled now{dense} (checked against an eager one)"]
    batch = make_batch()
    batch.reward.fill_(float("inf"))
    with pytest.raises(NonFiniteError, match="critic_loss is not finite"):
        engine.update(batch, 1e-3)
    engine.close()


@pytest.mark.parametrize("fixed", [False, True])
def test_without_a_compiler_training_goes_on_eagerly(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fixed: bool
) -> None:
    monkeypatch.setattr("rlz.learning.compiled.cache_folder", lambda: tmp_path)
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


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("/proc/x", "'/proc/x'. XDG_CACHE_HOME may name another folder"),
        ("/dev/null", "Not a directory"),
        ("", "no process"),
    ],
)
def test_whatever_keeps_the_helper_from_starting_training_goes_on_eagerly(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, place: str, words: str, fixed: bool
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(12, "no process")

    monkeypatch.setenv("XDG_CACHE_HOME", place or str(tmp_path))
    if not place:
        monkeypatch.setattr("rlz.learning.compiled.subprocess.Popen", refuse)
    sac, lines = make_sac(), list[str]()
    engine = make_engine(sac, make_state(sac), lines, fixed=fixed)
    engine.start()
    engine.update(make_batch(), 1e-3)
    engine.close()
    assert engine.executor == "eager"
    assert len(lines) == 1
    assert lines[0].startswith("compile failed, updates stay eager: the compiler's helper cannot be started: ")
    assert words in lines[0]


@pytest.mark.slow
def test_a_helper_that_fails_gives_one_line(tmp_path: Path) -> None:
    compilation = Compilation(make_job(make_sac(), device="xpu"), tmp_path)  # a device that is not there
    compilation.start(nice=0)
    assert compilation.finished(wait=True)
    compilation.close()
    assert not compilation.ready
    assert compilation.error is not None
    assert "\n" not in compilation.error
    assert "xpu" in compilation.error.lower()


def test_a_broken_library_is_thrown_away(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("rlz.learning.compiled.cache_folder", lambda: tmp_path)
    sac, lines = make_sac(), list[str]()
    engine = make_engine(sac, make_state(sac), lines)
    broken = Compilation(make_job(sac)).library
    broken.write_bytes(b"not a library")
    engine.start()
    engine.update(make_batch(), 1e-3)
    engine.close()
    assert engine.executor == "eager"
    assert lines[0].startswith("compile failed, updates stay eager: ")
    assert not broken.exists()


def test_the_helper_ends_with_the_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("rlz.learning.compiled.cache_folder", lambda: tmp_path)
    sac = make_sac()
    engine = make_engine(sac, make_state(sac), [])
    engine.start()
    assert engine._swap is not None
    process = engine._swap._compilation._process
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


def test_an_engine_runs_the_kinds_in_their_order_and_goes_on_within_a_cycle() -> None:
    td3 = make_td3()
    state = make_state(td3)
    engine = make_engine(td3, state, [], compile=False)
    for _ in range(3):
        engine.update(make_batch(), 1e-3)
    assert (int(state.updates), int(state.actor_updates)) == (3, 1)
    resumed = make_engine(td3, state, [], compile=False)
    actor = state.actor.clone()
    resumed.update(make_batch(), 1e-3)
    assert (int(state.updates), int(state.actor_updates)) == (4, 2)
    assert not torch.equal(state.actor, actor)
