"""Machine code for a whole update, made by a helper process while training has already begun.

`compile_helper` traces the update, lets torch's compiler (AOTInductor) turn the whole graph into a shared library, one
for each kind of update, and puts them in a file of a cache folder under a name that says everything it depends on. The
learner never compiles and never imports the compiler: loading the file takes milliseconds, so a run whose file is in
the cache starts with it, and another swaps it in at an update boundary. The number of threads is not part of the code;
it may change any time.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

import rlz.algorithms
import rlz.networks
from rlz.algorithms.base import Algorithm, Batch
from rlz.errors import in_one_line
from rlz.learning.executors import Updated
from rlz.learning.memory import HELPER_BYTES
from rlz.learning.toolchain import missing_tool
from rlz.networks import dense
from rlz.references import files_of
from rlz.system.user_cache import drop_oldest, user_cache

CACHE_ENTRIES = 64
"""Libraries kept in the cache folder (2 MB each)."""

LOW_PRIORITY = 5
"""Nice value of a helper that nobody waits for: behind the learner and the samplers, yet with a third of a core where
all are busy. With 19 it got 1 % there, and a run on a saturated machine stayed eager, at half speed, for minutes."""

_LOADING = threading.Lock()

Layout = tuple[tuple[int, ...], tuple[int, ...], torch.dtype, int]
"""Shape, stride, dtype and place in its storage of a tensor: code for a card depends on how its memory is aligned."""


def layouts(tensors: Sequence[Tensor]) -> tuple[Layout, ...]:
    """Layout of each tensor."""
    return tuple((tuple(t.shape), tuple(t.stride()), t.dtype, int(t.storage_offset())) for t in tensors)


def blank(layout: Layout, device: torch.device) -> Tensor:
    """Zeros that lie in memory of their own as a layout says."""
    shape, stride, dtype, offset = layout
    last = sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
    return torch.zeros(offset + last + 1, dtype=dtype, device=device).as_strided(shape, stride, offset)


def kinds_of(cycle: Sequence[str | None]) -> tuple[str, ...]:
    """Every kind of update in a cycle, once."""
    return tuple(dict.fromkeys(kind for kind in cycle if kind is not None))


@dataclass(frozen=True)
class CompileJob:
    """What a compiled update is made from.

    Attributes
    ----------
    algorithm : its update.
    batch : layouts of the fields of a batch; the compiled code is for these alone.
    device : torch device.
    kinds : of update.
    dense : dense layers are those of rlz, or as torch makes them; None: the faster of the two. On the CPU.
    products : `torch.get_float32_matmul_precision()`.
    """

    algorithm: Algorithm[Any]
    batch: tuple[Layout, ...]
    device: str
    kinds: tuple[str, ...]
    products: str = "highest"
    dense: bool | None = None

    def key(self) -> str:
        """Name in the cache: a digest of everything that the machine code depends on."""
        digest = hashlib.sha256()
        kind = torch.device(self.device).type
        facts = [torch.__version__, kind, repr(self.algorithm), repr(self.batch), repr(self.kinds)]
        facts += [self.products, str(self.dense), _processor()]
        if kind == "cuda":
            facts.append(torch.cuda.get_device_name(self.device))
        for fact in facts:
            digest.update(str(fact).encode() + b"\0")
        for source in _sources(self.algorithm):
            digest.update(source.read_bytes() + b"\0")
        return digest.hexdigest()[:32]


def _processor() -> str:
    """Instruction set: the compiler is free to use all of it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("flags", "Features")):
                return " ".join(sorted(line.split(":", 1)[1].split()))
    except OSError:
        pass
    return torch.backends.cpu.get_cpu_capability()


def _sources(algorithm: Algorithm[Any]) -> list[Path]:
    folders = [Path(package.__path__[0]) for package in (rlz.algorithms, rlz.networks)]
    files = {path for folder in folders for path in folder.glob("*.py")}
    files |= {
        Path(__file__).with_name(name)
        for name in ("compiled.py", "executors.py", "compile_helper.py", "native.py", "onednn.py", "toolchain.py")
    }
    own = getattr(sys.modules.get(type(algorithm).__module__), "__file__", None)
    return sorted(files | ({Path(own)} if own else set()))


def cache_folder() -> Path:
    """`$XDG_CACHE_HOME/rlz/compiled`, which may not exist yet."""
    return user_cache("compiled")


UNWRITTEN = "rlz.unwritten"
"""In the metadata of a library with dense layers of rlz: fields of the state that are its last outputs, and that
whoever calls it writes."""


def _numbers(metadata: Mapping[str, str]) -> tuple[int, ...] | None:
    text = metadata.get(UNWRITTEN)
    return None if text is None else tuple(int(number) for number in text.split(",") if number)


class CompiledExecutor:
    """Runs the machine code of an update.

    Raises
    ------
    Exception
        Whatever torch raises when the library cannot be loaded.
    """

    name = "compiled"

    def __init__(self, library: Path, batch: tuple[Layout, ...], device: str, kinds: Iterable[str]) -> None:
        index = torch.device(device).index
        # With more than one runner the loader asks an event whether one is free, which no capture of a graph allows.
        # An executor is called by one thread at a time anyway.
        single = torch.device(device).type == "cuda"
        # The loader unpacks the library beside $TMPDIR and keeps the files until it is destroyed, which a killed
        # process never does. Once loaded they are not needed. The variable is the whole process's.
        with _LOADING, tempfile.TemporaryDirectory(prefix="rlz-", ignore_cleanup_errors=True) as scratch:
            before = os.environ.get("TMPDIR")
            os.environ["TMPDIR"] = scratch
            dense.library()  # whose functions the library may call by name
            try:
                load = torch._C._aoti.AOTIModelPackageLoader
                self._update = {
                    kind: load(str(library), kind, single, 1, -1 if index is None else index) for kind in kinds
                }
            finally:
                if before is None:
                    del os.environ["TMPDIR"]
                else:
                    os.environ["TMPDIR"] = before
        self._batch = batch
        self._checked: Any = None  # the newest batch: rows of a rollout come in the same one each time
        self._unwritten = {kind: _numbers(update.get_metadata()) for kind, update in self._update.items()}
        self.dense = any(numbers is not None for numbers in self._unwritten.values())
        """It has dense layers of rlz."""

    def __call__(
        self, state: Any, failed: Tensor, batch: Batch, noise: Tensor, learning_rate: Tensor, kind: str
    ) -> Updated:
        """As in `Executor`. Raises ValueError for a batch of another layout (the code does not check)."""
        fields = batch.tensors()
        if batch is not self._checked:
            if layouts(fields) != self._batch:
                raise ValueError(f"compiled for batches of {self._batch}, got {layouts(fields)}")
            self._checked = batch
        update, inputs = self._update[kind], [*state, failed, *fields, noise, learning_rate]
        unwritten = self._unwritten[kind]
        if unwritten is None:
            metrics, *td_errors = update.boxed_run(inputs)
            return Updated(metrics, td_errors[0] if td_errors else None)
        # The threads are those of the dense layers. Others would spin on the same cores for loops that are short.
        threads = torch.get_num_threads()
        dense.use_threads(threads)
        torch.set_num_threads(1)
        try:
            metrics, *rest = update.boxed_run(inputs)
            first = len(rest) - len(unwritten)
            if not failed:
                dense.commit([state[index] for index in unwritten], rest[first:])
        finally:
            torch.set_num_threads(threads)
        return Updated(metrics, rest[0] if first else None)


class Compilation:
    """A library that is in the cache, or being made by a helper process of low priority.

    The helper stays in this process's group, so whoever kills the group kills it; it also ends with its parent. Nothing
    that keeps it from starting is an exception: `error` says it.
    """

    def __init__(self, job: CompileJob, folder: Path | None = None) -> None:
        self.job = job
        self.library = (cache_folder() if folder is None else folder) / f"{job.key()}.pt2"
        self.error: str | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None

    @property
    def ready(self) -> bool:
        """The library can be loaded."""
        return self.library.is_file()

    def start(self, *, nice: int = LOW_PRIORITY) -> None:
        """Start the helper; `nice` 0: somebody waits for it, so at this process's priority."""
        try:
            self._start(nice)
        except Exception as error:  # no folder, no room, no process: training goes on without compiled updates
            self.close()
            hint = ". XDG_CACHE_HOME may name another folder" if isinstance(error, OSError) else ""
            self.error = f"the compiler's helper cannot be started: {in_one_line(error)}{hint}"

    def _start(self, nice: int) -> None:
        if self.ready or self._process is not None:
            return
        self.error = missing_tool(cuda=torch.device(self.job.device).type == "cuda")
        if self.error is not None:
            return
        if self.job.device.startswith("cuda"):
            free = torch.cuda.mem_get_info(self.job.device)[0]
            if free < HELPER_BYTES:
                self.error = (
                    f"the compiler's helper needs {HELPER_BYTES / 2**30:.1f} GiB on {self.job.device}, of which "
                    f"{free / 2**30:.1f} GiB are free"
                )
                return
        # Only its owner may write there, because code is loaded from it.
        self.library.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        drop_oldest(self.library.parent, "*.pt2", CACHE_ENTRIES)
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (closed in `close`)
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "OMP_NUM_THREADS": "1",
            "TORCHINDUCTOR_COMPILE_THREADS": "1",  # no pool of worker processes
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "rlz.learning.compile_helper"],
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=self._log,
            env=environment,
        )
        assert self._process.stdin is not None
        try:
            with self._process.stdin as pipe:
                pickle.dump(files_of(type(self.job.algorithm)), pipe)
                pickle.dump((self.job, str(self.library), nice), pipe)
        except BrokenPipeError:
            pass  # it ended at once; `finished` says why

    def finished(self, *, wait: bool = False) -> bool:
        """Whether the helper has ended; then either `ready` holds or `error` says in one line why not."""
        if self._process is None:
            return True  # it was in the cache, or could not even be tried
        if wait:
            self._process.wait()
        if self._process.poll() is None:
            return False
        if not self.ready and self.error is None:
            self.error = self._last_line() or f"the helper ended with status {self._process.returncode}"
        return True

    def load(self) -> CompiledExecutor:
        """Load the library."""
        return CompiledExecutor(self.library, self.job.batch, self.job.device, self.job.kinds)

    def discard(self) -> None:
        """Remove a library that does not work from the cache."""
        with suppress(OSError):
            self.library.unlink(missing_ok=True)

    def close(self) -> None:
        """Kill the helper, with the compiler that it may be running."""
        if self._process is not None and self._process.poll() is None:
            import psutil

            try:
                family = psutil.Process(self._process.pid).children(recursive=True)
            except psutil.NoSuchProcess:
                family = []
            self._process.kill()
            self._process.wait()
            for process in family:
                try:
                    process.kill()
                except psutil.NoSuchProcess:
                    continue
        self._process = None
        if self._log is not None:
            self._log.close()
            self._log = None

    def _last_line(self) -> str:
        assert self._log is not None
        self._log.seek(0)
        lines = [line.strip() for line in self._log.read().decode(errors="replace").splitlines()]
        return next((line for line in reversed(lines) if line), "")[:300]
