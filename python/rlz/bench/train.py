"""Workload `train`: all of training, SAC if not said otherwise. Batch 256, replay ratio 1, networks 256x256.

Metrics:
- env_steps_per_s: in the steady state; start, warm-up and compilation lie before the window that is measured.
- first_env_step_s, first_update_s: from the start of the process.
- steps_500_s: end to end, from the start of the process until 500 env steps are made, all but the first 100 of which
  had an update each.

PPO and APPO learn from rollouts of 2,048 steps of 4 environments instead, in batches of 64 rows, 10 epochs, with
networks of 64x64 and tanh, Stable-Baselines3's defaults; SB3 and SBX run their PPO, Sample Factory its APPO. Of those
only the steady rate is measured.

Evaluation and checkpoints are off. rlz runs as its users run it (`rlz train` in a process of its own) and is measured
from its own metrics.jsonl.
"""

import json
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from rlz.bench.children import run_child
from rlz.bench.environments import PEER_SCRIPTS, PEERS, peer_python
from rlz.bench.limits import PEAK, peak, products_of_update
from rlz.bench.result import Job, Outcome, Workload
from rlz.errors import RlzError

SOON = 500
"""Env steps of the figure from start to end."""

METRICS: tuple[str, ...] = ("env_steps_per_s", "updates_per_s", "first_env_step_s", "first_update_s", f"steps_{SOON}_s")
LIMITS = {"updates_per_s": PEAK}

ON_POLICY = ("ppo", "appo")
ROLLOUTS: dict[str, Any] = {
    "rows": 2048,
    "num_envs": 4,
    "batch_size": 64,
    "epochs": 10,
    "hidden": (64, 64),
    "workers": 2,
    "settle": 2.0,
}
"""What algorithms that learn from rollouts have in common."""

SETTLE_S = 5.0
"""The learner's thread count must have stood still for so long before the window starts."""

COMPILE_LIMIT_S = 180.0
"""A learner that is still eager so long after its first update stays so: compiling failed."""

START_LIMIT_S = 300.0
"""The window must have started by then: imports, compilation from an empty cache, thread tuning."""


@dataclass(frozen=True)
class TrainSettings:
    """What all contenders have in common."""

    env: str
    seconds: float
    algo: str = "sac"
    device: str = "auto"
    seed: int = 1
    batch_size: int = 256
    buffer_size: int = 1_000_000
    learning_starts: int = 100
    hidden: tuple[int, ...] = (256, 256)

    @property
    def on_policy(self) -> bool:
        """Whether the algorithm learns from rollouts."""
        return self.algo in ON_POLICY

    def definition(self) -> dict[str, Any]:
        """As it stands in a report; how long one measures is no part of what is measured."""
        if self.on_policy:
            return {"env": self.env, "algo": self.algo, "seed": self.seed, **ROLLOUTS}
        values = {name: value for name, value in asdict(self).items() if name != "seconds"}
        return {**values, "hidden": list(self.hidden), "replay_ratio": 1}


@dataclass(frozen=True)
class Variant:
    """One way to run a peer: steps of `num_envs` environments, then as many updates."""

    threads: int
    num_envs: int

    def name(self, library: str) -> str:
        """Name of the contender."""
        threads = f"{self.threads} thread{'s' if self.threads > 1 else ''}, " if self.threads else ""
        return f"{library}: {threads}{self.num_envs} env{'s' if self.num_envs > 1 else ''}"


def variants(library: str, cores: int, *, quick: bool = False, on_policy: bool = False) -> list[Variant]:
    """Ways in which a library is run; its best one counts. `quick`: the one that is usually best."""
    peer = PEERS[library]
    if on_policy:
        return [Variant(int(peer.threads), peer.num_envs[-1])]
    threads = sorted({1, min(2, cores)}) if peer.threads else [0]
    found = [Variant(count, envs) for count in threads for envs in peer.num_envs]
    return found[-1:] if quick else found


def workload(
    settings: TrainSettings, peers: Sequence[str], cores: int, options: Sequence[str] = (), *, quick: bool = False
) -> Workload:
    """What is measured; `options` are added to `rlz train`."""
    found = [Job("rlz", lambda _: measure_rlz(settings, options), needed=True)]
    limits = {}
    if settings.algo == "sac":
        found.append(Job(PEAK, lambda _: Outcome({PEAK: {"updates_per_s": most_updates(settings, cores)}})))
        limits = LIMITS
    for library in peers:
        ways = variants(library, cores, quick=quick, on_policy=settings.on_policy)
        found += [_peer_job(library, variant, settings) for variant in ways]
    return Workload("train", found, METRICS, settings.definition(), limits)


def most_updates(settings: TrainSettings, cores: int) -> float:
    """Updates per second of SAC at the peak of the cores."""
    obs, action = sizes(settings.env)
    return peak(cores) / products_of_update(obs, action, settings.hidden, settings.batch_size)


def sizes(env: str) -> tuple[int, int]:
    """Numbers of an observation and of an action."""
    from rlz import envs
    from rlz.config import resolve

    spec = envs.inspect_env(resolve("sac", env, {}, None), on_note=lambda _: None)
    return spec.obs_dim, spec.action_dim


def _peer_job(library: str, variant: Variant, settings: TrainSettings) -> Job:
    name = variant.name(library)

    def run(_: int) -> Outcome:
        result = measure_peer(library, variant, settings, "train")
        rates = {metric: result[metric] for metric in METRICS if metric in result}
        return Outcome({name: rates}, {library: result["versions"]}, {f"{name} window_s": result.get("window_s")})

    return Job(name, run)


def measure_peer(
    library: str,
    variant: Variant,
    settings: TrainSettings,
    workload: str,
    *,
    python: str | Path | None = None,
    **more: Any,
) -> dict[str, Any]:
    """Run a peer's adapter for one measurement: "train", "sampling" alone, ...; `more` is added to its job.

    `python`: interpreter with the library; default: that of the peer's environment.
    """
    job = {
        **asdict(settings),
        "library": library,
        "workload": workload,
        "threads": max(1, variant.threads),
        "num_envs": variant.num_envs,
        "gradient_steps": variant.num_envs if workload != "sampling" else 0,
        "warmup_steps": 100,
        "soon": SOON,
        "recorded": PEERS[library].recorded,
        "began": time.time(),
        **more,
    }
    script = PEERS[library].script
    if settings.on_policy and library != "rllib":
        job, script = {**ROLLOUTS, **job, "num_envs": variant.num_envs, "batch_size": ROLLOUTS["batch_size"]}, "ppo.py"
    command: list[str | Path] = [python or peer_python(library), PEER_SCRIPTS / script, json.dumps(job)]
    return run_child(command, timeout=settings.seconds + START_LIMIT_S)


@dataclass(frozen=True)
class Window:
    """A window of a run's steady state.

    Attributes
    ----------
    lines : of metrics.jsonl, from the one at its begin to the one at its end.
    soon_s : seconds from the start of the process to env step `SOON`; None when the log does not reach back.
    settled : the run was steady when it began, and stayed so.
    config, summary : of the run.
    """

    lines: list[dict[str, Any]]
    settled: bool
    config: dict[str, Any]
    summary: dict[str, Any]
    soon_s: float | None = None

    @property
    def seconds(self) -> float:
        """Its length."""
        return float(self.lines[-1]["wall_s"] - self.lines[0]["wall_s"])

    def counted(self, name: str) -> int:
        """What was counted in it: `env_steps` or `updates`."""
        return int(self.lines[-1][name] - self.lines[0][name])


Steady = Callable[[Sequence[dict[str, Any]], Path], "dict[str, Any] | None"]
"""From the lines of metrics.jsonl so far, and the run folder: the line from which on the run is steady, or None."""


def measure_rlz(settings: TrainSettings, options: Sequence[str] = ()) -> Outcome:
    """Run `rlz train`, wait for its steady state, measure one window, stop it with SIGINT."""
    window = watch(settings, options)
    if not window.settled:
        raise RlzError(f"rlz train did not reach its steady state within {START_LIMIT_S:.0f} s")
    seconds, last = window.seconds, window.lines[-1]
    steps, updates = window.counted("env_steps"), window.counted("updates")
    keys = ("first_env_step_s", "first_update_s", "memory_bytes", "waits_s")
    facts = {
        "rlz window_s": seconds,
        "rlz ratio": updates / max(1, steps),
        "rlz compiled": last.get("train/compiled"),
        "rlz learner threads": last.get("train/threads"),
        "rlz policy lag": last.get("replay/policy_lag"),
        "rlz summary": {key: window.summary.get(key) for key in keys},
    }
    rates = {"env_steps_per_s": steps / seconds, "updates_per_s": updates / seconds}
    starts = {name: window.summary.get(name) for name in ("first_env_step_s", "first_update_s")}
    known = {name: value for name, value in {**starts, f"steps_{SOON}_s": window.soon_s}.items() if value is not None}
    return Outcome({"rlz": rates | known}, facts=facts)


def watch(
    settings: TrainSettings,
    options: Sequence[str] = (),
    *,
    steady: Steady | None = None,
    same: Sequence[str] = (),
    limit_s: float = START_LIMIT_S,
) -> Window:
    """Run `rlz train` until it is steady and for a window more; stop it with SIGINT.

    Parameters
    ----------
    steady : default: `steady_from`.
    same : tags of the metrics that begin the window anew when they change.
    limit_s : the window begins by then at the latest, steady or not.
    """
    compiles = "--no-compile" not in options
    find = steady or (lambda lines, _: steady_from(lines, compiles))
    with tempfile.TemporaryDirectory(prefix="rlz-bench-") as folder:
        run_dir, log_path = Path(folder) / "bench", Path(folder) / "output.txt"
        began = time.time()
        with log_path.open("wb") as log:
            process = subprocess.Popen(
                rlz_command(settings, Path(folder), options),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                lines, settled = _window(process, run_dir, log_path, settings.seconds, find, same, limit_s)
            finally:
                stop(process)
        config = tomllib.loads((run_dir / "config.toml").read_text(encoding="utf-8"))
        summary = run_dir / "summary.json"
        found = json.loads(summary.read_text(encoding="utf-8")) if summary.exists() else {}
        soon_s = _time_of(SOON, read_lines(run_dir / "metrics.jsonl"), began)
    return Window(lines, settled, config, found, soon_s)


def _time_of(env_steps: int, lines: Sequence[dict[str, Any]], began: float) -> float | None:
    """Seconds from `began` to an env step, between the lines of the log on both sides of it."""
    points = [(0, began), *((line["env_steps"], line["time"]) for line in lines)]
    for (before, at), (after, later) in pairwise(points):
        if before < env_steps <= after:
            return float(at + (later - at) * (env_steps - before) / (after - before) - began)
    return None


def rlz_command(settings: TrainSettings, runs_dir: Path, options: Sequence[str] = ()) -> list[str]:
    """Command line of rlz for this workload."""
    command = [sys.executable, "-m", "rlz", "train", settings.algo, "--env", settings.env]
    command += ["--total-timesteps", "1000000000", "--seed", str(settings.seed)]
    command += ["--runs-dir", str(runs_dir), "--name", "bench", "--log-every", "1"]
    command += ["--device", settings.device, "--eval-every", "0", "--checkpoint-every", "0"]
    if settings.on_policy:
        steps = ROLLOUTS["rows"] // ROLLOUTS["num_envs"]
        command += ["--num-envs", str(ROLLOUTS["num_envs"]), "--n-steps", str(steps), "--hidden", "64,64"]
        command += ["--batch-size", str(ROLLOUTS["batch_size"]), "--n-epochs", str(ROLLOUTS["epochs"])]
        return [*command, "--activation", "tanh", "--no-normalize-obs", "--no-normalize-reward", *options]
    command += ["--batch-size", str(settings.batch_size), "--buffer-size", str(settings.buffer_size)]
    command += ["--hidden", ",".join(str(width) for width in settings.hidden)]
    command += ["--learning-starts", str(settings.learning_starts), "--replay-ratio", "1"]
    return [*command, "--no-save-replay", *options]


def _window(
    process: "subprocess.Popen[bytes]",
    run_dir: Path,
    log: Path,
    seconds: float,
    steady: Steady,
    same: Sequence[str],
    limit_s: float,
) -> tuple[list[dict[str, Any]], bool]:
    """Log lines of the window, and whether the run was steady in it."""
    limit = time.monotonic() + limit_s
    begin: dict[str, Any] | None = None
    settled = True

    def moved(line: dict[str, Any]) -> bool:
        return begin is not None and any(line.get(tag) != begin.get(tag) for tag in same)

    while True:
        if process.poll() is not None:
            text = log.read_text(encoding="utf-8", errors="replace")[-2000:]
            raise RlzError(f"rlz train ended with status {process.returncode}:\n{text}")
        lines, late = read_lines(run_dir / "metrics.jsonl"), time.monotonic() > limit
        if begin is not None and not late and moved(lines[-1]):
            begin = None
        if begin is None:
            begin = steady(lines, run_dir)
            if begin is None and late:
                if not lines or lines[-1].get("updates", 0) == 0:
                    raise RlzError(f"rlz train made no update within {limit_s:.0f} s")
                begin, settled = lines[-1], False
        elif lines[-1]["wall_s"] - begin["wall_s"] >= seconds:
            first = begin["wall_s"]
            window = [line for line in lines if line["wall_s"] >= first]
            return window, settled and not any(moved(line) for line in window)
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
