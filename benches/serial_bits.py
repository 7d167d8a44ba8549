"""Hashes of every tensor that serial runs leave: equal before and after a change that must not alter learning.

python benches/serial_bits.py > after.json    # on the same machine, with the same versions as before.json
diff before.json after.json
"""

import hashlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

SHAPES = "--layer-norm --activation tanh --ent-coef 0.2 --n-critics 3 --num-envs 2 --samplers 2"
CASES = {
    "sac": "sac --env Pendulum-v1",
    "sac_options": f"sac --env Pendulum-v1 {SHAPES}",
    "td3": "td3 --env Pendulum-v1",
    "ddpg": "ddpg --env Pendulum-v1",
    "two_devices": "sac --env Pendulum-v1 --devices cpu,cpu",
    "prioritized": "sac --env Pendulum-v1 --prioritized --n-step-return 3",
    "ant": "sac --env Ant-v4 -n 300",
    "resume": "sac --env Pendulum-v1 -n 200 RESUME 400",
}
COMMON = (
    "--mode serial -n 400 --learning-starts 100 --eval-every 200 --eval-episodes 2 --hidden 32,32 --no-compile "
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


def main() -> None:
    found = {}
    for name, line in CASES.items():
        first, _, further = line.partition(" RESUME ")
        algo, *options = first.split()
        with tempfile.TemporaryDirectory() as folder:
            rlz(algo, *COMMON.split(), *options, "--runs-dir", folder, "--name", "run")
            run = Path(folder) / "run"
            if further:
                rlz("--resume", str(run), "-n", further)
            found[name] = hashes(run / "checkpoints" / "latest")
    print(json.dumps(found, indent=0))


if __name__ == "__main__":
    main()
