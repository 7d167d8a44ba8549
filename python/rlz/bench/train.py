"""Workload `train`: SAC in its steady state, env steps per second. Batch 256, replay ratio 1, networks 256x256.

Evaluation and checkpoints are off; start, warm-up and compilation lie before the window that is measured. rlz runs as
its users run it (`rlz train` in a process of its own) and is measured from its own metrics.jsonl.
"""

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rlz.bench.children import run_child
from rlz.bench.environments import PEER_SCRIPTS, PEERS, peer_python
from rlz.bench.result import Job, Outcome
from rlz.errors import RlzError

METRICS: tuple[str, ...] = ("env_steps_per_s",)

SETTLE_S = 5.0
"""The learner's thread count must have stood still for so long before the window starts."""

COMPILE_LIMIT_S = 180.0
"""A learner that is still eager so long after its first update stays so: compiling failed."""

START_LIMIT_S = 300.0
"""The window must have started by then: imports, compilation from an empty cache, thread tuning."""

PEER_SCRIPT = PEER_SCRIPTS / "sb3.py"


@dataclass(frozen=True)
class TrainSettings:
    """What all contenders have in common."""

    env: str
    seconds: float
    device: str = "auto"
    seed: int = 1
    batch_size: int = 256
    buffer_size: int = 1_000_000
    learning_starts: int = 100
    hidden: tuple[int, ...] = (256, 256)


@dataclass(frozen=True)
class Variant:
    """One way to run a peer: steps of `num_envs` environments, then as many updates."""

    threads: int
    num_envs: int

    def name(self, library: str) -> str:
        """Name of the contender."""
        threads = f"{self.threads} thread{'s' if self.threads > 1 else ''}, " if self.threads else ""
        return f"{library}: {threads}{self.num_envs} env{'s' if self.num_envs > 1 else ''}"


def variants(library: str, cores: int) -> list[Variant]:
    """Ways in which a library is run; its best one counts. XLA takes every core, so SBX has no choice of threads."""
    threads = [0] if library == "sbx" else sorted({1, min(2, cores)})
    return [Variant(count, envs) for count in threads for envs in (1, 4)]


def jobs(settings: TrainSettings, peers: Sequence[str], cores: int, options: Sequence[str] = ()) -> list[Job]:
    """The jobs of this workload; `options` are added to `rlz train`."""
    found = [Job("rlz", lambda _: measure_rlz(settings, options), needed=True)]
    for library in peers:
        python = peer_python(library)
        for variant in variants(library, cores):
            found.append(_peer_job(library, python, variant, settings))
    return found


def _peer_job(library: str, python: Path, variant: Variant, settings: TrainSettings) -> Job:
    name = variant.name(library)

    def run(_: int) -> Outcome:
        result = measure_peer(library, python, variant, settings, updates=True)
        rates = {metric: result[metric] for metric in ("env_steps_per_s", "updates_per_s")}
        return Outcome({name: rates}, {library: result["versions"]}, {f"{name} window_s": result["window_s"]})

    return Job(name, run)


def measure_peer(
    library: str, python: Path, variant: Variant, settings: TrainSettings, *, updates: bool
) -> dict[str, Any]:
    """Run a peer's SAC for one window; `updates` False: its sampling alone."""
    job = {
        **asdict(settings),
        "library": library,
        "threads": max(1, variant.threads),
        "num_envs": variant.num_envs,
        "gradient_steps": variant.num_envs if updates else 0,
        "warmup_steps": 100,
        "recorded": PEERS[library].recorded,
    }
    return run_child([python, PEER_SCRIPT, json.dumps(job)], timeout=settings.seconds + START_LIMIT_S)


def measure_rlz(settings: TrainSettings, options: Sequence[str] = ()) -> Outcome:
    """Run `rlz train`, wait for its steady state, measure one window, stop it with SIGINT."""
    with tempfile.TemporaryDirectory(prefix="rlz-bench-") as folder:
        run_dir = Path(folder) / "bench"
        log_path = Path(folder) / "output.txt"
        with log_path.open("wb") as log:
            process = subprocess.Popen(
                rlz_command(settings, Path(folder), options),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                begin, end = _window(
                    process, run_dir / "metrics.jsonl", log_path, settings.seconds, "--no-compile" not in options
                )
            finally:
                stop(process)
        seconds = end["wall_s"] - begin["wall_s"]
        steps, updates = end["env_steps"] - begin["env_steps"], end["updates"] - begin["updates"]
        facts = {
            "rlz window_s": seconds,
            "rlz ratio": updates / max(1, steps),
            "rlz compiled": end.get("train/compiled"),
            "rlz learner threads": end.get("train/threads"),
            "rlz policy lag": end.get("replay/policy_lag"),
            "rlz summary": _summary(run_dir),
        }
    rates = {"env_steps_per_s": steps / seconds, "updates_per_s": updates / seconds}
    return Outcome({"rlz": rates}, facts=facts)


def rlz_command(settings: TrainSettings, runs_dir: Path, options: Sequence[str] = ()) -> list[str]:
    """Command line of rlz for this workload."""
    command = [sys.executable, "-m", "rlz", "train", "sac", "--env", settings.env]
    command += ["--total-timesteps", "1000000000", "--seed", str(settings.seed)]
    command += ["--batch-size", str(settings.batch_size), "--buffer-size", str(settings.buffer_size)]
    command += ["--hidden", ",".join(str(width) for width in settings.hidden)]
    command += ["--learning-starts", str(settings.learning_starts), "--replay-ratio", "1"]
    command += ["--device", settings.device, "--eval-every", "0", "--checkpoint-every", "0", "--no-save-replay"]
    return [*command, "--runs-dir", str(runs_dir), "--name", "bench", "--log-every", "1", *options]


def _window(
    process: "subprocess.Popen[bytes]", metrics: Path, log: Path, seconds: float, compiles: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """First and last log line of the window."""
    limit = time.monotonic() + START_LIMIT_S
    begin: dict[str, Any] | None = None
    while True:
        if process.poll() is not None:
            text = log.read_text(encoding="utf-8", errors="replace")[-2000:]
            raise RlzError(f"rlz train ended with status {process.returncode}:\n{text}")
        lines = read_lines(metrics)
        if begin is None:
            begin = steady_from(lines, compiles)
            if begin is None and time.monotonic() > limit:
                raise RlzError(f"rlz train did not reach its steady state within {START_LIMIT_S:.0f} s")
        elif lines[-1]["wall_s"] - begin["wall_s"] >= seconds:
            return begin, lines[-1]
        time.sleep(0.5)


def steady_from(lines: Sequence[dict[str, Any]], compiles: bool = True) -> dict[str, Any] | None:
    """The line from which on the run is steady, when the last lines show that; else None.

    Steady: updates are made, the learner has left its eager start (or will not compile), and its number of threads has
    not changed for `SETTLE_S`.
    """
    if not lines or lines[-1].get("updates", 0) == 0:
        return None
    last = lines[-1]
    same = [line for line in lines if line["wall_s"] >= last["wall_s"] - SETTLE_S]
    keys = ("train/compiled", "train/threads")
    if same[0]["wall_s"] > last["wall_s"] - 0.8 * SETTLE_S or any(same[0].get(k) != last.get(k) for k in keys):
        return None
    if last.get("train/compiled") or not compiles:
        return last
    started = next(line["wall_s"] for line in lines if line.get("updates", 0) > 0)
    return last if last["wall_s"] - started >= COMPILE_LIMIT_S else None


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a metrics.jsonl so far."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    return [json.loads(line) for line in lines]


def stop(process: "subprocess.Popen[bytes]") -> None:
    """End a run as Ctrl-C does, or by force when it does not end."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _summary(run_dir: Path) -> dict[str, Any]:
    path = run_dir / "summary.json"
    if not path.exists():
        return {}
    summary = json.loads(path.read_text(encoding="utf-8"))
    return {key: summary.get(key) for key in ("first_env_step_s", "first_update_s", "memory_bytes", "waits_s")}
