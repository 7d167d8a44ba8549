"""What must hold on a card before its rates are worth measuring. Each returns numbers, or raises."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from report import Numbers, SkippedError

from bench import ACTION, OBS, Bench, on, precisions
from rlz._native import ParameterStore, Replay
from rlz.algorithms.base import WHOLE, Batch
from rlz.algorithms.sac import Sac
from rlz.algorithms.td3 import Td3
from rlz.bench.train import read_lines
from rlz.errors import NonFiniteError
from rlz.learning import engine as engine_module
from rlz.learning.batches import Decoder
from rlz.learning.compiled import Compilation, CompileJob, layouts
from rlz.learning.device_replay import DeviceReplay
from rlz.learning.executors import EagerExecutor, disagreement
from rlz.learning.graphs import cuda_graph
from rlz.learning.publication import Publication
from rlz.learning.toolchain import driver_library, missing_tool
from rlz.learning.two_devices import Exchange, TwoDevices
from rlz.system.gpus import nvidia_smi

PARITY = {"fp32": 1e-4, "tf32": 1e-2, "bf16": 2e-2}
"""Allowed distance of each metric from float64, relative to 1 + its size."""

LEAK_BYTES = 8 << 20


def need(condition: bool, words: str) -> None:
    """Raise AssertionError with the words; also where Python leaves out assertions."""
    if not condition:
        raise AssertionError(words)


def environment(bench: Bench) -> Numbers:
    """Driver, architectures, compute mode, compilers, the driver's library, free memory."""
    found: Numbers = {
        "torch": torch.__version__,
        "cuda": str(torch.version.cuda),
        "compiler": shutil.which("g++") or "",
    }
    missing = missing_tool(cuda=bench.cuda)
    need(missing is None, f"updates cannot be compiled: {missing}")
    if not bench.cuda:
        return found
    device = bench.device
    capability = torch.cuda.get_device_capability(device)
    free, total = torch.cuda.mem_get_info(device)
    query = nvidia_smi("--query-gpu=driver_version,compute_mode,memory.used", "--format=csv,noheader").strip()
    found |= {
        "nvidia-smi": query,
        "capability": f"{capability[0]}.{capability[1]}",
        "architectures": " ".join(torch.cuda.get_arch_list()),
        "libcuda": str(driver_library()),
        "free_gib": free / 2**30,
        "total_gib": total / 2**30,
    }
    torch.ones(64, 64, device=device).matmul(torch.ones(64, 64, device=device)).sum().item()  # kernels for it
    return found


def parity(bench: Bench) -> Numbers:
    """Metrics of an update against float64 in each precision; its graphs against eager updates."""
    found: Numbers = {}
    for precision in precisions(bench):
        for kind in (Sac, Td3):
            algorithm, exact = bench.algorithm(precision, kind), bench.algorithm("fp32", kind)
            rows = bench.rows.gather(torch.arange(64, device=bench.device))
            noise = torch.randn(algorithm.noise_shape(64), device=bench.device)
            initial = algorithm.init(torch.Generator().manual_seed(1))
            rate = torch.full((), 3e-4, dtype=torch.float64, device=bench.device)
            doubles = Batch(*(tensor.double() for tensor in rows.tensors()))
            with torch.no_grad():
                want = exact.update(on(bench.device, initial, torch.float64), doubles, noise.double(), rate, WHOLE)
                got = algorithm.update(on(bench.device, initial), rows, noise, rate, WHOLE)
            far = float(((got.metrics - want.metrics).abs() / (1 + want.metrics.abs())).nan_to_num().max())
            found[f"{kind.__name__.lower()} {precision}"] = far
            need(far < PARITY[precision], f"{precision}: metrics are {far:.1e} from float64")
            with torch.no_grad():
                bench.graphs(bench.launches(algorithm, 64, 4), precision)
    return found


def no_synchronisation(bench: Bench) -> Numbers:
    """Launches, with a flag that is read late, wait for the device nowhere: torch raises where something does."""
    engine = bench.engine(launch=8)
    engine.launch(8, 3e-4)
    engine.check()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            engine.launch(8, 3e-4)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    engine.check()
    return {"launches": 3}


def replay(bench: Bench) -> Numbers:
    """Graphs draw anew at each replay, and engines of one seed repeat each other."""
    states, drawn = [], []
    for _ in range(2):
        engine = bench.engine(launch=4)
        for _ in range(4):
            engine.launch(4, 3e-4)
            assert engine._launches is not None
            drawn.append(engine._launches.noise.clone())
        states.append([tensor.clone() for tensor in engine.settle()])
        need(engine.graphed or not bench.cuda, "the launches were not captured")
    need(not any(torch.equal(drawn[i], drawn[i + 1]) for i in range(3)), "replays repeat their noise")
    need(all(torch.equal(drawn[i], drawn[i + 4]) for i in range(4)), "one seed gives other noise")
    same = all(torch.equal(a, b) for a, b in zip(*states, strict=True))
    return {"graphs": bench.cuda, "same_bits": same}


def several(bench: Bench) -> Numbers:
    """A graph of K updates against K eager ones (`GraphedLaunches` raises), in each precision, at K 8 and 16."""
    found: Numbers = {}
    for precision in precisions(bench):
        for most in (8, 16):
            for kind in (Sac, Td3):
                with torch.no_grad():
                    bench.graphs(bench.launches(bench.algorithm(precision, kind), 256, most), precision)
        found[precision] = "agrees"
    return found


def not_finite(bench: Bench) -> Numbers:
    """A row that is not finite, within a graph of K: frozen at the very update, told one launch later."""
    engine = bench.engine(launch=8)
    engine.launch(8, 3e-4)
    rows = bench.rows._rows.view(torch.float32)
    kept = rows[: max(1, bench.rows.size // 1000)].clone()  # some launches are sound
    place = next(offset for name, _, _, offset in bench.rows._replay.fields if name == "reward") // 4
    rows[: len(kept), place] = float("inf")
    raised_after = 0
    try:
        while raised_after < 10_000:
            engine.launch(8, 3e-4)
            raised_after += 1
    except NonFiniteError:
        failure = engine.failure(None)
        need(bool(failure["batch.reward"].isinf().any()), "the rows of the update that failed are not those")
        finite = all(bool(t.isfinite().all()) for t in engine._state if t.is_floating_point())
        need(finite, "the state is not as it was before the update")
        return {"updates": int(engine._state.updates), "launches": raised_after}
    finally:
        rows[: len(kept)] = kept
    raise AssertionError("nothing was told")


def failed_capture(bench: Bench) -> Numbers:
    """A capture that is made to fail: its first error is told, the same noise goes on, the device works."""
    lines: list[str] = []
    engine, sound = bench.engine(launch=4), bench.engine(launch=4)
    sound._may_graph = False
    engine._may_graph = True  # on a CPU too, where the work itself stands for its capture
    engine._log = lines.append

    def failing(work: Any, generator: Any) -> Any:
        def broken() -> None:
            work()
            if bench.cuda:
                torch.cuda.synchronize()  # which no capture allows
            raise ValueError("the forced failure")

        return cuda_graph(broken, generator) if bench.cuda else broken()

    before, engine_module.cuda_graph = engine_module.cuda_graph, failing
    try:
        for one in (engine, sound):
            one.launch(4, 3e-4)
            one.launch(4, 3e-4)
    finally:
        engine_module.cuda_graph = before
    need(len(lines) == 1 and "no CUDA graph" in lines[0], f"said: {lines}")
    assert engine._launches is not None
    assert sound._launches is not None
    need(torch.equal(engine._launches.noise, sound._launches.noise), "other noise after the failure")
    engine.check()
    return {"said": lines[0]}


def compiler(bench: Bench) -> Numbers:
    """The helper from an empty cache: seconds, agreement, a capture of its code."""
    found: Numbers = {}
    for precision in precisions(bench):
        algorithm = bench.algorithm(precision)
        batch = 32 if bench.quick else 256
        rows = bench.rows.gather(torch.zeros(batch, dtype=torch.int64, device=bench.device))
        products = torch.get_float32_matmul_precision()
        job = CompileJob(algorithm, layouts(rows.tensors()), str(bench.device), algorithm.cycle, products)
        with tempfile.TemporaryDirectory() as folder:
            begin = time.perf_counter()
            made = Compilation(job, Path(folder))
            made.start(nice=0)
            made.finished(wait=True)
            made.close()
            need(made.ready, str(made.error))
            executor = made.load()
            found[f"{precision} s"] = time.perf_counter() - begin
        with torch.no_grad():
            launches = bench.launches(algorithm, batch, 8)
            launches.draw(1)
            inputs = launches.inputs
            sample = launches.batch(0), launches.noise[0], inputs.learning_rate, WHOLE
            reason = disagreement(EagerExecutor(algorithm), executor, inputs.state, *sample, precision=precision)
            need(reason is None, str(reason))
            bench.graphs(launches, precision, executor)
        if bench.quick:
            break
    return found


def swaps(bench: Bench) -> Numbers:
    """Twenty changes of the executor with captures: the device's memory stays flat."""
    engine = bench.engine(launch=8)
    used: list[int] = []
    for _ in range(3 if bench.quick else 20):
        engine._captured = None
        engine.launch(8, 3e-4)
        engine.check()
        used.append(torch.cuda.memory_reserved(bench.device) if bench.cuda else 0)
    growth = used[-1] - used[min(2, len(used) - 1)]
    need(growth <= LEAK_BYTES, f"memory grew by {growth / 2**20:.0f} MiB")
    return {"swaps": len(used), "growth_mib": growth / 2**20}


def mirror(bench: Bench) -> Numbers:
    """Time of the host to mirror rows at 8,000 a second over 1, 16 and 64 lanes, in turns of a launch of 16."""
    found: Numbers = {}
    fields: list[Any] = [("obs", "f32", (OBS,)), ("action", "f32", (ACTION,)), ("next_obs", "f32", (OBS,))]
    fields += [("reward", "f32", ()), ("discount", "f32", ())]
    for lanes in (1, 16, 64):
        replay_ = Replay.create(fields, buffer_size=64_000, lanes=lanes, run_id=1)
        writer = replay_.writer(list(range(lanes)), worker=1)
        found_here = DeviceReplay(replay_, Decoder(replay_.fields), bench.device)
        row = [np.zeros(OBS, np.float32), np.zeros(ACTION, np.float32), np.zeros(OBS, np.float32), 0.0, 0.99]
        times = []
        turns = 20 if bench.quick else 500  # each of 16 rows, so a second at 8,000
        for turn in range(turns):
            for number in range(16):
                writer.append((16 * turn + number) % lanes, row, version=0)
            begin = time.perf_counter()
            found_here.follow()
            times.append(time.perf_counter() - begin)
        bench.sync()
        found[f"{lanes} lanes us"] = 1e6 * float(np.median(times))
    return found


def host_time(bench: Bench) -> Numbers:
    """Microseconds of the host for each update, by updates in a launch and updates from one publication to the next."""
    found: Numbers = {}
    for launch in (1, 8, 16):
        engine = bench.engine(launch=launch)
        actor = engine.actor_parameters()
        store = ParameterStore.create([("actor", "f32", (actor.numel(),))], leases=1, run_id=1)
        for every in (1, 8, 32):
            publication = Publication(publisher := store.publisher(worker=3), actor)
            host, done, since = 0.0, 0, 0
            repeats = 5 if bench.quick else 200
            for turn in range(repeats + 3):
                begin = time.perf_counter()
                bench.rows.follow()
                engine.launch(launch, 3e-4)
                if (since := since + launch) >= every:
                    publication.take(engine.actor_parameters(), env_steps=0, updates=done)
                    since = 0
                publication.finish()
                if turn >= 3:
                    host += time.perf_counter() - begin
                    done += launch
                engine.check()  # outside of the host's share: the device has nothing queued
            publication.finish(wait=True)
            publisher.close()
            found[f"launch {launch} publish {every} us"] = 1e6 * host / done
    return found


def two_devices(bench: Bench) -> Numbers:
    """Critics and actor on one card: in turns the same as the halves of one engine; beside each other, its rate."""
    name = str(bench.device)
    algorithm = bench.algorithm("fp32")
    batch = bench.rows.gather(torch.arange(256 if not bench.quick else 32, device=bench.device) % bench.rows.size)
    rates: Numbers = {}
    for staleness in (0, 1):
        state = on(bench.device, algorithm.init(torch.Generator().manual_seed(1)))
        two = TwoDevices(
            *(algorithm, state),
            layout=layouts(batch.tensors()),
            devices=(bench.device, torch.device(name)),
            seed=3,
            plan=engine_module.EnginePlan(compile=False, threads=1),
            log=lambda line: None,
            exchange=Exchange(1, staleness),
        )
        count = 20 if bench.quick else 500
        for _ in range(5):
            two.update(batch, 3e-4)
        two.settle()
        begin = time.perf_counter()
        for _ in range(count):
            two.update(batch, 3e-4)
        settled = two.settle()
        rates[f"staleness {staleness} updates_s"] = count / (time.perf_counter() - begin)
        need(all(bool(t.isfinite().all()) for t in settled if t.is_floating_point()), "the state is not finite")
        two.close()
    return rates


def choice(bench: Bench) -> Numbers:
    """`--device auto` where the card is free, full, and hidden: what a run says of it."""
    code = (
        "import sys, torch\n"
        "from rlz.learning import device_choice\n"
        "lines = []\n"
        "hog = [torch.empty(int(torch.cuda.mem_get_info(0)[0] - 2**27), dtype=torch.uint8, device='cuda')] "
        "if 'full' in sys.argv else []\n"
        "found = device_choice.find_device('auto', lines.append)\n"
        "print(found, '|', *lines)\n"
    )
    found: Numbers = {}
    for state in ("free", "full", "hidden"):
        if state == "full" and not bench.cuda:
            continue
        hidden = {"CUDA_VISIBLE_DEVICES": ""} if state == "hidden" else {}
        command = [sys.executable, "-c", code, state]
        done = subprocess.run(command, env=os.environ | hidden, capture_output=True, text=True, timeout=120)
        need(done.returncode == 0, f"{state}: {done.stderr[-300:]}")
        found[state] = done.stdout.strip()
    need(found["hidden"].startswith("cpu"), f"hidden: {found['hidden']}")
    if bench.cuda:
        need(found["free"].startswith("cuda:0"), f"free: {found['free']}")
    return found


def memory_runs_out(bench: Bench) -> Numbers:
    """An engine for a batch that does not fit is refused as throughput mode wants it, and the others go on."""
    if not bench.cuda:
        raise SkippedError("needs a card")
    usual = bench.engine(launch=8)
    usual.launch(8, 3e-4)
    total = torch.cuda.mem_get_info(bench.device)[1]
    torch.cuda.set_per_process_memory_fraction(
        min(1.0, (torch.cuda.memory_reserved(bench.device) + (64 << 20)) / total), bench.device
    )
    try:
        bench.engine(batch=65_536, launch=8, trial=True).launch(8, 3e-4)
    except torch.OutOfMemoryError as error:
        said = str(error).split(". ")[0]
    else:
        raise AssertionError("65,536 rows fit into 64 MiB")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, bench.device)
        torch.cuda.empty_cache()
    usual.launch(8, 3e-4)
    usual.check()
    return {"said": said}


def killed(bench: Bench) -> Numbers:
    """Runs whose processes are killed just after the first checkpoint, when the learner captures; and resumed."""
    found: Numbers = {}
    for delay in (0.2,) if bench.quick else (0.0, 0.3, 0.6, 1.0):
        with tempfile.TemporaryDirectory() as folder:
            found[f"env_steps at the kill after {delay} s"] = kill_and_resume(bench, Path(folder), delay)
    return found


def kill_and_resume(bench: Bench, folder: Path, delay: float) -> int:
    """Start a run, kill it `delay` s after its first checkpoint, resume it; env steps that were in its metrics."""
    command = [sys.executable, "-m", "rlz", "train", "sac", "--env", "Pendulum-v1", "--device", bench.device.type]
    command += ["-n", "1000000000", "--hidden", "16", "--batch-size", "32", "--eval-every", "0", "--runs-dir"]
    command += [str(folder), "--name", "run", "--replay-device", "device", "--no-compile", "--log-every", "0.1"]
    log, place = folder / "log", folder / "run"
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        until = time.monotonic() + 60
        while time.monotonic() < until and process.poll() is None and not saved(place):
            time.sleep(0.01)
        time.sleep(delay)
        os.killpg(process.pid, 9)
        process.wait()
    need(saved(place), log.read_text()[-300:])
    lines = read_lines(place / "metrics.jsonl")
    steps = int(lines[-1]["env_steps"]) if lines else 0
    resume = [sys.executable, "-m", "rlz", "train", "--resume", str(place), "-n", str(steps + 300)]
    done = subprocess.run(resume, capture_output=True, text=True, timeout=120)
    need(done.returncode == 0, (done.stdout + done.stderr)[-400:])
    return steps


def saved(run: Path) -> bool:
    """Whether a run has a checkpoint."""
    return (run / "checkpoints" / "latest").exists()
