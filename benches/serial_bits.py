"""Hashes of every tensor that serial runs leave: equal before and after a change that must not alter learning.

python benches/serial_bits.py > after.json    # on the same machine, with the same versions as before.json
diff before.json after.json

Another processor, or another torch, may give other bits.
"""

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import load_file

from rlz.system.detect import detect

SHAPES = "--layer-norm --activation tanh --ent-coef 0.2 --n-critics 3 --num-envs 2 --samplers 2"
CASES = {
    "sac": "sac --env Pendulum-v1",
    "sac_options": f"sac --env Pendulum-v1 {SHAPES}",
    "td3": "td3 --env Pendulum-v1",
    "ddpg": "ddpg --env Pendulum-v1",
    "two_devices": "sac --env Pendulum-v1 --devices cpu,cpu",
    "prioritized": "sac --env Pendulum-v1 --prioritized --n-step-return 3",
    "ant": "sac --env Ant-v4 -n 300",
    "dqn": "dqn --env CartPole-v1",
    "ppo": "ppo --env CartPole-v1 --num-envs 2 --n-steps 64",
    "resume": "sac --env Pendulum-v1 -n 200 RESUME 400",
}
COMMON = (
    "--mode serial -n 400 --eval-every 200 --eval-episodes 2 --hidden 32,32 --no-compile "
    "--checkpoint-every 0 --seed 7 --plan off"
)


def rlz(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "rlz", "train", *words], check=True, stdout=subprocess.DEVNULL)


def hashes(folder: Path) -> dict[str, str]:
    return {
        f"{name}/{key}": hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()[:16]
        for name in ("learner", "policy")
        for key, value in load_file(folder / f"{name}.safetensors").items()
    }


def machine() -> str:
    """What the bits depend on beside the code."""
    return f"{detect().cpu}, {torch.backends.cpu.get_cpu_capability()}, torch {torch.__version__}"


def measure(name: str) -> dict[str, str]:
    """Hashes by tensor of a case."""
    first, _, further = CASES[name].partition(" RESUME ")
    algo, *options = first.split()
    with tempfile.TemporaryDirectory() as folder:
        starts = [] if algo == "ppo" else ["--learning-starts", "100"]
        rlz(algo, *COMMON.split(), *starts, *options, "--runs-dir", folder, "--name", "run")
        run = Path(folder) / "run"
        if further:
            rlz("--resume", str(run), "-n", further)
        return hashes(run / "checkpoints" / "latest")


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    p.add_argument("--digests", action="store_true", help="one for each case")
    a = p.parse_args()
    found: dict[str, object] = {name: measure(name) for name in a.only}
    if a.digests:
        found = {name: hashlib.sha256(json.dumps(of).encode()).hexdigest()[:16] for name, of in found.items()}
    print(json.dumps({"machine": machine(), **found}, indent=0))


if __name__ == "__main__":
    main()
