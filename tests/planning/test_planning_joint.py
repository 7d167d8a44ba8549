"""Samplers and a learner together, really, with tiny networks."""

import json
import sys
from pathlib import Path

import pytest

from rlz.bench.children import Child
from rlz.planning.profile_model import Joint
from support.machines import config


@pytest.mark.slow
def test_two_settings_with_real_samplers_and_a_real_learner(tmp_path: Path) -> None:
    run = config(hidden="8", batch_size=16)
    place = {"spin_count": 1000, "pinned": True, "device": "cpu", "compile": False}
    settings = [
        {**place, "samplers": 1, "envs_per_sampler": 1, "replay_ratio": 0.5, "inference": "inline"},
        {**place, "samplers": 2, "envs_per_sampler": 2, "replay_ratio": None, "inference": "central"},
    ]
    job = json.dumps({"config": run.model_dump(mode="json"), "settings": settings, "seconds": 0.5})
    lines = []
    with Child([sys.executable, "-m", "rlz.planning.joint", job], env={"TMPDIR": str(tmp_path)}) as child:
        while (line := child.line(90.0)) is not None:
            lines.append(line)
        assert child.error() == ""
    assert [line["next"] for line in lines if "next" in line] == [0, 1]
    held, free = (Joint.model_validate(line["joint"]) for line in lines if "joint" in line)
    assert (held.samplers, held.replay_ratio, held.executor, held.precision) == (1, 0.5, "eager", "fp32")
    assert held.updates_per_s == pytest.approx(0.5 * held.env_steps_per_s, rel=0.2)
    assert (free.samplers, free.envs_per_sampler, free.replay_ratio) == (2, 2, None)
    assert (held.inference, free.inference) == ("inline", "central")
    assert min(free.env_steps_per_s, free.updates_per_s, free.learner_cpu, free.sampler_cpu) > 0
