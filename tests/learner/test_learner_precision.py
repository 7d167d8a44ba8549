"""`--precision`: what auto stands for, what a device cannot do, and that a run keeps its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from rlz.errors import CheckpointError, ConfigError, DeviceError
from rlz.learning.compiled import CompileJob
from rlz.learning.precision import use_precision
from rlz.records.checkpoint import newest_checkpoint
from rlz.runtime.resume import _check_precision
from support.learner import Run, config

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def _switch() -> Iterator[None]:
    """Take the switch of the process back."""
    yield
    torch.set_float32_matmul_precision("highest")


def test_auto_is_float32_on_the_cpu() -> None:
    assert use_precision("auto", [CPU]) == use_precision("fp32", [CPU]) == "fp32"
    assert use_precision("bf16", [CPU]) == "bf16"
    assert torch.get_float32_matmul_precision() == "highest"
    with pytest.raises(DeviceError, match="--precision tf32: the CPU has no tf32; use auto or fp32"):
        use_precision("tf32", [CPU])


def test_auto_is_tf32_where_cuda_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    assert use_precision("auto", [CUDA]) == "tf32"
    assert torch.get_float32_matmul_precision() == "high"
    assert use_precision("auto", [CUDA], serial=True) == use_precision("auto", [CUDA, CPU]) == "fp32"
    assert torch.get_float32_matmul_precision() == "highest"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "T4")
    assert use_precision("auto", [CUDA]) == "fp32"
    for precision in ("tf32", "bf16"):
        with pytest.raises(DeviceError, match=rf"--precision {precision}: T4 \(compute capability 7.5\) has neither"):
            use_precision(precision, [CUDA])


def test_a_run_keeps_its_precision(tmp_path: Path) -> None:
    run = Run(tmp_path, config(precision="bf16"))
    learner = run.learner()
    learner.start()
    assert learner._updates.trainer._plan.precision == "bf16", (
        "as far as bf16 may a compiled update be from an eager one"
    )
    run.sample(40)
    while learner.step(None):
        pass
    assert {tensor.dtype for tensor in learner.state_dict().values()} == {torch.float32, torch.int64}
    learner.close()
    saved = newest_checkpoint(tmp_path)
    assert saved.extra == {"precision": "bf16"}
    with pytest.raises(ConfigError, match="--precision fp32: the run was trained in bf16"):
        _check_precision(config(precision="fp32"), saved)
    # What auto stands for is known to the learner alone.
    _check_precision(config(), saved)
    with pytest.raises(CheckpointError, match="the run was trained in bf16, this would go on in fp32"):
        Run(tmp_path, config()).learner(resume=str(saved.path))


def test_compiled_code_is_of_one_precision() -> None:
    from support.executors import make_job, make_sac

    job = make_job(make_sac())
    assert job.key() != CompileJob(job.algorithm, job.batch, job.device, job.kinds, "high").key()
