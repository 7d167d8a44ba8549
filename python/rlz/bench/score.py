"""Workload `score`: wall-clock and env steps to a score, and the score over both; a run of each in every round.

Nobody is evaluated while training: of every contender the policy is copied `SNAPSHOTS` times at even times (of rlz's
run from its parameter store by this process, of a peer's by a callback), and all copies are played afterwards by one
program, rlz's, on starts that no training and no evaluation has. So all have the same episodes and the same arithmetic
of the policy, and no evaluation takes time from anybody's training. The round's number is the seed.

A run has reached the score with the first policy whose mean return is at least the score, if the next one's is too. Its
time is the moment at which that policy existed, from the start of the process: imports, and compilation where there is
one, are in it. A run that has not reached it counts with its whole length, and a fact says so.

Contenders: `rlz` at replay ratio 1, and `rlz: free` (--replay-ratio free --batch-size auto), both with the
hyperparameters of rlz's preset for the environment, those of rl-baselines3-zoo; peers have the same.
"""

import json
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlz.bench.children import run_child
from rlz.bench.environments import PEER_SCRIPTS, PEERS, peer_python
from rlz.bench.result import Job, Outcome, Workload
from rlz.bench.train import START_LIMIT_S, TrainSettings, rlz_command, stop
from rlz.errors import RlzError, TransportError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ENV = "Pendulum-v1"
SCORES = {
    **{"Pendulum-v1": -180.0, "CartPole-v1": 475.0, "Acrobot-v1": -100.0},
    **{"HalfCheetah-v5": 2000.0, "Hopper-v5": 1000.0, "Walker2d-v5": 1000.0, "Ant-v5": 1000.0, "Ant-v4": 1000.0},
}
EPISODES = 10
SNAPSHOTS = 40
METRICS = ("seconds_to_score", "env_steps_to_score", "score_at_end")
FREE = ("--replay-ratio", "free", "--batch-size", "auto")

Point = dict[str, float]
"""A copy of a policy: `seconds` since the start of the process, `env_steps`, and, once it was played, `mean`."""


def workload(
    env: str,
    algo: str,
    peers: Sequence[str],
    seconds: float,
    cores: int,
    score: float | None = None,
    options: Sequence[str] = (),
    *,
    quick: bool = False,
) -> Workload:
    """What is measured; `seconds`: length of a run.

    Raises
    ------
    RlzError
        Nobody said which score, and none is usual for the environment.
    """
    wanted = SCORES.get(env) if score is None else score
    if wanted is None:
        raise RlzError(f"which score of {env}? Give --score RETURN (known: {', '.join(SCORES)})")
    config = _config(env, algo)
    settings = TrainSettings(
        env=env, seconds=seconds, algo=algo, batch_size=config.first_batch_size(), buffer_size=config.buffer_size,
        learning_starts=config.learning_starts, hidden=config.hidden,
    )  # fmt: skip
    ways: dict[str, Sequence[str]] = {"rlz": options}
    if not quick and not options:
        ways["rlz: free"] = FREE
    jobs = [Job(name, _ours(name, settings, way, wanted), needed=name == "rlz") for name, way in ways.items()]
    jobs += [Job(peer, _theirs(peer, settings, cores, wanted)) for peer in peers]
    definition = {**settings.definition(), "score": wanted, "seconds": seconds, "episodes": EPISODES}
    del definition["seed"]
    return Workload("score", jobs, METRICS, definition)


def _config(env: str, algo: str) -> Any:
    from rlz.config import resolve

    return resolve(algo, env)


def _ours(name: str, settings: TrainSettings, options: Sequence[str], score: float) -> Any:
    def run(number: int) -> Outcome:
        seeded = replace(settings, seed=number + 1)
        with tempfile.TemporaryDirectory(prefix="rlz-score-") as folder:
            copies = run_rlz(seeded, options, Path(folder))
            return outcome(name, play_copies(seeded, copies), seeded, score)

    return run


def _theirs(peer: str, settings: TrainSettings, cores: int, score: float) -> Any:
    def run(number: int) -> Outcome:
        seeded = replace(settings, seed=number + 1)
        with tempfile.TemporaryDirectory(prefix="rlz-score-") as folder:
            versions = run_peer(peer, seeded, cores, Path(folder))
            return outcome(peer, play_copies(seeded, from_peer(Path(folder))), seeded, score, versions)

    return run


def run_rlz(settings: TrainSettings, options: Sequence[str], folder: Path) -> list[tuple[Point, "NDArray[np.uint8]"]]:
    """Train for the seconds of the settings; copies of the policy, packed as published."""
    command = rlz_command(settings, folder, options)
    copies: list[tuple[Point, NDArray[np.uint8]]] = []
    with (folder / "output").open("w+b") as output:
        began = time.time()
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
        try:
            for due in _moments(settings.seconds):
                time.sleep(max(0.0, began + due - time.time()))
                if process.poll() is not None:
                    output.seek(0)
                    text = output.read().decode(errors="replace")[-2000:]
                    raise RlzError(f"rlz train ended with status {process.returncode}:\n{text}")
                with suppress(TransportError):  # it is starting, or has published nothing yet
                    copies.append(_copy(folder / "bench", began))
        finally:
            stop(process)
    if not copies:
        raise RlzError(f"rlz train published no policy within {settings.seconds:g} s")
    return copies


def _copy(run_dir: Path, began: float) -> tuple[Point, "NDArray[np.uint8]"]:
    import numpy as np

    from rlz.runtime.live import Live

    with Live(run_dir) as live:
        if live.parameters is None:
            raise TransportError("no parameters")
        packed = np.empty(live.parameters.nbytes, np.uint8)
        with live.parameters.subscriber() as subscriber:
            _, env_steps, _ = subscriber.read(packed)
        return {"seconds": time.time() - began, "env_steps": env_steps}, packed


def _moments(seconds: float) -> Iterator[float]:
    for number in range(1, SNAPSHOTS + 1):
        yield seconds * number / SNAPSHOTS


def run_peer(peer: str, settings: TrainSettings, cores: int, folder: Path) -> dict[str, dict[str, str]]:
    """Train a peer, which writes copies of its policy into the folder; versions of its packages."""
    config = _config(settings.env, settings.algo)
    job = {
        **{"library": peer, "workload": "score", "env": settings.env, "algo": settings.algo, "seed": settings.seed},
        **{"seconds": settings.seconds, "every": settings.seconds / SNAPSHOTS, "folder": str(folder)},
        **{"threads": min(2, cores), "num_envs": 1, "gradient_steps": 1, "device": "cpu"},
        **{"batch_size": settings.batch_size, "buffer_size": settings.buffer_size, "hidden": settings.hidden},
        **{"learning_starts": settings.learning_starts, "learning_rate": config.learning_rate, "gamma": config.gamma},
        **{"recorded": PEERS[peer].recorded, "began": time.time()},
    }
    command: list[str | Path] = [peer_python(peer), PEER_SCRIPTS / PEERS[peer].script, json.dumps(job)]
    return {peer: run_child(command, timeout=settings.seconds + START_LIMIT_S)["versions"]}


def from_peer(folder: Path) -> list[tuple[Point, "NDArray[np.uint8]"]]:
    """Copies that a peer wrote, packed as rlz does: weights [in, out] and biases of each layer, all heads in one."""
    import numpy as np

    copies = []
    for path in sorted(folder.glob("*.npz")):
        with np.load(path) as file:
            layers = [(file[f"weight_{n}"], file[f"bias_{n}"]) for n in range(sum("weight" in key for key in file))]
            point = {"seconds": float(file["seconds"]), "env_steps": float(file["env_steps"])}
        flat = [part.astype(np.float32).reshape(-1) for weight, bias in layers for part in (weight.T, bias)]
        copies.append((point, np.concatenate(flat).view(np.uint8)))
    if not copies:
        raise RlzError("it wrote no copy of its policy")
    return copies


def play_copies(settings: TrainSettings, copies: Sequence[tuple[Point, "NDArray[np.uint8]"]]) -> list[Point]:
    """Play every copy on held-out starts; the points with their mean returns."""
    import numpy as np

    from rlz import envs
    from rlz.acting import make_policy
    from rlz.config.model import ask
    from rlz.workers.environment import Environment
    from rlz.workers.evaluation import held_out_seeds, own_globals, play

    config = _config(settings.env, settings.algo)
    spec = envs.inspect_env(config, on_note=lambda _: None)
    policy = make_policy(ask(config, spec).policy, np.random.SeedSequence(0))
    with own_globals():
        env = Environment(envs.make(config), spec, "score")
    points = []
    try:
        for point, packed in copies:
            policy.load(packed)
            episodes = play(env, policy, spec, held_out_seeds(EPISODES))
            assert episodes is not None
            points.append({**point, "mean": episodes.return_mean})
    finally:
        env.close()
    return points


def reached(points: Sequence[Point], score: float) -> Point | None:
    """The first point at the score whose successor is there too."""
    return next((one for one, after in pairwise(points) if min(one["mean"], after["mean"]) >= score), None)


def outcome(
    name: str,
    points: list[Point],
    settings: TrainSettings,
    score: float,
    versions: dict[str, dict[str, str]] | None = None,
) -> Outcome:
    """Figures of a run, with its curve."""
    there = reached(points, score)
    at = there or {"seconds": settings.seconds, "env_steps": points[-1]["env_steps"]}
    metrics = {
        "seconds_to_score": at["seconds"],
        "env_steps_to_score": at["env_steps"],
        "score_at_end": sum(point["mean"] for point in points[-3:]) / len(points[-3:]),
    }
    curve = [{key: round(value, 3) for key, value in point.items()} for point in points]
    facts: dict[str, Any] = {f"curves {name}": curve, f"reached {name}": there is not None}
    return Outcome({name: metrics}, versions or {}, facts)
