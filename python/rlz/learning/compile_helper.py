"""The helper process that compiles an update: `python -m rlz.learning.compile_helper`, a job on stdin.

Its last line of output is the error when it fails.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import sys
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rlz.errors import in_one_line
from rlz.learning.toolchain import use_cuda
from rlz.references import known_from

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from rlz.learning.compiled import CompileJob

PR_SET_PDEATHSIG = 1

OPTIONS = {
    "aot_inductor.package": True,
    # One library for every number of threads: torch.set_num_threads holds at each call. Without "threads" above 1 the
    # compiler (torch 2.15) leaves out the `omp single` around scalar code inside a parallel region: every thread then
    # runs it, and step counter and temperature are updated twice.
    "cpp.dynamic_threads": True,
    "cpp.threads": max(2, os.cpu_count() or 2),
}
"""Of the compiler."""

CUDA_OPTIONS = {
    **OPTIONS,
    # Kernels are loaded at their first launch, and what the loader has unpacked is gone by then: into the library.
    "aot_inductor.embed_kernel_binary": True,
}
"""For a card."""


def main() -> int:
    """Compile the job and put its library in place; exit status."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        for file in pickle.load(sys.stdin.buffer):
            known_from(file)
        job, library, priority = pickle.load(sys.stdin.buffer)
        os.nice(priority)
        with tempfile.TemporaryDirectory(prefix="rlz-cuda-") as folder:
            if job.device.startswith("cuda"):
                use_cuda(Path(folder))
            compile_update(job, Path(library))
    except Exception as error:
        print(in_one_line(error), file=sys.stderr)
        return 1
    return 0


def compile_update(job: CompileJob, library: Path) -> None:
    """Compile the in-place update of a job into `library` (atomically)."""
    import torch
    from torch.fx.experimental.proxy_tensor import make_fx  # the compiler; takes seconds to import

    from rlz.learning.compiled import blank
    from rlz.learning.executors import InPlaceUpdate
    from rlz.networks import dense

    torch.set_num_threads(1)
    torch.set_float32_matmul_precision(job.products)
    device = torch.device(job.device)
    initial = job.algorithm.init(torch.Generator().manual_seed(0))
    State = type(initial)
    state = [tensor.to(device) for tensor in initial]
    failed = torch.zeros((), dtype=torch.int64, device=device)
    blanks = [blank(layout, device) for layout in job.batch]
    batch = [tensor.normal_() if tensor.is_floating_point() else tensor for tensor in blanks]
    rows = job.batch[0][0][0]
    noise = torch.randn(job.algorithm.noise_shape(rows), device=device)
    learning_rate = torch.tensor(1e-3, dtype=torch.float64, device=device)
    inputs = (*state, failed, *batch, noise, learning_rate)

    def traced(kind: str, *, native: bool) -> Traced:
        """The update as a graph: from flat inputs to metrics, TD errors if there are any, and what is written later."""
        update = InPlaceUpdate(job.algorithm, later=dense.commits if native else None)
        unwritten: list[int] = []

        def flat(*inputs: Tensor) -> tuple[Tensor, ...]:
            old, failed, fields = inputs[: len(state)], inputs[len(state)], inputs[len(state) + 1 : -2]
            updated = update(State(*old), failed, job.algorithm.batch_type(*fields), inputs[-2], inputs[-1], kind)
            unwritten[:] = update.unwritten
            return *(tensor for tensor in updated if tensor is not None), *update.unwritten.values()

        with torch.no_grad(), dense.operators() if native else nullcontext():
            return Traced(make_fx(flat)(*inputs), unwritten)

    from torch._inductor.package.package import package_aoti

    files: dict[str, Any] = {}
    for kind in job.kinds:
        files[kind] = _library(partial(traced, kind), inputs, device, dense=job.dense)
    with tempfile.TemporaryDirectory(prefix=".making-", dir=library.parent) as scratch:
        made = Path(scratch) / "update.pt2"
        package_aoti(str(made), files)
        made.replace(library)


class Traced(NamedTuple):
    """An update as a graph."""

    graph: Any
    unwritten: list[int]
    """Fields of the state whose new values are the last outputs, for the caller to write."""


def _library(
    trace: Callable[..., Traced], inputs: tuple[Tensor, ...], device: torch.device, *, dense: bool | None
) -> Any:
    """Machine code of an update, with the fastest products that this machine has for it."""
    import torch

    def code(traced: Traced, options: dict[str, Any]) -> Any:
        with torch.no_grad():
            program = torch.export.export(traced.graph, inputs, strict=False)
            return torch._inductor.aot_compile(program.module(), inputs, options=options)

    if device.type == "cuda":
        return code(trace(native=False), CUDA_OPTIONS)
    try:
        from rlz.learning import native, onednn
        from rlz.learning.compiled import UNWRITTEN

        if dense is not False:
            traced = trace(native=True)
            if native.dense_calls(traced.graph) and (dense or native.faster(traced.graph)):
                native.narrow(traced.graph)
                unwritten = {UNWRITTEN: ",".join(map(str, traced.unwritten))}
                own = {"aot_inductor.custom_ops_to_c_shims": native.shims(), "aot_inductor.metadata": unwritten}
                return code(traced, OPTIONS | own)
        if onednn.faster():
            traced = trace(native=False)
            onednn.rewrite(traced.graph)
            return code(traced, OPTIONS)
    except Exception as error:  # another version of torch, whose compiler is not the same inside
        print(f"neither dense layers of rlz nor products by oneDNN: {in_one_line(error)}", file=sys.stderr)
    return code(trace(native=False), OPTIONS)


if __name__ == "__main__":
    sys.exit(main())
