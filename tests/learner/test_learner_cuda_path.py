"""What a card needs of updates, checked on the CPU. Emulations and fakes are named as such: no card is used here."""

import copy
import subprocess
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rlz.algorithms.base import WHOLE, Algorithm
from rlz.errors import DeviceError, NonFiniteError
from rlz.learning import compiled as compiled_module
from rlz.learning import engine as engine_module
from rlz.learning import executors as executors_module
from rlz.learning import graphs as graphs_module
from rlz.learning import swap as swap_module
from rlz.learning import toolchain
from rlz.learning.batches import Decoder
from rlz.learning.compile_helper import CUDA_OPTIONS
from rlz.learning.compiled import blank, layouts
from rlz.learning.executors import EagerExecutor, InPlaceUpdate, Updated, difference, disagreement, write_unless_failed
from rlz.learning.flag import LateFlag
from rlz.learning.graphs import GraphedLaunches, cuda_graph
from rlz.learning.launches import FedRows, Inputs, Launches
from rlz.networks.mlp import Mlp
from support.executors import CPU, RATE, flag, make_batch, make_job, make_sac, make_state, make_td3, noise
from support.launches import MOST, Compiled, Made, kinds, make_engine, make_launches, plain

both = pytest.mark.parametrize("algorithm", [make_sac(), make_td3()], ids=["sac", "td3"])
Work = Callable[[], None]

# -- compilation ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [("CXX", "/no/c++", "no C++ compiler /no/c++ "), ("CC", "/no/cc -O2", "no C compiler /no/cc ")],
)
def test_a_compiler_that_is_missing_is_named(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, words: str
) -> None:
    monkeypatch.setenv(variable, value)
    assert words in str(toolchain.missing_tool(cuda=True))
    assert (toolchain.missing_tool(cuda=False) is None) == (variable == "CC"), "a CPU needs no C compiler"


def test_headers_that_are_missing_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert toolchain.missing_tool(cuda=True) is None, "torch's wheels and Triton's bring them"
    monkeypatch.setattr(toolchain, "_header_folders", lambda: iter([tmp_path]))
    assert "CUDA header cuda_runtime_api.h" in str(toolchain.missing_tool(cuda=True))
    (tmp_path / "cuda_runtime_api.h").touch()
    assert "CUDA header crt/host_defines.h" in str(toolchain.missing_tool(cuda=True))
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
    assert "no headers of Python" in str(toolchain.missing_tool(cuda=True))


@pytest.mark.slow
def test_the_compiler_finds_cuda_without_a_toolkit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Fake: the driver's library. Real: the headers of the wheels, torch's own command line, compiler and linker."""
    from torch._inductor.cpp_builder import CppBuilder, CppTorchDeviceOptions
    from torch.utils import cpp_extension

    driver = tmp_path / "driver" / "libcuda.so.1"
    driver.parent.mkdir()
    source = "unsigned cuInit(unsigned flags) { return 100; }"
    command = ["gcc", "-shared", "-fPIC", "-xc", "-", f"-Wl,-soname,{driver.name}", "-o", str(driver)]
    subprocess.run(command, input=source, text=True, check=True)
    for name in ("CUDA_HOME", "CUDA_PATH", "LIBRARY_PATH"):
        monkeypatch.setenv(name, "")  # so that they are restored
    monkeypatch.setattr(cpp_extension, "CUDA_HOME", None)
    monkeypatch.setattr(toolchain, "driver_library", lambda: driver)
    (home := tmp_path / "home").mkdir()
    toolchain.use_cuda(home)
    code = tmp_path / "code.cpp"
    code.write_text(
        "#include <cuda.h>\n#include <cuda_runtime_api.h>\n"
        'extern "C" cudaStream_t stream;\nextern "C" int work() { return cuInit(0); }\n'
    )
    options = CppTorchDeviceOptions(device_type="cuda", aot_mode=True)
    builder = CppBuilder("code", str(code), options, str(tmp_path))
    builder.build()
    needed = subprocess.run(["readelf", "-d", builder.get_target_file_path()], capture_output=True, text=True).stdout
    assert "[libcuda.so.1]" in needed


def test_a_toolkit_that_the_user_names_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    toolkit, driver = tmp_path / "toolkit", tmp_path / "libcuda.so.1"
    (toolkit / "include").mkdir(parents=True)
    (toolkit / "include" / "cuda_runtime_api.h").touch()
    driver.touch()
    monkeypatch.setenv("CUDA_HOME", str(toolkit))
    monkeypatch.setenv("LIBRARY_PATH", "/before")
    monkeypatch.setattr(toolchain, "driver_library", lambda: driver)
    (home := tmp_path / "home").mkdir()
    toolchain.use_cuda(home)
    assert toolchain.os.environ["CUDA_HOME"] == str(toolkit)
    assert toolchain.os.environ["LIBRARY_PATH"] == f"{home / 'lib64'}:/before"


def test_kernels_are_in_the_library_and_its_loader_is_legal_in_a_capture(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Fake: torch's loader."""
    assert CUDA_OPTIONS["aot_inductor.embed_kernel_binary"] is True
    seen: list[tuple[Any, ...]] = []

    class Loader:
        def __init__(self, *arguments: Any) -> None:
            seen.append(arguments)

        def get_metadata(self) -> dict[str, str]:
            return {}

    monkeypatch.setattr(torch._C._aoti, "AOTIModelPackageLoader", Loader)
    for device in ("cpu", "cuda:1"):
        compiled_module.CompiledExecutor(tmp_path / "x.pt2", (), device, [WHOLE])
    assert [(single, index) for _, _, single, _, index in seen] == [(False, -1), (True, 1)]


def packed_layouts(obs: int) -> tuple[compiled_module.Layout, ...]:
    """Of the decoder's views of rows with fields at odd places."""
    fields: list[Any] = [("obs", "f32", (obs,), 0), ("action", "f32", (1,), 4 * obs), ("next_obs", "f32", (obs,), 48)]
    fields += [("reward", "f32", (), 92), ("discount", "f32", (), 100)]
    return layouts(Decoder(fields)(torch.zeros(16, 128, dtype=torch.uint8)).tensors())


@pytest.mark.slow
def test_code_is_made_for_memory_that_is_aligned_as_in_a_run() -> None:
    """The compiler (torch's own test of a tensor) must see what a run has: fields of packed rows at odd places."""
    from torch._inductor.utils import tensor_is_aligned

    run = packed_layouts(3)
    assert [tensor_is_aligned(blank(field, CPU)) for field in run] == [True, False, True, False, False]
    assert layouts([blank(field, CPU) for field in run]) == run
    fed = FedRows(run, CPU)
    assert layouts(fed.gather(torch.zeros(0)).tensors()) == run, "so a batch from the host fits the same code"
    assert run != packed_layouts(4)


def test_the_noise_of_every_update_of_a_launch_is_aligned() -> None:
    sac = make_sac()
    inputs = Inputs(make_state(sac), flag(), RATE, torch.Generator().manual_seed(1))
    launches = Launches(sac, inputs, FedRows(layouts(make_batch().tensors()), CPU), batch_size=3, most=5)
    assert launches.noise.shape == (5, *sac.noise_shape(3))
    assert all(noise.data_ptr() % 16 == 0 and noise.is_contiguous() for noise in launches.noise)


# -- agreement -----------------------------------------------------------------------------------------------------


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor, weight: Tensor, drop: int) -> Tensor:
        context.save_for_backward(x, weight)
        context.drop = drop
        return torch.matmul(rounded(x, drop), rounded(weight, drop))

    @staticmethod
    def backward(context: Any, slope: Tensor) -> tuple[Tensor, Tensor, None]:  # type: ignore[override]
        x, weight = (rounded(tensor, context.drop) for tensor in context.saved_tensors)
        slope = rounded(slope, context.drop)
        return torch.matmul(slope, weight.mT), torch.matmul(x.mT, slope), None


def rounded(x: Tensor, drop: int) -> Tensor:
    """Float32 without its last `drop` bits, to nearest."""
    half = 1 << (drop - 1)
    return ((x.contiguous().view(torch.int32) + half) >> drop << drop).view(torch.float32)


class Emulated(EagerExecutor):
    """Emulation of a card whose products take factors of fewer bits: tf32 has 13 fewer, bf16 16."""

    def __init__(self, algorithm: Algorithm[Any], precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(algorithm)
        self._drop = {"tf32": 13, "bf16": 16}[precision]
        self._monkeypatch = monkeypatch

    def __call__(self, *arguments: Any) -> Updated:
        def linear(network: Mlp, x: Tensor, weight: Tensor, bias: Tensor, *, bf16: bool) -> Tensor:
            weight = weight.expand(*x.shape[:-2], *weight.shape[-2:])
            found: Tensor = _Product.apply(x, weight, self._drop)
            return found + network._row(bias)

        with self._monkeypatch.context() as patch:
            patch.setattr(Mlp, "_linear", linear)
            return super().__call__(*arguments)


@both
@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_updates_in_a_lower_precision_agree_and_mistakes_do_not(
    monkeypatch: pytest.MonkeyPatch, algorithm: Algorithm[Any], precision: str
) -> None:
    """Emulation: a whole precision apart, which two forms in the same one never are."""
    eager, emulated = EagerExecutor(algorithm), Emulated(algorithm, precision, monkeypatch)
    monkeypatch.setitem(executors_module.LIMITS, "exact", executors_module.Limit(0.0, 0.0))
    state = make_state(algorithm)
    for step in range(12):
        inputs = state, make_batch(step), noise(algorithm), RATE, WHOLE
        assert disagreement(eager, emulated, *inputs, precision=precision) is None
        assert disagreement(eager, emulated, *inputs, precision="exact") is not None, "the emulation does something"
        eager(state, flag(), *inputs[1:])
    faster = copy.copy(algorithm)
    faster.settings = algorithm.settings.model_copy(update={"tau": 0.02})
    wrong = EagerExecutor(faster)
    assert "target_" in str(disagreement(eager, wrong, *inputs, precision=precision))


def test_the_gradients_are_held_closer_than_the_steps() -> None:
    sac, before = make_sac(), make_state(make_sac())
    after = make_state(sac)
    EagerExecutor(sac)(after, flag(), make_batch(), noise(sac), RATE, WHOLE)
    for field, allowed in (("critic", 0.15), ("critic_mean", 0.04), ("critic_square", 0.04)):
        old, new = getattr(before, field), getattr(after, field)
        for part, agrees in ((allowed, True), (2 * allowed, False)):
            found = after._replace(**{field: new + part * (new - old)})
            assert (difference(before, after, found, "tf32") is None) == agrees


@pytest.mark.parametrize("weights", [False, True])
@both
def test_one_condition_freezes_as_one_for_each_tensor(algorithm: Algorithm[Any], weights: bool) -> None:
    for bad in (False, True):
        batch = make_batch()
        if bad:
            batch.reward[3] = float("nan")
        states, flags = [make_state(algorithm) for _ in range(2)], [flag(), flag()]
        for _ in range(2):  # the second one finds the flag set
            with torch.no_grad():
                InPlaceUpdate(algorithm)(states[0], flags[0], batch, noise(algorithm), RATE, WHOLE)
                new, _, checks, _ = algorithm.update(states[1], batch, noise(algorithm), RATE, WHOLE)
                write_unless_failed(states[1], flags[1], new, checks)
        assert all(torch.equal(a, b) for a, b in zip(*states, strict=True))
        assert int(flags[0]) == int(flags[1]) == bad


def test_a_library_that_differs_is_not_used_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    class Other(Made):
        discarded = False

        def load(self) -> Compiled:
            return Compiled(make_sac(tau=0.5))

        def discard(self) -> None:
            Other.discarded = True

    monkeypatch.setattr(swap_module, "Compilation", Other)
    lines: list[str] = []
    engine = make_engine(make_sac(), lines, compile=True)
    engine.launch(2, 1e-3)
    assert engine.executor == "eager"
    assert lines[0].startswith("compile failed, updates stay eager: the compiled one differs, target_critic differs by")
    assert not Other.discarded


# -- captures ------------------------------------------------------------------------------------------------------


def test_a_graph_of_several_updates_is_compared_as_well() -> None:
    """Fake: a capture that goes wrong for launches of several updates alone."""
    sac = make_sac()
    launches = make_launches(sac)

    def wrong_together(work: Any, generator: torch.Generator) -> Work:
        if len(work.args[1]) == 1:
            return work  # type: ignore[no-any-return]

        def replay() -> None:
            work()
            launches.inputs.state.critic.mul_(1.01)

        return replay

    with pytest.raises(ValueError, match=f"{MOST} updates: critic differs by"):
        GraphedLaunches(launches, EagerExecutor(sac), EagerExecutor(sac), sac.cycle, wrong_together)


@pytest.fixture
def no_card(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Fakes of what a capture calls, as far as it gets: its end raises an error of its own."""

    class Anything:
        def __init__(self, *_: object, **__: object) -> None: ...
        def register_generator_state(self, _: object) -> None: ...
        def wait_stream(self, _: object) -> None: ...

    @contextmanager
    def graph(*_: object, **__: object) -> Iterator[None]:
        try:
            yield
        finally:
            raise RuntimeError("capture_end: operation failed due to a previous error during capture")

    monkeypatch.setattr(torch.cuda, "Stream", Anything)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Anything)
    monkeypatch.setattr(torch.cuda, "current_stream", Anything)
    monkeypatch.setattr(torch.cuda, "graph", graph)
    return monkeypatch


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), ValueError("not allowed")])
def test_the_first_error_of_a_capture_is_told(no_card: pytest.MonkeyPatch, error: Exception) -> None:
    def work() -> None:
        raise error

    with pytest.raises(type(error)) as found:
        cuda_graph(work, torch.Generator())
    assert found.value is error


def failing(error: Exception) -> Callable[..., Work]:
    """Fake of a capture that fails after it has drawn."""

    def capture(work: Work, generator: torch.Generator) -> Work:
        work()
        raise error

    return capture


@both
def test_after_a_failed_capture_the_run_goes_on_as_if_there_had_been_none(
    monkeypatch: pytest.MonkeyPatch, algorithm: Algorithm
) -> None:
    monkeypatch.setattr(engine_module, "cuda_graph", failing(RuntimeError("no")))
    lines: list[str] = []
    engine, plain_one = make_engine(algorithm, lines), make_engine(algorithm, [])
    engine._may_graph = True
    stream = engine._inputs.generator
    for one in (engine, plain_one):
        one.launch(3, 1e-3)
        one.launch(MOST, 1e-3)
    assert engine._inputs.generator is not stream, "a capture that failed leaves its random stream in a bad state"
    assert engine.noise_state == plain_one.noise_state
    assert all(torch.equal(a, b) for a, b in zip(engine.settle(), plain_one.settle(), strict=True))
    assert torch.equal(engine.take_metrics().nan_to_num(-1), plain_one.take_metrics().nan_to_num(-1))


def test_memory_that_runs_out_in_a_capture_reaches_who_tries_a_batch_size(monkeypatch: pytest.MonkeyPatch) -> None:
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
    monkeypatch.setattr(engine_module, "cuda_graph", failing(error))
    trial, other = (make_engine(make_sac(), [], trial=trial) for trial in (True, False))
    for engine in (trial, other):
        engine._may_graph = True
    with pytest.raises(torch.OutOfMemoryError):
        trial.launch(MOST, 1e-3)
    assert int(trial.settle().updates) == 0
    other.launch(MOST, 1e-3)
    assert int(other.settle().updates) == MOST


def test_an_error_that_stays_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "cuda_graph", failing(RuntimeError("an illegal memory access was encountered")))
    monkeypatch.setattr(graphs_module, "usable", lambda device: False)
    engine = make_engine(make_sac(), [])
    engine._may_graph = True
    with pytest.raises(DeviceError, match="cpu cannot be used any more: RuntimeError: an illegal memory access"):
        engine.launch(MOST, 1e-3)


@pytest.mark.parametrize(("failures", "works"), [(0, True), (1, True), (5, False)])
def test_an_error_that_stays_is_told_from_one_that_does_not(
    monkeypatch: pytest.MonkeyPatch, failures: int, works: bool
) -> None:
    left = [failures]

    def synchronize(_: object) -> None:
        left[0] -= 1
        if left[0] >= 0:
            raise RuntimeError("CUDA error")

    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    assert graphs_module.usable(torch.device("cuda", 0)) == works


# -- a flag that is read late ----------------------------------------------------------------------------------------


def test_a_flag_is_read_one_launch_late_and_stays() -> None:
    value = flag()
    late = LateFlag(value, late=True)
    late.post()
    assert late.read() == 0
    value.fill_(3)
    late.post()
    assert late.read() == 0, "that of the launch before"
    assert late.read(newest=True) == 3
    assert late.read() == 3


@both
@pytest.mark.parametrize("graphed", [False, True])
def test_an_update_that_fails_is_known_with_its_rows_one_launch_later(
    monkeypatch: pytest.MonkeyPatch, algorithm: Algorithm[Any], graphed: bool
) -> None:
    """As on a card, whose flag the host reads when the next launch is under way; "graphs" are the work itself."""
    monkeypatch.setattr(engine_module, "cuda_graph", plain)
    engine, sound = make_engine(algorithm, []), make_engine(algorithm, [])
    for one in (engine, sound):
        one._flag = LateFlag(one._failed, late=True)
        one._may_graph = graphed
    launches = engine._launches
    assert launches is not None
    for one in (engine, sound):
        one.launch(MOST, 1e-3)
    assert sound._launches is not None
    rows: Any = launches.rows
    peek = torch.Generator()
    peek.set_state(engine._inputs.generator.get_state())
    drawn = torch.empty_like(launches.indices)
    rows.draw(drawn, peek)
    bad = int(next(row for row in drawn[2].tolist() if row not in drawn[:2].flatten().tolist()))
    rows._rows[bad].view(torch.float32)[8] = float("inf")  # its reward
    engine.launch(MOST, 1e-3)  # the third update of it fails
    for _ in range(2):
        sound.launch(1, 1e-3)
    with pytest.raises(NonFiniteError, match="critic_loss is not finite"):
        engine.launch(MOST, 1e-3)
    assert int(engine._state.updates) == MOST + 2, "the parameters stay as they were before the very update"
    failure = engine.failure(None)
    assert failure["batch.reward"].isinf().any()
    assert torch.equal(launches.indices, drawn), "later launches leave the rows that were drawn"
    with pytest.raises(NonFiniteError):
        engine.settle()  # so there is no checkpoint of it


def test_the_kinds_keep_their_order_over_launches() -> None:
    td3 = make_td3()
    engine = make_engine(td3, [])
    for count in (3, 2, 4):
        engine.launch(count, 1e-3)
    assert (int(engine.settle().updates), int(engine.settle().actor_updates)) == (9, 4)
    assert kinds(td3, 0, 2) == td3.cycle


def test_jobs_of_cards_need_more_tools(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CC", "/no/cc")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "a card")
    made = compiled_module.Compilation(make_job(make_sac(), device="cuda:0"), tmp_path)
    made.start()
    assert made.error == "there is no C compiler /no/cc (install gcc, or set CC)"


def test_on_a_small_card_there_is_no_second_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "a card")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (800 << 20, 2 << 30))
    made = compiled_module.Compilation(make_job(make_sac(), device="cuda:0"), tmp_path)
    made.start()
    assert made.error == "the compiler's helper needs 1.0 GiB on cuda:0, of which 0.8 GiB are free"
    assert made.finished()
